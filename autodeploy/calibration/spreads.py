"""Spread of left-out residuals by class of run: what every interval starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.calibration.fit import Floats

Z80 = 1.2816  # half-width of a normal 80 % interval in standard deviations
LEAST_IN_CLASS = 3  # records that a spread rests on
LEAST_IN_SUBCLASS = 5  # below, the spread of the whole class stands
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


def log_sigma_of(residuals: Floats) -> float:
    """Standard deviation whose normal 80 % interval holds 80 % of the residuals."""
    return float(np.percentile(np.abs(residuals), 80)) / Z80


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
        if int(same.sum()) >= least:
            rows = tuple(row for row, mark in zip(basis, same, strict=True) if mark)
            return ClassSpread(log_sigma_of(left_out[same]), float(parameter_variance[same].mean()), rows)
    sigma = max(LEAST_UNCALIBRATED, log_sigma_of(left_out))
    return ClassSpread(sigma, float(parameter_variance.mean()), tuple(basis))


def class_spreads(
    rows: Sequence[Mapping[str, Any]], left_out: Floats, parameter_variance: Floats
) -> dict[str, dict[str, float]]:
    """Spread, number of records and mean variance from the parameters of every class that has enough records, six
    significant digits.
    """
    found: dict[str, dict[str, float]] = {}
    for place, least in ((0, LEAST_IN_SUBCLASS), (1, LEAST_IN_CLASS)):
        names = np.array([classes_of_run(row)[place] for row in rows])
        for name in np.unique(names):
            same = names == name
            if int(same.sum()) >= least:
                found[str(name)] = {
                    "log_sigma": float(f"{log_sigma_of(left_out[same]):.6g}"),
                    "n": int(same.sum()),
                    "parameter_variance": float(f"{parameter_variance[same].mean():.6g}"),
                }
    return found
