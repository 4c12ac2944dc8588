"""Compares predictions with published runs and measurements."""
