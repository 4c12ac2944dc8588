"""Rehearsals: a plan scaled down to a few nodes with the work per rank unchanged, to be launched and measured first."""
