"""Errors of kinds of runs beside dense pre-training, each group beside its aim."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.post_training import predict_rl, speed_error
from autodeploy.calibration.record_prediction import predict_record
from autodeploy.calibration.shipped.overhead_fit import shipped_rl
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.calibration.shipped.unseen_classes import FACTORS, shape_factor, source_of_text, unseen_runs
from autodeploy.specs.software import release_of
from autodeploy.stack.host import MICRO
from docs.accuracy_page.aims import Line
from docs.accuracy_page.null_models import left_out_errors
from docs.accuracy_page.sets import GROUPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.specs.measurements import RlRecord
    from docs.accuracy_page.sets import RunGroup

MOST_OF_MEMORY = 0.10  # error of the peak of a run of LoRA under FSDP2
NEW_SHAPE = "host.new_shape_us"
UNDER_FSDP = "LoRA under FSDP2"


@dataclass(frozen=True, slots=True)
class GroupErrors:
    """Errors of speed of a group's runs, predicted / measured - 1, by name."""

    group: RunGroup
    errors: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Mean of their sizes."""
        return float(np.mean(np.abs(list(self.errors.values()))))

    @property
    def met(self) -> bool | None:
        """Whether the mean, and each run with an aim of its own, is within; None without an aim."""
        if self.group.at_most is None:
            return None
        single = all(abs(self.errors.get(name, 0.0)) <= most for name, most in self.group.each.items())
        return self.mean <= self.group.at_most and single


def group_errors(apart: Mapping[str, float]) -> list[GroupErrors]:
    """Every group with runs that are known; apart : errors of runs that are in no fit, by name."""
    errors = {**apart, **left_out_errors(), **whole_steps()}
    found = [GroupErrors(group, {name: errors[name] for name in group.runs if name in errors}) for group in GROUPS]
    return [each for each in found if each.errors]


@cache
def whole_steps() -> dict[str, float]:
    """Errors of whole steps of reinforcement learning on Ascend whose updates pack answers, without their source.

    What their source has a part in is the cost of a new shape: it is the one that the updates of other sources say.
    """
    runs, errors = unseen_runs(shipped_records()), dict[str, float]()
    named = {name for group in GROUPS for name in group.runs}
    for record in shipped_rl():
        if record.id in named:
            others = [run for run in runs if run.source != source_of_text(record.source)]
            errors[record.id] = speed_error(predict_rl(record, facts=_facts(record, shape_factor(others))))
    return errors


def _facts(record: RlRecord, place: int | None) -> dict[str, str]:
    shipped_us = release_of(record).host.new_shape_s / MICRO
    return {} if place is None else {NEW_SHAPE: f"{float(FACTORS[place]) * shipped_us:.6g}"}


def fsdp_memory() -> tuple[str, float]:
    """The run of LoRA under FSDP2, and the error of its predicted peak."""
    (name,) = next(group.runs for group in GROUPS if group.name == UNDER_FSDP)
    record = next(each for each in shipped_records() if each.id == name)
    measured = record.measured.peak_memory_gib
    assert measured is not None
    return name, predict_record(record).memory_gib / measured - 1.0


def kind_lines(found: Sequence[GroupErrors]) -> list[Line]:
    """Each group that has an aim, as a figure of the scoreboard."""
    lines = []
    for each in found:
        if each.group.at_most is not None:
            single = "".join(f", {n} {100 * e:+.1f} %" for n, e in each.errors.items() if n in each.group.each)
            aims = "".join(f", {name} {100 * most:.0f} %" for name, most in each.group.each.items())
            runs = f"{len(each.errors)} run{'s'[: len(each.errors) - 1]}"
            figure = f"{each.group.name}, {runs}, {each.group.fit}: mean"
            lines.append(
                Line(figure, f"{100 * each.mean:.1f} %{single}", f"{100 * each.group.at_most:.0f} %{aims}", each.met)
            )
    name, error = fsdp_memory()
    figure = f"peak memory of `{name}`"
    lines.append(Line(figure, f"{100 * error:+.1f} %", f"{100 * MOST_OF_MEMORY:.0f} %", abs(error) <= MOST_OF_MEMORY))
    return lines
