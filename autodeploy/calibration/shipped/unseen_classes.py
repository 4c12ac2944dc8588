"""Spreads of predictions of what no run is like: chips without runs, and kinds of runs that no fit sees.

Each is what lay between such runs and their prediction where they were left out whole: classes of pre-training by fits
without them, other kinds by source. Fits see pre-training alone: what formulas lack for update phases, tuning and fully
sharded runs is a property of a source, whose rows count once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.fit import refit
from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.record_prediction import (
    counts_for_time,
    factors_of,
    fits_time,
    kind_of_record,
    measured_step_s,
    predict_record,
    record_spread,
)
from autodeploy.calibration.shipped.class_spreads import (
    HALVINGS,
    INTERVAL_COVERAGE,
    LEAST_UNCALIBRATED,
    class_spreads,
    covering,
    growths_on,
    log_sigma_of,
    run_row,
    slopes_by_chip,
    unexplained_variance,
    weights_of,
)
from autodeploy.calibration.shipped.left_out_widths import projected, refit_covariance, variances_of
from autodeploy.costs.inputs.context import PRETRAINING
from autodeploy.costs.prediction_spread import UNCALIBRATED, Z80, distance_variances
from autodeploy.costs.steps.scenarios import times_of_host
from autodeploy.kit.errors import SpecError
from autodeploy.specs.software import stack_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.calibration.record_prediction import Prediction
    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats

FACTORS = np.exp(np.linspace(math.log(0.2), math.log(5.0), 9))  # of the cost of a new shape, tried for one source


def spread_table(
    calibrations: Sequence[Calibration], rows: Mapping[str, Mapping[str, Any]], runs: Sequence[Unseen]
) -> dict[str, Any]:
    """Entries of the coverage table that say how far predictions are off: by class, and beyond all classes.

    rows : of every record of the calibrations, by name. runs : of other kinds.
    """
    by_chip = slopes_by_chip({each.profile.family: growths_on(each, rows) for each in calibrations})
    between = uncalibrated(calibrations, rows, by_chip)
    classes = {**between}
    for calibration in calibrations:
        kept = [rows[r.id] for r in calibration.records]
        spreads = class_spreads(kept, calibration.left_out, variances_of(calibration), between, by_chip)
        classes |= {f"{calibration.profile.family}/{name}": each for name, each in spreads.items()}
    table = {
        "classes": classes,
        "ranks_per_doubling": by_chip,
        "records": list(rows.values()),
    }
    return table | beyond_table(runs, table)


def uncalibrated(
    calibrations: Sequence[Calibration], rows: Mapping[str, Mapping[str, Any]], by_chip: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Entries of runs on chips without runs of their kind, dense or with experts: the spread between classes.

    Notes
    -----
    Each class of runs (stack, chip, dense or with experts) is predicted by the other runs of its fit. The spread is
    that of what this leaves over, the n configurations of a class counting as the square root of n. What a run's own
    numbers and its distance from all runs leave uncertain beyond the means of these adds to it, as it does to the
    spread of a class with runs. by_chip : growths with ranks.
    """
    known: dict[bool, list[tuple[Mapping[str, Any], float, float]]] = {moe: [] for moe in UNCALIBRATED}
    for calibration in calibrations:
        fit, labels = calibration.fit, [class_of(record) for record in calibration.records]
        for label in sorted(set(labels)):
            inside = np.array([each == label for each in labels])
            residuals = fit.residuals[inside] + fit.jacobian[inside] @ refit(fit, ~inside)
            of_fit = projected(fit.jacobian[inside], refit_covariance(fit, ~inside))
            for place, residual, variance in zip(np.flatnonzero(inside), residuals, of_fit, strict=True):
                row = {**rows[calibration.records[place].id], "model_family": label}
                known[bool(row["moe"])].append((row, float(residual), float(variance)))
    found = {}
    for moe, name in UNCALIBRATED.items():
        of_kind = known[moe] or known[not moe]
        runs = [row for row, _, _ in of_kind]
        weights = weights_of(runs)
        residuals, variances = (np.array([each[place] for each in of_kind]) for place in (1, 2))
        distances = distance_variances(runs, [str(row["model_family"]) for row in runs], by_chip)
        if not of_kind:
            judged = {"log_sigma": LEAST_UNCALIBRATED, "unexplained_variance": LEAST_UNCALIBRATED**2}
            found[name] = {**judged, "n": 0, "parameter_variance": 0.0, "distance_variance": 0.0}
            continue
        found[name] = {
            "log_sigma": rounded(log_sigma_of(residuals, weights)),
            "n": len({row["model_family"] for row in runs}),
            "parameter_variance": rounded(float(np.average(variances, weights=weights))),
            "distance_variance": rounded(float(np.average(distances, weights=weights))),
            "unexplained_variance": rounded(unexplained_variance(residuals, variances + distances, weights)),
        }
    return found


def class_of(record: Record) -> str:
    """Stack, kind of run, chip, and dense or with experts."""
    kind = "experts" if record.model.is_moe else "dense"
    return f"{stack_of(record)}, {kind_of_record(record)}, {record.cluster.profile}, {kind}"


# Kinds of runs that no fit sees.
@dataclass(frozen=True)
class Unseen:
    """A run that no fit sees: its source, and log(measured / predicted) of step time, at each of FACTORS where the
    cost of a new shape counts, else once; with its prediction, which has slopes.
    """

    record: Record
    kind: str
    source: str
    at: Floats
    prediction: Prediction

    @property
    def changes(self) -> bool:
        """Whether the cost of a new shape counts."""
        return len(self.at) > 1


def unseen_runs(records: Iterable[Record]) -> list[Unseen]:
    """Runs of other kinds than pre-training whose time counts, as the shipped profiles predict them."""
    found = []
    for record in records:
        kind, measured = kind_of_record(record), measured_step_s(record)
        if not counts_for_time(record) or fits_time(record) or kind == PRETRAINING or measured is None:
            continue
        try:
            predicted = predict_record(record, factors_of=factors_of)
        except SpecError:
            continue
        factors = FACTORS if predicted.context.host.changing_shapes else np.ones(1)
        times = times_of_host(predicted.candidate, predicted.context, predicted.layout, factors)
        found.append(Unseen(record, kind, source_of_text(record.source), np.log(measured / times), predicted))
    return found


def source_of_text(text: str) -> str:
    """The repository or report that a measurement's source names."""
    return text.removeprefix("github ").split("@")[0].split()[0]


def residuals_of(runs: Sequence[Unseen], others: Sequence[Unseen]) -> Floats:
    """log(measured / predicted) of each run, by the cost of a new shape that others say [runs].

    That cost is fitted to update phases: it is the one under which the others' mean residuals by source have the least
    squares. Without others it stays.
    """
    place = shape_factor(others)
    if place is None:
        return np.array([np.interp(0.0, np.log(FACTORS), run.at) if run.changes else run.at[0] for run in runs])
    return np.array([run.at[place] if run.changes else run.at[0] for run in runs])


def shape_factor(runs: Sequence[Unseen]) -> int | None:
    """Place in FACTORS of the cost of a new shape that has the least squares of the sources' mean residuals."""
    sources = sorted({run.source for run in runs if run.changes})
    means = [np.mean([r.at for r in runs if r.changes and r.source == each], axis=0) for each in sources]
    return int(np.argmin(np.sum(np.square(means), axis=0))) if means else None


def left_out_residuals(runs: Sequence[Unseen]) -> Floats:
    """`residuals_of` each run by the runs of all other sources [runs]."""
    return np.array([residuals_of([run], [r for r in runs if r.source != run.source])[0] for run in runs])


def sides(means: Sequence[float]) -> tuple[float, float]:
    """Half of an 80 % interval to shorter and to longer times, in log time, from the mean residual of each source.

    Each side has the mean square of its own sources and, as one source more, that of all: Student's t with as many
    degrees of freedom.
    """
    values = np.asarray(means)
    every = float(np.mean(values**2))
    down, up = (
        student_80(len(side) + 1) * math.sqrt((float(np.sum(side**2)) + every) / (len(side) + 1))
        for side in (values[values < 0], values[values > 0])
    )
    return down, up


def student_80(freedom: int) -> float:
    """Half of the 80 % interval of Student's t, by bisection of its distribution.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4: probability between -t and t
    as a finite sum over powers of the cosine of theta, tan(theta) = t / sqrt(freedom).
    """
    low, high = 0.0, math.pi / 2.0
    for _ in range(HALVINGS):
        theta = (low + high) / 2.0
        low, high = (theta, high) if _student_inside(theta, freedom) < INTERVAL_COVERAGE else (low, theta)
    return math.tan(low) * math.sqrt(freedom)


def _student_inside(theta: float, freedom: int) -> float:
    """Probability between both signs of sqrt(freedom) tan(theta)."""
    odd = freedom % 2
    term, total = math.cos(theta) if odd else 1.0, 0.0
    for power in range(1 + odd, freedom, 2):  # each term has two powers of the cosine more
        total += term
        term *= power / (power + 1.0) * math.cos(theta) ** 2
    return 2.0 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total


def by_source(runs: Sequence[Unseen], values: Floats) -> dict[str, Floats]:
    """Rows of each source [runs of it, ...]."""
    sources = sorted({run.source for run in runs})
    return {s: np.array([v for r, v in zip(runs, values, strict=True) if r.source == s]) for s in sources}


def beyond_table(runs: Sequence[Unseen], table: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of the coverage table on kinds of runs that no fit sees: `beyond`, and their rows as `others`.

    table : the other entries, by which each run's own uncertainty counts: what a run has beyond the mean of these adds
    to what lies between the sources and within them.
    """
    if not runs:
        return {}
    residuals = left_out_residuals(runs)
    of_sources = by_source(runs, residuals)
    shorter, longer = sides([float(each.mean()) for each in of_sources.values()])
    within = float(np.mean([each.var() for each in of_sources.values()]))
    with covering(table):
        own = np.array([np.square(record_spread(run.prediction).own) for run in runs])
    explained = np.mean([each.mean(axis=0) for each in by_source(runs, own).values()], axis=0)
    rows: list[Mapping[str, Any]] = [
        {**run_row(run.record), "kind": run.kind, "left_out": rounded(-float(value), 4)}
        for run, value in zip(runs, residuals, strict=True)
    ]
    beyond = {
        "shorter": rounded(shorter),
        "longer": rounded(longer),
        "within": rounded(Z80 * math.sqrt(within)),
        "explained": [rounded(float(square)) for square in explained],
        "seen": rounded(float(residuals.max())),
        "sources": len(of_sources),
    }
    return {"beyond": beyond, "others": rows}
