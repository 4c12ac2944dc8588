"""Measured runs of plans."""
