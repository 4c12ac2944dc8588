"""The share of unproven gains that came true: what fits promised of features and degrees none of their runs had."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.evidence import FEATURE, counts, is_used
from autodeploy.calibration.overlays import rounded
from autodeploy.costs.prediction_spread import RUN_AXES
from autodeploy.specs.software import release_of
from autodeploy.stack.features import FEATURES
from docs.shipped_calibration.run_rows import run_row
from docs.shipped_calibration.strategy_groups import LOG_TIME_TOLERANCE, Without, calibration_of, strategy_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats
    from docs.shipped_calibration.strategy_groups import StrategyGroup

LEAST_FITTED = 10  # records that the fit must have seen
HOW = "{gains} gains on {models} models that fits promised which had seen no run with the feature or degree"


@dataclass(frozen=True, slots=True)
class Gain:
    """What a feature or degree gains, log(time without / time with), in one group of runs that differ in strategy.

    predicted : by a fit that has seen no run with it, between the fastest run with it and the fastest without, both by
        that fit. measured : between the same two. fitted : records that the fit saw.
    """

    group: str
    model: str
    device: str
    axis: str
    value: int | str
    predicted: float
    measured: float
    fitted: int


def gains(records: Iterable[Record], calibrations: Sequence[Calibration]) -> list[Gain]:
    """Every gain of a feature or degree that the groups of the records show, promised or not."""
    rows = {r.id: run_row(r) for calibration in calibrations for r in calibration.records}
    return [
        gain
        for group in strategy_groups(records)
        for axis, value in _things(group)
        for gain in _gains(group, axis, value, calibrations, rows)
    ]


def _things(group: StrategyGroup) -> list[tuple[str, int | str]]:
    """Features and degrees that some run of a group has and uses."""
    values_of_axes = {(axis, row[axis]) for row in group.rows for axis in RUN_AXES if is_used(row, axis)}
    values_of_axes |= {(FEATURE, name) for row in group.rows for name in row["features"] if name in FEATURES}
    return sorted(values_of_axes, key=str)


def _gains(
    group: StrategyGroup,
    axis: str,
    value: int | str,
    calibrations: Sequence[Calibration],
    rows: Mapping[str, Mapping[str, Any]],
) -> list[Gain]:
    """The gain on each band of software that has runs with the thing and runs without, by one fit."""
    without = Without.of(
        calibration_of(group.records[0].cluster.profile, calibrations), lambda r: counts(rows[r.id], axis, value)
    )
    fitted = int(without.fitted.sum())
    bands = np.array([release_of(record).band for record in group.records])
    near = np.array([counts(row, axis, value) for row in group.rows])
    has = np.array([near[n] and (axis == FEATURE or row[axis] == value) for n, row in enumerate(group.rows)])
    mixed = [band for band in np.unique(bands) if has[bands == band].any() and not near[bands == band].all()]
    if not mixed or fitted < LEAST_FITTED:
        return []
    times = without.log_times(group)
    gains = []
    for band in mixed:
        used = _fastest(times, has & (bands == band))
        other = _fastest(times, ~near & (bands == band))
        promised, came = (float(each[other] - each[used]) for each in (times, group.log_measured))
        gains.append(Gain(group.name, group.model, group.device, axis, value, promised, came, fitted))
    return gains


def _fastest(times: Floats, marks: npt.NDArray[np.bool_]) -> int:
    return int(np.argmin(np.where(marks, times, np.inf)))


@dataclass(frozen=True, slots=True)
class Came:
    """What came true of promised gains.

    raw : slope through zero of measured against predicted gains. share : that, clipped to [0, 1]. sigma : standard
        deviation of the slope, each model on a chip left out in turn; None of one model. of_model : the slope of each.
    """

    raw: float
    share: float
    sigma: float | None
    gains: int
    of_model: dict[str, float]


def came_true(rows: Sequence[Gain]) -> Came | None:
    """The share of promised gains that came true; None where nothing was promised.

    Counted are gains predicted above zero, which a search would have taken. Each model on a chip counts once, whatever
    the number of its groups and gains.
    """
    taken = [gain for gain in rows if gain.predicted > LOG_TIME_TOLERANCE]
    if not taken:
        return None
    names = np.array([f"{gain.model} on {gain.device}" for gain in taken])
    counted = Counter(names.tolist())
    weights = np.array([1.0 / counted[name] for name in names])
    predicted = np.array([gain.predicted for gain in taken])
    measured = np.array([gain.measured for gain in taken])

    def slope(marks: npt.NDArray[np.bool_]) -> float:
        sizes = (weights * predicted)[marks]
        return float(sizes @ measured[marks] / (sizes @ predicted[marks]))

    raw, models = slope(np.ones(len(names), dtype=bool)), sorted(counted)
    others = np.array([slope(names != name) for name in models]) if len(models) > 1 else None
    # Jackknife: the variance of n left-out estimates times n - 1.
    sigma = None if others is None else float(np.std(others)) * (len(models) - 1) ** 0.5
    return Came(raw, min(1.0, max(0.0, raw)), sigma, len(taken), {name: slope(names == name) for name in models})


def realised_of(rows: Sequence[Gain]) -> dict[str, Any] | None:
    """The share for the coverage table, three digits, with what it was measured on; None of fewer than two models."""
    every = came_true(rows)
    if every is None or every.sigma is None:
        return None
    parts = {
        "degrees": came_true([gain for gain in rows if gain.axis != FEATURE]),
        "features": came_true([gain for gain in rows if gain.axis == FEATURE]),
    }
    return {
        **_rounded(every),
        "n": len(every.of_model),
        "how": HOW.format(gains=every.gains, models=len(every.of_model)),
        **{name: _rounded(part) for name, part in parts.items() if part is not None},
    }


def _rounded(came: Came) -> dict[str, Any]:
    return {
        "share": rounded(came.share, 3),
        "raw": rounded(came.raw, 3),
        "sigma": None if came.sigma is None else rounded(came.sigma, 3),
        "gains": came.gains,
        "of_model": {name: rounded(value, 3) for name, value in came.of_model.items()},
    }
