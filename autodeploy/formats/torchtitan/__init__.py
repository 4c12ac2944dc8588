"""Configurations of torchtitan and torchtitan-npu, read and written."""
