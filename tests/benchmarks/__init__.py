"""Benchmarks: run alone on a machine, never as timed tests."""
