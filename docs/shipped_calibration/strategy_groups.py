"""Timed runs of one model on the same cards and batch in different strategies, predicted by fits that did not see some
of the records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.fit import refit, values_of
from autodeploy.calibration.profile_fit import fitted_together
from autodeploy.calibration.record_prediction import counts_for_time, measured_step_s, predict_record
from autodeploy.specs.software import release_of, stack_of
from autodeploy.stack.features import FEATURES
from docs.shipped_calibration.run_rows import run_row
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
    """What a launch script says: two runs of it on two releases are one strategy."""
    named = sorted(FEATURES.keys() & {*record.strategy.features})
    return record.strategy.model_copy(update={"features": tuple(named)}).model_dump_json(exclude_none=True)
