"""Errors of kinds of runs that no fit sees, by source, each predicted without itself.

Fits see pre-training alone. Update phases, tuning and fully sharded runs are predicted by the same formulas; what those
lack for them is a property of a source (its stack, its launch), so that its rows count once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.record_prediction import (
    counts_for_time,
    fits_time,
    kind_of_record,
    measured_step_s,
    predict_record,
)
from autodeploy.calibration.shipped.class_spreads import run_row
from autodeploy.costs.inputs.context import PRETRAINING
from autodeploy.costs.prediction_spread import Z80
from autodeploy.costs.steps.scenarios import new_shape_times
from autodeploy.kit.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats

FACTORS = np.exp(np.linspace(math.log(0.2), math.log(5.0), 9))  # of the cost of a new shape, tried for one source


@dataclass(frozen=True)
class Unseen:
    """A run that no fit sees: its source, and log(measured / predicted) of step time, at each of FACTORS where the
    cost of a new shape counts, else once.
    """

    record: Record
    kind: str
    source: str
    at: Floats

    @property
    def changes(self) -> bool:
        """Whether the cost of a new shape counts."""
        return len(self.at) > 1


def unseen_runs(records: Iterable[Record]) -> list[Unseen]:
    """Runs of other kinds than pre-training whose time counts, as the shipped profiles predict them."""
    found = []
    for record in records:
        if not counts_for_time(record) or fits_time(record):
            continue
        try:
            predicted = predict_record(record)
        except SpecError:
            continue
        kind, measured = kind_of_record(record), measured_step_s(record)
        if kind == PRETRAINING or measured is None:
            continue
        factors = FACTORS if predicted.context.host.changing_shapes else np.ones(1)
        times = new_shape_times(predicted.candidate, predicted.context, predicted.layout, factors)
        source = record.source.split("@")[0].split()[0]
        found.append(Unseen(record, kind, source, np.log(measured / times)))
    return found


def left_out_residuals(runs: Sequence[Unseen]) -> Floats:
    """log(measured / predicted) of each run, by the cost of a new shape that the other sources say [runs].

    That cost is fitted to update phases: where a source is left out, it is the one under which the others' mean
    residuals have the least squares. Without others it stays.
    """
    found = np.empty(len(runs))
    for number, run in enumerate(runs):
        others = {r.source for r in runs if r.changes and r.source != run.source}
        if not run.changes or not others:
            found[number] = np.interp(0.0, np.log(FACTORS), run.at) if run.changes else run.at[0]
            continue
        means = [np.mean([r.at for r in runs if r.changes and r.source == each], axis=0) for each in sorted(others)]
        found[number] = run.at[int(np.argmin(np.sum(np.square(means), axis=0)))]
    return found


def sides(means: Sequence[float]) -> tuple[float, float]:
    """Half of an 80 % interval to shorter and to longer times, in log time, from the mean residual of each source.

    Each side has the root mean square of its own sources and Student's t with as many degrees of freedom; a side
    without any takes the other's.
    """
    values = np.asarray(means)
    found = []
    for side in (values[values < 0], values[values > 0]):
        found.append(student_80(len(side)) * float(np.sqrt(np.mean(side**2))) if len(side) else None)
    down, up = found
    return (down if down is not None else up) or 0.0, (up if up is not None else down) or 0.0


def student_80(freedom: int) -> float:
    """Half of the 80 % interval of Student's t.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5: a series in 1 / freedom.
    """
    z = Z80
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return float(z + first / freedom + second / freedom**2 + third / freedom**3)


def means_by_source(runs: Sequence[Unseen], residuals: Floats) -> dict[str, float]:
    """Mean residual of each source."""
    sources = sorted({run.source for run in runs})
    return {s: float(np.mean([v for r, v in zip(runs, residuals, strict=True) if r.source == s])) for s in sources}


def beyond_table(records: Iterable[Record]) -> dict[str, Any]:
    """Entries of the coverage table on kinds of runs that no fit sees: `beyond`, and their rows as `others`."""
    runs = unseen_runs(records)
    if not runs:
        return {}
    residuals = left_out_residuals(runs)
    means = means_by_source(runs, residuals)
    shorter, longer = sides(list(means.values()))
    rows: list[Mapping[str, Any]] = [
        {**run_row(run.record), "kind": run.kind, "left_out": rounded(-float(value), 4)}
        for run, value in zip(runs, residuals, strict=True)
    ]
    beyond = {"shorter": rounded(shorter), "longer": rounded(longer), "seen": rounded(float(residuals.max()))}
    return {"beyond": {**beyond, "sources": len(means)}, "others": rows}
