"""Widths of fitted numbers on a model that no run is of, from residuals of fits without a part of the records.

A fit's own covariance takes the residuals of records as independent, and the number as the same for every model. Two
things speak against it, each measured: refits without a family of models move the numbers, and runs with experts leave
more over than runs without. The larger width counts.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import NUISANCES, covariance_at, prior_precisions, refit
from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.record_prediction import predict_record
from autodeploy.calibration.shipped.class_spreads import LEAST_IN_CLASS, log_sigma_of, weights_of
from autodeploy.calibration.uncertain_numbers import prior_numbers
from autodeploy.costs.steps.scenarios import step_times_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from autodeploy.calibration.fit import Fit
    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats


def part_of(fit: Fit, inside: npt.NDArray[np.bool_]) -> Fit:
    """The linear model of some of the records, around the same estimate."""
    return replace(fit, residuals=fit.residuals[inside], jacobian=fit.jacobian[inside], weights=fit.weights[inside])


def variances_of(calibration: Calibration) -> Floats:
    """`parameter_variances` of the records of a calibration, by the families of their models [records]."""
    return parameter_variances(calibration.fit, [family_of(record) for record in calibration.records])


def parameter_variances(result: Fit, groups: Sequence[str]) -> Floats:
    """Variance of every record's log prediction from the parameters of a fit to the records of all other groups.

    J C J^T with the covariance C that the fit has without the record's group: the part of the left-out residuals that
    the uncertainty of the parameters explains.
    """
    labels = np.asarray(groups)
    variances = np.empty(len(labels))
    for label in np.unique(labels):
        inside = labels == label
        variances[inside] = projected(result.jacobian[inside], refit_covariance(result, ~inside))
    return variances


def refit_covariance(result: Fit, fitted: npt.NDArray[np.bool_]) -> Floats:
    """Covariance of the log factors under a fit to the records marked `fitted`."""
    prior = prior_precisions(result.parameters, result.log_factors)
    return covariance_at(result.jacobian[fitted], result.weights[fitted], prior)


def projected(jacobian: Floats, covariance: Floats) -> Floats:
    """J C J^T of every row of the Jacobian."""
    return np.asarray(np.einsum("ni,ij,nj->n", jacobian, covariance, jacobian))


EXPERTS = "experts"  # the factor of routing and experts
_NUISANCES = {parameter.name for parameter in NUISANCES}


def width_table(calibration: Calibration, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Width of the parameters of a fit that plans read, as the coverage table has it, six significant digits:
    `log_sigma`, from so many configurations `n`; 0 where refits leave a number as it is.

    rows : of the coverage table, one a record of the calibration.
    """
    if not rows:
        return {}
    current = {p.name for p in calibration.fit.parameters if not p.multiplies_any("release_")} - _NUISANCES
    moved = refit_widths(calibration, [str(row["model_family"]) for row in rows])
    widths = {name: width for name, width in moved.items() if name in current}
    counts = {name: len({row["configuration"] for row in rows}) for name in widths}
    moe = [row for row in rows if row["moe"]]
    if EXPERTS in widths and moe:
        counts[EXPERTS] = len({row["configuration"] for row in moe})
        widths[EXPERTS] = max(widths[EXPERTS], experts_width(calibration, rows))
    return {name: {"log_sigma": rounded(width), "n": counts[name]} for name, width in widths.items()}


def refit_widths(calibration: Calibration, families: Sequence[str]) -> dict[str, float]:
    """Standard deviation of each log factor by the refits without each family of models: the grouped jackknife.

    Notes
    -----
    sqrt((G - 1) / G sum_g (t_g - mean t)^2) over the G families, t_g the log factor of the fit without family g.

    References
    ----------
    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 11.
    """
    fit, labels = calibration.fit, np.asarray(families)
    names = np.unique(labels)
    moves = np.array([refit(fit, labels != name) for name in names])
    spread = np.sqrt((len(names) - 1) / len(names) * ((moves - moves.mean(axis=0)) ** 2).sum(axis=0))
    return {p.name: float(width) for p, width in zip(fit.parameters, spread, strict=True)}


def experts_width(calibration: Calibration, rows: Sequence[Mapping[str, Any]]) -> float:
    """Width of the factor of expert software that what runs with experts leave over asks for, 0 where it asks for none.

    Notes
    -----
    sqrt(max(0, m^2 - d^2 - v)) / s: m and d the spread of left-out residuals with and without experts, v the variance
    of log step time that numbers with priors of their own explain, s the slope of log step time by the factor; v and
    s^2 are means over the runs with experts.
    """
    moe = np.array([bool(row["moe"]) for row in rows])
    spreads, weights = [], []
    for mark in (moe, ~moe):
        weights.append(weights_of(list(compress(rows, mark))))
        if round(float(weights[-1].sum())) < LEAST_IN_CLASS:
            return 0.0
        spreads.append(log_sigma_of(calibration.left_out[mark], weights[-1]))
    with_experts, without = spreads
    column = [p.name for p in calibration.fit.parameters].index(EXPERTS)
    slope = np.average(calibration.fit.jacobian[moe, column] ** 2, weights=weights[0])
    records = [record for record, mark in zip(calibration.records, moe, strict=True) if mark]
    explained = np.average(_prior_variances(records), weights=weights[0])
    left = max(0.0, with_experts**2 - without**2 - float(explained))
    return float(np.sqrt(left / slope)) if slope > 0.0 else 0.0


def _prior_variances(records: Sequence[Record]) -> Floats:
    """Variance of each record's log step time from the numbers that have priors of their own [records]."""
    variances = []
    for record in records:
        predicted = predict_record(record)
        numbers = prior_numbers(predicted.profile, predicted.context)
        worlds = [{number.name: sign * number.log_sigma} for number in numbers for sign in (-1.0, 1.0)]
        times = np.log(step_times_in(predicted.candidate, predicted.context, [predicted.layout], numbers, worlds)[0])
        variances.append(float((((times[1::2] - times[::2]) / 2.0) ** 2).sum()))
    return np.array(variances, dtype=np.float64)
