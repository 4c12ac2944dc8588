"""Spread of left-out residuals by class of run: what every interval starts from."""

from __future__ import annotations

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


def class_sigma(
    run: Mapping[str, Any], basis: Sequence[Mapping[str, Any]], left_out: Floats
) -> tuple[float, list[Mapping[str, Any]]]:
    """Spread of the narrowest class of a run that has enough records in `basis`, and those records."""
    for name, least in zip(classes_of_run(run), (LEAST_IN_SUBCLASS, LEAST_IN_CLASS), strict=True):
        same = np.array([name in classes_of_run(row) for row in basis], dtype=bool)
        if int(same.sum()) >= least:
            return log_sigma_of(left_out[same]), [row for row, mark in zip(basis, same, strict=True) if mark]
    return max(LEAST_UNCALIBRATED, log_sigma_of(left_out)), list(basis)


def class_spreads(rows: Sequence[Mapping[str, Any]], left_out: Floats) -> dict[str, dict[str, float]]:
    """Spread and number of records of every class that has enough of them, six significant digits."""
    found = {}
    for place, least in ((0, LEAST_IN_SUBCLASS), (1, LEAST_IN_CLASS)):
        names = np.array([classes_of_run(row)[place] for row in rows])
        for name in np.unique(names):
            same = names == name
            if int(same.sum()) >= least:
                spread = float(f"{log_sigma_of(left_out[same]):.6g}")
                found[str(name)] = {"log_sigma": spread, "n": int(same.sum())}
    return found
