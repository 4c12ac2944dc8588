"""Checks of a launch: its prediction against limits. Pure functions of a spec and the planner."""

from autodeploy.checks.baseline import Baseline
from autodeploy.checks.check import check
from autodeploy.checks.launch import Launch, launch_of
from autodeploy.checks.unread import check_unread

__all__ = ["Baseline", "Launch", "check", "check_unread", "launch_of"]
