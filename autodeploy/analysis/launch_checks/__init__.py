"""Checks of a launch: its prediction against limits. Pure functions of a spec and the planner."""
