"""Spread of left-out residuals by class of run: what every interval starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Z80 = 1.2816  # half-width of a normal 80 % interval in standard deviations
REPEAT_NOISE = 0.035  # of one configuration measured twice
LEAST_UNCALIBRATED = 0.15  # log standard deviation where the class has no record


def classes_of_run(run: Mapping[str, Any]) -> tuple[str, str]:
    """The classes of a run, the narrower one first.

    Where several tensor-parallel groups share a node, several replicas or stages load its network cards at once, and
    measured times scatter more than where one group fills the node (or the run has one node). Runs with experts are too
    few to tell.
    """
    if run["moe"]:
        return "moe", "moe"
    return f"dense, {'shared' if run['shares_node'] else 'whole'} nodes", "dense"


def shares_node(ranks: int, tp: int, ranks_per_node: int) -> bool:
    """Whether several tensor-parallel groups share a node of a run on several nodes."""
    return ranks > ranks_per_node > tp


def widening(freedom: float, squares: Sequence[float]) -> float:
    """Factor on a spread whose later observations had these squares, in its variances; never below 1.

    The variance is the mean of an inverse gamma distribution with `freedom` degrees of freedom that saw one more square
    per observation.
    """
    return math.sqrt(max(1.0, (freedom + math.fsum(squares)) / (freedom + len(squares))))


def conditioned(variance: float, pair_variance: float) -> float:
    """Variance of an error once another one on the same cluster is known.

    Parameters
    ----------
    variance : of either error. pair_variance : of their difference, repeat noise left out.

    Notes
    -----
    Two normal errors of variance v whose difference has the variance d are correlated by r = 1 - d / 2v; the second
    one given the first has (1 - r^2) v = d (1 - d / 4v). Errors with nothing in common (d >= 2v) keep theirs.
    """
    if pair_variance >= 2.0 * variance:
        return variance
    return pair_variance * (1.0 - pair_variance / (4.0 * variance))


@dataclass(frozen=True)
class ClassSpread:
    """What the records of a class left over when their families were left out.

    parameter_variance : the part of log_sigma squared that comes from the parameters of the fits that predicted them.
    """

    log_sigma: float
    parameter_variance: float
    records: tuple[Mapping[str, Any], ...]

    def variance_with(self, parameter_variance: float) -> float:
        """Variance of a run whose own parameters add this much: what the class's records had already counts once."""
        return self.log_sigma**2 + max(0.0, parameter_variance - self.parameter_variance)
