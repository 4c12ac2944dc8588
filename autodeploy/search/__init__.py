"""Placement of layers, recompute and swap for one candidate: proven where it can be. Imports ortools when it solves."""
