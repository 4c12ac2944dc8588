"""Checks of a launch: its prediction against limits. Pure functions of a spec and the planner."""

from autodeploy.analysis.launch_checks.baseline import Baseline
from autodeploy.analysis.launch_checks.launch import Launch, launch_of
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.analysis.launch_checks.legality import check_unread

__all__ = ["Baseline", "Launch", "check", "check_unread", "launch_of"]
