"""Benchmarks of the user's machines: a self-contained script, and the fit of profile numbers to its results."""
