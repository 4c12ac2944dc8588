"""A program of torch's own environment: one rank of a training job on the CPU, and what it does, counted.

It is started by path with the interpreter that has torch, imports nothing of AutoDeploy and none of it is imported by
AutoDeploy.
"""
