"""Placement of layers, recompute and swap for one candidate."""
