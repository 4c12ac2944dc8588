"""How much a prediction loses with each doubling of the cluster beyond the records: measured on the records themselves.

Every cluster size that has records on both sides is a rehearsal: fit to the smaller clusters, predict those of twice
the size and more, and compare with the spread that the smaller ones alone promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import left_out_residuals
from autodeploy.costs.prediction_spread import RANKS_PER_DOUBLING, Z80
from docs.shipped_calibration.class_spreads import class_spread
from docs.shipped_calibration.refits import parameter_variances, part_of, projected, refit_covariance, refit_residuals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autodeploy.calibration.profile_fit import Calibration

LEAST_FITTED = 10  # records that a rehearsal's fit must have seen
STEP = 0.0025
PRIOR_RECORDS = 20  # the prior of a doubling counts as much as this many rehearsed records
MAX_PER_DOUBLING = 0.20
INTERVAL_COVERAGE = 0.80


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One record predicted by a fit to smaller clusters.

    name : of the record.
    doublings : log2 of its ranks over the most ranks fitted. residual : log(predicted / measured).
    log_sigma : spread of its class over the smaller clusters, each family left out, with what the parameters of that
        fit add.
    """

    name: str
    doublings: float
    residual: float
    log_sigma: float


def rehearsals(calibration: Calibration, rows: Mapping[str, Mapping[str, Any]]) -> list[Rehearsal]:
    """All rehearsals that the records of one device allow; the model is linearised at the full fit."""
    records, fit = calibration.records, calibration.fit
    ranks = np.array([int(rows[r.id]["ranks"]) for r in records])
    families = np.array([family_of(r) for r in records])
    pairs = []
    for largest in np.unique(ranks)[:-1]:
        small, far = ranks <= largest, np.flatnonzero(ranks >= 2 * largest)
        if int(small.sum()) < LEAST_FITTED or not len(far):
            continue
        left_out = left_out_residuals(part_of(fit, small), families[small])
        of_parameters = parameter_variances(part_of(fit, small), families[small])
        basis = [rows[r.id] for r, mark in zip(records, small, strict=True) if mark]
        predicted = refit_residuals(fit, small, far)
        variances = projected(fit.jacobian[far], refit_covariance(fit, small))
        for number, residual, variance in zip(far, predicted, variances, strict=True):
            spread = class_spread(rows[records[number].id], basis, left_out, of_parameters)
            sigma = math.sqrt(spread.variance_with(float(variance)))
            pairs.append(Rehearsal(records[number].id, math.log2(ranks[number] / largest), float(residual), sigma))
    return pairs


def ranks_per_doubling(cases: Iterable[Rehearsal]) -> float:
    """Standard deviation of log step time a doubling: mean square of what was rehearsed and of the prior, by records.

    One record predicted from several sizes counts once: its rehearsals err alike.
    """
    known: Sequence[Rehearsal] = list(cases)
    weight = len({case.name for case in known})
    square = weight * rehearsed_slope(known) ** 2 + PRIOR_RECORDS * RANKS_PER_DOUBLING**2
    return float(f"{math.sqrt(square / (weight + PRIOR_RECORDS)):.6g}")


def rehearsed_slope(cases: Sequence[Rehearsal]) -> float:
    """The least standard deviation a doubling with which 80 % of the rehearsals lie inside; 0 without any.

    Each rehearsal's variance is its class's plus the square of its doublings times this.
    """
    for number in range(round(MAX_PER_DOUBLING / STEP)):
        slope = number * STEP
        inside = [abs(c.residual) <= Z80 * math.hypot(c.log_sigma, slope * c.doublings) for c in cases]
        if sum(inside) >= INTERVAL_COVERAGE * len(cases):
            return slope
    return MAX_PER_DOUBLING
