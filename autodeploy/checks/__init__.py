"""Whether a launch is a good one: limits held against a prediction. Pure functions of a spec and the planner."""

from autodeploy.checks.check import check
from autodeploy.checks.launch import Launch, launch_of

__all__ = ["Launch", "check", "launch_of"]
