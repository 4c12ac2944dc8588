"""Fits to small clusters that predict large ones, and how often the 80 % interval holds the measured time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import differences, values_of
from autodeploy.calibration.profile_fit import calibrate
from autodeploy.calibration.record_prediction import fits_time
from autodeploy.calibration.shipped.class_spreads import class_spread, run_row, spread_of_all
from autodeploy.calibration.shipped.left_out_widths import projected, variances_of
from autodeploy.calibration.shipped.strategy_groups import ranks_per_doubling, rehearsals
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.costs.prediction_spread import PER_DOUBLING, PER_UNSEEN, Z80, is_carried, widened
from docs.accuracy_page.errors import Errors, errors_of, residuals_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    """A fit to the small clusters of a profile, and its residuals on the large ones with their variances [large]."""

    calibration: Calibration
    large: tuple[Record, ...]
    residuals: Floats
    variances: Floats

    @classmethod
    def of(cls, split: Split, records: Sequence[Record]) -> SmallFit:
        """Fits and predicts."""
        sized = [(r, int(r.cluster.num_npus or 1)) for r in records if r.cluster.profile == split.profile]
        sized = [(r, cards) for r, cards in sized if fits_time(r)]
        fitted = calibrate([r for r, cards in sized if cards <= split.at_most], split.profile)
        large = tuple(r for r, cards in sized if cards >= split.at_least)
        parameters, base = fitted.fit.parameters, fitted.profile.efficiency
        linear = differences(lambda log_factors: residuals_at(large, values_of(parameters, log_factors, base)))
        residuals, slopes = linear(fitted.fit.log_factors)
        return cls(fitted, large, residuals, np.asarray(projected(slopes, fitted.fit.covariance)))

    @cached_property
    def slope(self) -> float:
        """Standard deviation that a doubling of the ranks adds, by the small clusters alone."""
        return ranks_per_doubling(rehearsals(self.calibration, rows_by_id()))

    def intervals(self) -> tuple[Held, ...]:
        """Every large run beside its interval, as of a plan that nobody has run."""
        rows, fitted = rows_by_id(), self.calibration
        basis = Basis(tuple(rows[r.id] for r in fitted.records), fitted.left_out, variances_of(fitted))
        return tuple(
            Held(r, float(residual), Z80 * log_sigma(rows[r.id], basis, self.slope, float(variance)))
            for r, residual, variance in zip(self.large, self.residuals, self.variances, strict=True)
        )


def size_split(split: Split, records: Sequence[Record]) -> SplitErrors:
    """Fits to the small clusters of a profile and predicts the large ones; intervals know the small ones alone."""
    small = SmallFit.of(split, records)
    return SplitErrors(split, len(small.calibration.records), errors_of(small.residuals), small.intervals())


def share_inside(intervals: Sequence[Held]) -> float:
    """Share of runs inside their intervals."""
    return float(np.mean([each.inside for each in intervals]))


def left_out_intervals(calibration: Calibration, of_parameters: Floats | None = None) -> tuple[Held, ...]:
    """Every record beside its 80 % interval, prediction and interval both from the other families alone.

    of_parameters : variance of each record from the parameters; without it, that of the fits without its family.
    """
    variances = variances_of(calibration) if of_parameters is None else of_parameters
    rows = rows_by_id()
    families = np.array([family_of(r) for r in calibration.records])
    slope = ranks_per_doubling(rehearsals(calibration, rows))
    intervals = []
    for number, record in enumerate(calibration.records):
        others = families != families[number]
        basis = Basis(
            tuple(rows[r.id] for r, other in zip(calibration.records, others, strict=True) if other),
            calibration.left_out[others],
            variances[others],
        )
        sigma = log_sigma(rows[record.id], basis, slope, float(variances[number]))
        intervals.append(Held(record, float(calibration.left_out[number]), Z80 * sigma))
    return tuple(intervals)


@dataclass(frozen=True)
class Basis:
    """Records that an interval rests on: what they ran, left-out residuals and the parameters' part of them."""

    rows: tuple[Mapping[str, Any], ...]
    left_out: Floats
    parameter_variance: Floats


@cache
def rows_by_id() -> Mapping[str, Mapping[str, Any]]:
    """What each shipped record ran, in the axes of the coverage table."""
    return {record.id: run_row(record) for record in shipped_records()}


def log_sigma(run: Mapping[str, Any], basis: Basis, slope: float, parameter_variance: float) -> float:
    """Log standard deviation of a prediction of `run` from the records in `basis` alone, as plans' intervals have it.

    Spread of left-out residuals of the class, and in quadrature what the run's parameters add beyond the class's and
    what lies beyond its records.
    """
    if is_carried(run["family"], run, basis.rows):
        spread = spread_of_all(basis.rows, basis.left_out, basis.parameter_variance)
    else:
        spread = class_spread(run, basis.rows, basis.left_out, basis.parameter_variance)
    variance = spread.variance_with(parameter_variance)
    return math.sqrt(widened(variance, run, spread.records, {"ranks": slope, **PER_DOUBLING}, PER_UNSEEN)[0])
