"""Placement of layers, recompute and swap for one candidate: proven where it can be. Imports ortools when it solves."""

from __future__ import annotations

from autodeploy.solver.bounds.problem_bound import relax_bound
from autodeploy.solver.effort import DEFAULT, FAST, Effort
from autodeploy.solver.inner.evaluate import InnerSolution
from autodeploy.solver.inner.solve import solve

__all__ = ["DEFAULT", "FAST", "Effort", "InnerSolution", "relax_bound", "solve"]
