"""Spread of left-out residuals by class of run: what every interval starts from."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cost_models.arrays import Floats


Z80 = 1.2816  # half-width of a normal 80 % interval in standard deviations
LEAST_IN_CLASS = 4  # weight that a spread rests on: the farthest of four residuals holds four of five further ones
LEAST_IN_SUBCLASS = 8  # below, the spread of the whole class stands
INTERVAL_COVERAGE = 0.8
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


def log_sigma_of(residuals: Floats, weights: Floats | None = None) -> float:
    """Standard deviation whose normal 80 % interval holds the next residual with a probability of 80 %.

    Of n exchangeable residuals the one of rank 0.8 (n + 1) does (conformal prediction); between ranks linear, beyond
    the last the last.

    Parameters
    ----------
    weights : of each residual [records]: those of one configuration share one. One each without it.
    """
    weights = np.ones(len(residuals)) if weights is None else weights
    order = np.argsort(np.abs(residuals))
    sizes = np.concatenate([[0.0], np.abs(residuals)[order]])
    ranks = np.concatenate([[0.0], np.cumsum(weights[order])])
    return float(np.interp(INTERVAL_COVERAGE * (ranks[-1] + 1.0), ranks, sizes)) / Z80


def widening(freedom: float, squares: Sequence[float]) -> float:
    """Factor on a spread whose later observations had these squares, in its variances; never below 1.

    The variance is the mean of an inverse gamma distribution with `freedom` degrees of freedom that saw one more square
    per observation.
    """
    return math.sqrt(max(1.0, (freedom + math.fsum(squares)) / (freedom + len(squares))))


def weights_of(rows: Sequence[Mapping[str, Any]]) -> Floats:
    """Weight of each row of the coverage table [rows].

    Rows of one configuration share one; n configurations of one family of models, whose left-out residuals are partly
    one error, count as the square root of n.
    """
    names = [row.get("configuration", number) for number, row in enumerate(rows)]
    families = [row.get("model_family", name) for row, name in zip(rows, names, strict=True)]
    counts = Counter(names)
    sizes = Counter(family for family, _ in set(zip(families, names, strict=True)))
    shares = [1.0 / counts[name] / sizes[family] ** 0.5 for family, name in zip(families, names, strict=True)]
    return np.array(shares, dtype=np.float64)


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


def class_spread(
    run: Mapping[str, Any], basis: Sequence[Mapping[str, Any]], left_out: Floats, parameter_variance: Floats
) -> ClassSpread:
    """Spread of the narrowest class of a run that has enough records in `basis`.

    Parameters
    ----------
    left_out, parameter_variance : of every record of `basis`: its left-out residual, and the part of that residual's
        variance that comes from the parameters.
    """
    for name, least in zip(classes_of_run(run), (LEAST_IN_SUBCLASS, LEAST_IN_CLASS), strict=True):
        same = np.array([name in classes_of_run(row) for row in basis], dtype=bool)
        rows = tuple(row for row, mark in zip(basis, same, strict=True) if mark)
        weights = weights_of(rows)
        if round(float(weights.sum())) >= least:
            variance = float(np.average(parameter_variance[same], weights=weights))
            return ClassSpread(log_sigma_of(left_out[same], weights), variance, rows)
    weights = weights_of(basis)
    sigma = max(LEAST_UNCALIBRATED, log_sigma_of(left_out, weights))
    return ClassSpread(sigma, float(np.average(parameter_variance, weights=weights)), tuple(basis))


def class_spreads(
    rows: Sequence[Mapping[str, Any]], left_out: Floats, parameter_variance: Floats
) -> dict[str, dict[str, float]]:
    """Spread, number of configurations and mean variance from the parameters of every class that has enough of them,
    six significant digits.
    """
    found: dict[str, dict[str, float]] = {}
    for place, least in ((0, LEAST_IN_SUBCLASS), (1, LEAST_IN_CLASS)):
        names = np.array([classes_of_run(row)[place] for row in rows])
        for name in np.unique(names):
            same = names == name
            kept = [row for row, mark in zip(rows, same, strict=True) if mark]
            weights = weights_of(kept)
            if round(float(weights.sum())) >= least:
                variance = float(np.average(parameter_variance[same], weights=weights))
                found[str(name)] = {
                    "log_sigma": float(f"{log_sigma_of(left_out[same], weights):.6g}"),
                    "n": len({row.get("configuration", number) for number, row in enumerate(kept)}),
                    "parameter_variance": float(f"{variance:.6g}"),
                }
    return found
