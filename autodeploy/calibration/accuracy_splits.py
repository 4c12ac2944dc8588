"""Fits to small clusters that predict large ones, and how often the 80 % interval holds the measured time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.accuracy_errors import Errors, Runs, errors_of, residuals_at, runs_of
from autodeploy.calibration.calibrate import calibrate
from autodeploy.calibration.coverage import coverage, widened
from autodeploy.calibration.distance import ranks_per_doubling, rehearsals
from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import values_of
from autodeploy.calibration.measured import counts_for_time
from autodeploy.calibration.spreads import Z80, class_sigma

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.calibration.fit import Floats
    from autodeploy.specs.record import Record

UNIDENTIFIED = 0.8  # of the prior's standard deviation


@dataclass(frozen=True, slots=True)
class Split:
    """Fit to clusters of at most `at_most` cards, prediction of those of at least `at_least`."""

    profile: str
    at_most: int
    at_least: int


SPLITS = (Split("nvidia-a100-80g", 256, 1000), Split("ascend-800t-a2", 16, 64))


@dataclass(frozen=True, slots=True)
class SplitErrors:
    """What a split gave: records fitted to, errors on those predicted, share inside the 80 % interval."""

    split: Split
    fitted: int
    errors: Errors
    inside: float
    unidentified: tuple[str, ...]  # parameters that the small clusters leave about as uncertain as their priors


def size_split(split: Split, records: Sequence[Record]) -> SplitErrors:
    """Fits to the small clusters of a profile and predicts the large ones; intervals know the small ones alone."""
    sized = [(r, int(r.cluster.num_npus or 1)) for r in records if r.cluster.profile == split.profile]
    sized = [(r, cards) for r, cards in sized if counts_for_time(r)]
    fitted = calibrate([r for r, cards in sized if cards <= split.at_most], split.profile)
    large = [r for r, cards in sized if cards >= split.at_least]
    values = values_of(fitted.fit.parameters, fitted.fit.log_factors, fitted.profile.efficiency)
    found = residuals_at(large, values)
    rows, basis = rows_by_id(), runs_of(fitted)
    slope = ranks_per_doubling(rehearsals(fitted, rows))
    inside = [
        abs(residual) <= Z80 * log_sigma(rows[r.id], [rows[b.id] for b in basis.records], basis.left_out, slope)
        for r, residual in zip(large, found, strict=True)
    ]
    sigma = np.sqrt(np.diag(fitted.fit.covariance))
    rows_of_fit = zip(fitted.fit.parameters, sigma, strict=True)
    loose = tuple(p.name for p, spread in rows_of_fit if spread > UNIDENTIFIED * p.prior_sigma)
    return SplitErrors(split, len(basis.records), errors_of(found), float(np.mean(inside)), loose)


def left_out_coverage(runs: Runs) -> float:
    """Share of records inside their 80 % interval, prediction and interval both from the other families alone."""
    rows = rows_by_id()
    families = np.array([family_of(r) for r in runs.records])
    inside = []
    for number, record in enumerate(runs.records):
        others = families != families[number]
        basis = [rows[r.id] for r, other in zip(runs.records, others, strict=True) if other]
        row = rows[record.id]
        sigma = log_sigma(row, basis, runs.left_out[others], float(coverage()["ranks_per_doubling"][row["family"]]))
        inside.append(abs(runs.left_out[number]) <= Z80 * sigma)
    return float(np.mean(inside))


def rows_by_id() -> dict[str, Mapping[str, Any]]:
    """What each shipped record ran, in the axes of the coverage table."""
    return {row["id"]: row for row in coverage()["records"]}


def log_sigma(run: Mapping[str, Any], basis: Sequence[Mapping[str, Any]], left_out: Floats, slope: float) -> float:
    """Log standard deviation of a prediction of `run` from the records in `basis` alone, as the coverage table does.

    Spread of left-out residuals of the class, and in quadrature what lies beyond its records.
    """
    sigma, seen = class_sigma(run, basis, left_out)
    return math.sqrt(widened(sigma**2, run, seen, slope)[0])
