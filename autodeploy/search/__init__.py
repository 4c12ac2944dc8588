"""Placement of layers, recompute and swap for one candidate: proven where it can be. Imports ortools when it solves."""

from __future__ import annotations

from autodeploy.search.bounds.problem_bound import relax_bound
from autodeploy.search.choices.effort import DEFAULT, FAST, Effort
from autodeploy.search.placement.evaluate import InnerSolution
from autodeploy.search.placement.solve import solve

__all__ = ["DEFAULT", "FAST", "Effort", "InnerSolution", "relax_bound", "solve"]
