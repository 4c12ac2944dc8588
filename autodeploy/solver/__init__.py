"""Frontiers, schedule cuts and the CP-SAT master problem."""
