"""Timed runs of one model on the same cards and batch in different strategies, predicted by fits that saw some of them.

Gains that came true.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.evidence import FEATURE, counts, is_used
from autodeploy.calibration.fit import refit, values_of
from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.profile_fit import fitted_together
from autodeploy.calibration.record_prediction import counts_for_time, measured_step_s, predict_record
from autodeploy.calibration.shipped.class_spreads import run_row
from autodeploy.costs.prediction_spread import RUN_AXES
from autodeploy.specs.software import release_of, stack_of
from autodeploy.stack.features import FEATURES
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.calibration.record_prediction import Prediction
    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats


LOG_TIME_TOLERANCE = 1e-6  # of log times: strategies that the formulas do not tell apart


@dataclass(frozen=True)
class StrategyGroup:
    """Runs that share model, cards, batch, sequence, number format and stack.

    rows : of the coverage table, one a record.
    """

    records: tuple[Record, ...]
    rows: tuple[Mapping[str, Any], ...]

    @property
    def model(self) -> str:
        """The model's name."""
        return self.records[0].model.name

    @property
    def device(self) -> str:
        """The chip that it ran on."""
        return str(self.rows[0]["device"])

    @property
    def family(self) -> str:
        """The family of the chip."""
        return str(self.rows[0]["family"])

    @property
    def name(self) -> str:
        """In words."""
        first = self.records[0]
        return f"{self.model} on {first.cluster.num_npus} {self.device}, {first.training.precision}"

    @property
    def releases(self) -> int:
        """Releases of the software that the records tell apart: what their times differ by beside the strategy."""
        return len({_release(record) for record in self.records})

    @cached_property
    def log_measured(self) -> Floats:
        """Logarithm of the measured seconds of a step [records]."""
        return np.log([measured_step_s(record) or math.nan for record in self.records])


def _release(record: Record) -> tuple[str, str]:
    return record.source.split("@")[0], release_of(record).band


def strategy_groups(records: Iterable[Record]) -> list[StrategyGroup]:
    """All groups of at least two records that count for time, by name."""
    by_work: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        if counts_for_time(record):
            by_work.setdefault(_key(record), []).append(record)
    several = [members for members in by_work.values() if len(members) > 1]
    groups = [StrategyGroup(tuple(each), tuple(run_row(record) for record in each)) for each in several]
    return sorted(groups, key=lambda group: (group.name, group.records[0].id))


def _key(record: Record) -> tuple[object, ...]:
    cluster, training = record.cluster, record.training
    where = record.model.name.lower(), cluster.profile, cluster.device, cluster.num_npus, stack_of(record)
    return (*where, training.global_batch_size.value, training.seq_length, training.precision)


def calibration_of(profile_name: str, calibrations: Iterable[Calibration]) -> Calibration | None:
    """The fit that a profile's predictions rest on; None where they rest on none."""
    return next((c for c in calibrations if profile_name in fitted_together(c.profile.name)), None)


@dataclass(frozen=True)
class Without:
    """Predictions by a fit that has not seen some records; the model is linear around the full fit where it was fitted.

    calibration : None for chips whose runs are in no fit.
    """

    calibration: Calibration | None
    fitted: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, calibration: Calibration | None, out: Callable[[Record], bool]) -> Without:
        """The fit without the records that are `out`."""
        seen = calibration.records if calibration else ()
        return cls(calibration, np.array([not out(record) for record in seen], dtype=bool))

    @cached_property
    def _change(self) -> Floats:
        assert self.calibration is not None
        return refit(self.calibration.fit, self.fitted)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {r.id: n for n, r in enumerate(self.calibration.records)} if self.calibration else {}

    def log_times(self, group: StrategyGroup) -> Floats:
        """Logarithm of the predicted seconds of a step [records]."""
        times = [self._log_time(r, float(m)) for r, m in zip(group.records, group.log_measured, strict=True)]
        return np.array(times, dtype=np.float64)

    def _log_time(self, record: Record, log_measured: float) -> float:
        place = self._places.get(record.id)
        if self.calibration is None or place is None:
            return math.log(self.predict(record).step_time_s)
        fit = self.calibration.fit
        return log_measured + float(fit.residuals[place] + fit.jacobian[place] @ self._change)

    def predict(self, record: Record) -> Prediction:
        """A record by this fit, not linear."""
        values = self.values(record.cluster.profile)
        return predict_record(record, efficiency=values, calibrated=values is None)

    def values(self, profile_name: str) -> dict[str, float] | None:
        """Efficiencies of a profile by this fit; None where no fit moves them: as they ship."""
        if self.calibration is None:
            return None
        fit = self.calibration.fit
        base = load_profile(profile_name, calibrated=False).efficiency
        return values_of(fit.parameters, fit.log_factors + self._change, base)


def told_apart(group: StrategyGroup, log_predicted: Floats) -> list[list[int]]:
    """Places of a group's records by strategy [strategies], the fastest by these times first.

    Strategies that the formulas do not tell apart are one, and so is one script on several releases.
    """
    classes: list[list[int]] = []
    for place in np.argsort(log_predicted, kind="stable"):
        alike = next((s for s in classes if _same(group, log_predicted, s[0], int(place))), None)
        if alike is None:
            classes.append([int(place)])
        else:
            alike.append(int(place))
    return classes


def _same(group: StrategyGroup, log_predicted: Floats, one: int, other: int) -> bool:
    near = abs(float(log_predicted[one] - log_predicted[other])) < LOG_TIME_TOLERANCE
    return near or _said(group.records[one]) == _said(group.records[other])


def _said(record: Record) -> str:
    """Statements of a launch script: two runs of it on two releases are one strategy."""
    named = sorted(FEATURES.keys() & {*record.strategy.features})
    return record.strategy.model_copy(update={"features": tuple(named)}).model_dump_json(exclude_none=True)


LEAST_FITTED = 10  # records that a fit must have seen for its promise to count

HOW = "{gains} gains on {models} models that fits promised which had seen no run with the feature or degree"


@dataclass(frozen=True, slots=True)
class Gain:
    """Gain of a feature or degree, log(time without / time with), in one group of runs that differ in strategy.

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
    """Promised gains that came true.

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
