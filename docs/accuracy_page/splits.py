"""Fits to small clusters that predict large ones, and how often the 80 % interval holds the measured time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import differences, values_of
from autodeploy.calibration.profile_fit import calibrate
from autodeploy.calibration.record_prediction import fits_time
from autodeploy.calibration.shipped.class_spreads import (
    class_spreads,
    covering,
    growths_on,
    ranks_per_doubling,
    run_row,
)
from autodeploy.calibration.shipped.left_out_widths import projected, variances_of
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.calibration.shipped.unseen_classes import spread_table
from autodeploy.costs.prediction_spread import ELSEWHERE, Z80, spread_of
from docs.accuracy_page.errors import Errors, errors_of, residuals_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats
    from docs.accuracy_page.sets import Split


@dataclass(frozen=True, slots=True)
class Held:
    """One measured run beside the 80 % interval of its prediction.

    residual : log(predicted / measured) of step time. half_width : of the interval, in the same logarithm.
    """

    record: Record
    residual: float
    half_width: float

    @property
    def filled(self) -> float:
        """Error over the half width: above one the run lies outside."""
        return abs(self.residual) / self.half_width

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.filled <= 1.0


@dataclass(frozen=True, slots=True)
class SplitErrors:
    """What a split gave: records fitted to, errors on those predicted, and their 80 % intervals."""

    split: Split
    fitted: int
    errors: Errors
    held: tuple[Held, ...]


@dataclass(frozen=True)
class SmallFit:
    """A fit to the small clusters of a profile, and its residuals on the large ones with their variances [large].

    elsewhere : the coverage table of all other chips.
    """

    calibration: Calibration
    large: tuple[Record, ...]
    residuals: Floats
    variances: Floats
    elsewhere: Mapping[str, Any]

    @classmethod
    def of(cls, split: Split, records: Sequence[Record], calibrations: Iterable[Calibration]) -> SmallFit:
        """Fits and predicts; `calibrations`: of all chips."""
        sized = [(r, int(r.cluster.num_npus or 1)) for r in records if r.cluster.profile == split.profile]
        sized = [(r, cards) for r, cards in sized if fits_time(r)]
        fitted = calibrate([r for r, cards in sized if cards <= split.at_most], split.profile)
        large = tuple(r for r, cards in sized if cards >= split.at_least)
        parameters, base = fitted.fit.parameters, fitted.profile.efficiency
        linear = differences(lambda log_factors: residuals_at(large, values_of(parameters, log_factors, base)))
        residuals, slopes = linear(fitted.fit.log_factors)
        variances = np.asarray(projected(slopes, fitted.fit.covariance))
        return cls(fitted, large, residuals, variances, table_without(split.profile, calibrations))

    @cached_property
    def _known(self) -> Mapping[str, Any]:
        fitted = self.calibration
        return with_runs(self.elsewhere, fitted, variances_of(fitted), np.ones(len(fitted.records), dtype=bool))

    @property
    def slope(self) -> float:
        """Standard deviation that a doubling of the ranks adds, by the small clusters and all other chips."""
        return float(self._known["ranks_per_doubling"][self.calibration.profile.family])

    def intervals(self) -> tuple[Held, ...]:
        """Every large run beside its interval, as of a plan that nobody has run."""
        with covering(self._known):
            return tuple(map(held, self.large, self.residuals, self.variances))


def size_split(split: Split, records: Sequence[Record], calibrations: Iterable[Calibration]) -> SplitErrors:
    """Fits to the small clusters of a profile and predicts the large ones; intervals know the small ones and the other
    chips.
    """
    small = SmallFit.of(split, records, calibrations)
    return SplitErrors(split, len(small.calibration.records), errors_of(small.residuals), small.intervals())


def share_inside(intervals: Sequence[Held]) -> float:
    """Share of runs inside their intervals."""
    return float(np.mean([each.inside for each in intervals]))


def left_out_intervals(
    calibration: Calibration, calibrations: Iterable[Calibration], of_parameters: Floats | None = None
) -> tuple[Held, ...]:
    """Every record beside its 80 % interval, prediction and interval both from the other families and other chips.

    calibrations : of all chips. of_parameters : variance of each record from the parameters; without it, that of the
        fits without its family.
    """
    variances = variances_of(calibration) if of_parameters is None else of_parameters
    families = np.array([family_of(r) for r in calibration.records])
    elsewhere = table_without(calibration.profile.name, calibrations)
    found: dict[int, Held] = {}
    for family in np.unique(families):
        with covering(with_runs(elsewhere, calibration, variances, families != family)):
            for place in np.flatnonzero(families == family):
                record, residual = calibration.records[place], calibration.left_out[place]
                found[int(place)] = held(record, residual, variances[place])
    return tuple(found[place] for place in range(len(families)))


@cache
def rows_by_id() -> Mapping[str, Mapping[str, Any]]:
    """What each shipped record ran, in the axes of the coverage table."""
    return {record.id: run_row(record) for record in shipped_records()}


def table_without(profile: str, calibrations: Iterable[Calibration]) -> dict[str, Any]:
    """The coverage table of all chips but one."""
    others = [each for each in calibrations if each.profile.name != profile]
    rows = {r.id: {**rows_by_id()[r.id], "fit": each.profile.family} for each in others for r in each.records}
    return spread_table(others, rows, ())


def with_runs(
    elsewhere: Mapping[str, Any], fitted: Calibration, variances: Floats, kept: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    """That table with some records of the chip's fit: the spread of its classes, and how errors grow with ranks."""
    family, slopes = fitted.profile.family, elsewhere["ranks_per_doubling"]
    rows = [{**rows_by_id()[r.id], "fit": family} for r, mark in zip(fitted.records, kept, strict=True) if mark]
    slope = ranks_per_doubling(growths_on(fitted, rows_by_id()), slopes[ELSEWHERE] ** 2)
    by_chip = slopes | {family: slope}
    classes = class_spreads(rows, fitted.left_out[kept], variances[kept], elsewhere["classes"], by_chip)
    return {
        "classes": elsewhere["classes"] | {f"{family}/{name}": each for name, each in classes.items()},
        "ranks_per_doubling": by_chip,
        "records": [*elsewhere["records"], *rows],
    }


def held(record: Record, residual: float, parameter_variance: float) -> Held:
    """A run beside its interval by the table in use, as plans have theirs."""
    row = rows_by_id()[record.id]
    spread = spread_of(row["family"], row, float(parameter_variance))
    return Held(record, float(residual), Z80 * spread.log_sigma)
