"""The records that predictions miss by most, each with its diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

import numpy as np

from autodeploy.calibration.profile_fit import configuration_of
from autodeploy.calibration.record_prediction import measured_step_s, predict_record
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.specs.record import Record
    from docs.accuracy_page.errors import Runs

MOE_LIMIT = 0.20  # errors of models with experts above this are never listed without a diagnosis
SHARE_SHOWN = 0.10


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Where the evidence points: the record itself, a mechanism of the model, or too few records."""

    cause: Literal["record", "model", "coverage"]
    text: str


@dataclass(frozen=True, slots=True)
class Miss:
    """One configuration with its errors of speed; `repeats` are further measurements of it that err alike."""

    record: Record
    in_sample: float
    left_out: float
    repeats: int


@cache
def diagnoses() -> dict[str, Diagnosis]:
    """Written diagnoses by record id."""
    text = files("docs.accuracy_page").joinpath("diagnoses.yaml").read_text(encoding="utf-8")
    return {name: Diagnosis(**entry) for name, entry in load_shipped_yaml(text).items()}


def misses(all_runs: Iterable[Runs]) -> list[Miss]:
    """Every configuration by falling left-out error; repeats of one configuration stand together at their worst."""
    by_model: dict[str, list[Miss]] = {}
    for runs in all_runs:
        for number, record in enumerate(runs.records):
            error = [float(np.expm1(-values[number])) for values in (runs.in_sample, runs.left_out)]
            by_model.setdefault(configuration_of(record), []).append(Miss(record, error[0], error[1], 0))
    kept = []
    for members in by_model.values():
        worst = max(members, key=lambda m: (abs(m.left_out), m.record.id))
        alike = sum(abs(m.left_out - worst.left_out) < SHARE_SHOWN for m in members) - 1
        kept.append(Miss(worst.record, worst.in_sample, worst.left_out, alike))
    return sorted(kept, key=lambda m: (-abs(m.left_out), m.record.id))


def listed(ranked: Sequence[Miss], count: int) -> list[Miss]:
    """The worst `count`, and every model with experts that is off by more than 20 %."""
    return [m for i, m in enumerate(ranked) if i < count or (m.record.model.is_moe and abs(m.left_out) > MOE_LIMIT)]


def parts_of(record: Record) -> str:
    """Measured and predicted step time, and what the prediction mostly consists of."""
    predicted = predict_record(record)
    step = predicted.step_time_s
    parts = sorted(((s / step, n) for n, s in predicted.estimate.breakdown.items()), reverse=True)
    shares = [f"{n.removesuffix('_s').replace('_', ' ')} {100 * s:.0f} %" for s, n in parts if s > SHARE_SHOWN]
    measured = measured_step_s(record) or 0.0
    return f"(Measured {measured:.2f} s a step, shipped prediction {step:.2f} s: {', '.join(shares)}.)"


def doubted(runs: Runs) -> list[bool]:
    """Marks records whose diagnosis finds the cause in the record itself."""
    known = diagnoses()
    return [r.id in known and known[r.id].cause == "record" for r in runs.records]
