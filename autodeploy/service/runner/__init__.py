"""Execution of searches: job runners and the work of one run."""
