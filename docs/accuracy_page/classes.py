"""Intervals of classes of runs that are left out whole, beside one global width and the nearest record's error.

A class is a software stack, a kind of run, a chip, and dense or with experts. Prediction and interval come from the
runs of the other classes alone, by the product's own path; configurations count once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.profile_fit import configuration_of
from autodeploy.calibration.record_prediction import record_spread
from autodeploy.calibration.shipped.class_spreads import INTERVAL_COVERAGE, covering, log_sigma_of, run_row
from autodeploy.calibration.shipped.left_out_widths import projected, refit_covariance
from autodeploy.calibration.shipped.tables import rows_of
from autodeploy.calibration.shipped.unseen_classes import class_of, residuals_of, spread_table, unseen_runs
from autodeploy.costs.prediction_spread import LARGEST_RATIO, Z80, coverage, nearest_log_error, spread_of
from docs.accuracy_page.aims import Line
from docs.accuracy_page.refits import residuals_without, without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.calibration.shipped.unseen_classes import Unseen
    from autodeploy.costs.prediction_spread import Spread
    from autodeploy.specs.record import Record

ALPHA = 1.0 - INTERVAL_COVERAGE
LEAST_INSIDE = 0.7
NAMES = {
    "ours": "as predictions have them",
    "global": "one width of all other classes",
    "nearest": "the nearest record's error",
}


@dataclass(frozen=True, slots=True)
class Range:
    """Ends of an interval over the prediction, in log time."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a residual lies inside."""
        return self.low <= value <= self.high

    def score(self, value: float) -> float:
        """Interval score: the width, and 2 / alpha times what a residual lies outside.

        Source: Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, 2007, equation 43.
        """
        outside = max(self.low - value, 0.0) + max(value - self.high, 0.0)
        return self.high - self.low + 2.0 / ALPHA * outside


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A configuration of a class that was left out: log(measured / predicted), its interval, the nearest's error."""

    of_class: str
    configuration: str
    residual: float
    ours: Range
    nearest: Range


@dataclass(frozen=True, slots=True)
class Scores:
    """Of intervals: share that holds, median of upper over lower end, mean interval score on log time."""

    inside: float
    ratio: float
    score: float

    @classmethod
    def of(cls, residuals: Sequence[float], ranges: Sequence[Range]) -> Scores:
        """Scores of these residuals beside these intervals."""
        pairs = list(zip(residuals, ranges, strict=True))
        return cls(
            float(np.mean([each.holds(value) for value, each in pairs])),
            float(np.median([math.exp(each.high - each.low) for each in ranges])),
            float(np.mean([each.score(value) for value, each in pairs])),
        )


def left_out_classes(calibrations: Iterable[Calibration], records: Sequence[Record]) -> list[LeftOut]:
    """Every configuration by runs of other classes than its own, one a configuration: the one in the middle."""
    fitted, runs = list(calibrations), unseen_runs(records)
    rows = rows_of(fitted, records)
    classes = {class_of(r) for each in fitted for r in each.records} | {class_of(run.record) for run in runs}
    found = [one for name in sorted(classes) for one in _left_out(name, fitted, rows, runs)]
    groups: dict[tuple[str, str], list[LeftOut]] = {}
    for one in found:
        groups.setdefault((one.of_class, one.configuration), []).append(one)
    return [sorted(group, key=lambda one: one.residual)[len(group) // 2] for group in groups.values()]


def _left_out(
    name: str, fitted: Sequence[Calibration], rows: Mapping[str, Mapping[str, Any]], runs: Sequence[Unseen]
) -> list[LeftOut]:
    def out(record: Record) -> bool:
        return class_of(record) == name

    rest = [_rest(each, out) for each in fitted if not all(map(out, each.records))]
    others, own = [run for run in runs if not out(run.record)], [run for run in runs if out(run.record)]
    kept = {r.id: rows[r.id] for each in rest for r in each.records}
    found = []
    with covering({**coverage(), **spread_table(rest, kept, others)}):
        for each in fitted:
            marks = np.array([out(record) for record in each.records])
            if marks.any():
                residuals = residuals_without(each, out)[marks]
                variances = projected(each.fit.jacobian[marks], refit_covariance(each.fit, ~marks))
                inside = [record for record, mark in zip(each.records, marks, strict=True) if mark]
                for record, residual, variance in zip(inside, residuals, variances, strict=True):
                    row = rows[record.id]
                    spread = spread_of(row["family"], row, float(variance))
                    found.append(_one(name, record, -float(residual), spread, row))
        for run, residual in zip(own, residuals_of(own, others), strict=True):
            spread, row = record_spread(run.prediction), {**run_row(run.record), "kind": run.kind}
            found.append(_one(name, run.record, float(residual), spread, row))
    return found


def _rest(calibration: Calibration, out: Callable[[Record], bool]) -> Calibration:
    return without(calibration, out) if any(map(out, calibration.records)) else calibration


def _one(name: str, record: Record, residual: float, spread: Spread, run: Mapping[str, Any]) -> LeftOut:
    low, high = map(math.log, spread.interval(1.0))
    error = abs(nearest_log_error(run["family"], run) or 0.0)
    return LeftOut(name, configuration_of(record), residual, Range(low, high), Range(-error, error))


def ranges_of(found: Sequence[LeftOut]) -> dict[str, list[Range]]:
    """The intervals of each kind [found]: the global one has the width that holds 80 % of all other classes' runs."""
    widths = {}
    for name in {one.of_class for one in found}:
        widths[name] = Z80 * log_sigma_of(np.array([one.residual for one in found if one.of_class != name]))
    return {
        "ours": [one.ours for one in found],
        "global": [Range(-widths[one.of_class], widths[one.of_class]) for one in found],
        "nearest": [one.nearest for one in found],
    }


def scores(found: Sequence[LeftOut]) -> dict[str, Scores]:
    """Scores of each kind of interval over all configurations."""
    residuals = [one.residual for one in found]
    return {kind: Scores.of(residuals, ranges) for kind, ranges in ranges_of(found).items()}


def scores_by_class(found: Sequence[LeftOut]) -> dict[str, tuple[int, dict[str, Scores]]]:
    """Configurations of each class, and the scores of each kind of interval."""
    ranges = ranges_of(found)
    by_class = {}
    for name in sorted({one.of_class for one in found}):
        places = [number for number, one in enumerate(found) if one.of_class == name]
        residuals = [found[number].residual for number in places]
        by_class[name] = (
            len(places),
            {kind: Scores.of(residuals, [each[number] for number in places]) for kind, each in ranges.items()},
        )
    return by_class


def class_lines(found: Sequence[LeftOut]) -> list[Line]:
    """Figures of the scoreboard on intervals of classes that were left out whole."""
    each = scores(found)
    ours, others = each["ours"], [each["global"].score, each["nearest"].score]
    title = (
        f"80 % intervals, {len(found)} configurations of {len({one.of_class for one in found})} classes, left out whole"
    )
    rivals = f"{others[0]:.3f} ({NAMES['global']}), {others[1]:.3f} ({NAMES['nearest']})"
    return [
        Line(f"{title}: inside", f"{100 * ours.inside:.1f} %", ">= 70 %", ours.inside >= LEAST_INSIDE),
        Line("  median of upper over lower end", f"{ours.ratio:.2f}", "6", ours.ratio <= LARGEST_RATIO),
        Line("  mean interval score of log time", f"{ours.score:.3f}", f"below {rivals}", ours.score < min(others)),
    ]
