"""The published effects, predicted: one row a figure, a miss printed with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.ablation.cases import CASES, read_cases
from autodeploy.ablation.comparison_sides import Runs
from autodeploy.ablation.metrics import METRICS
from autodeploy.engine import ENGINE_VERSION
from autodeploy.errors import SpecError
from autodeploy.messages import Message, joined
from autodeploy.specs.ablation import AblationReport, AblationRow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autodeploy.specs.published_case import Case, Effect


def ablate_published(folder: Path = CASES, *, tell: Callable[[str], None] | None = None) -> AblationReport:
    """Every figure of every case of a folder.

    Parameters
    ----------
    tell : called with each case's title before it is run.

    Raises
    ------
    SpecError
        if a case is not valid, or names a metric that there is none of.
    """
    runs, rows = Runs(), []
    for case in read_cases(folder):
        if tell is not None:
            tell(case.title)
        rows += [_row(case, effect, runs) for effect in case.effects]
    return AblationReport(rows=tuple(rows), engine_version=ENGINE_VERSION)


def _row(case: Case, effect: Effect, runs: Runs) -> AblationRow:
    for name in (effect.metric, *effect.beside):
        if name not in METRICS:
            raise SpecError(
                Message("common.place", place=case.case, message=Message("field_fault.is_invalid", value=repr(name))),
                path="/effects",
                hint=", ".join(METRICS),
            )
    baseline, variant = runs.both(case, effect)
    predicted = METRICS[effect.metric](baseline, variant)
    holds = effect.tolerance.holds(predicted, effect.published)
    beside = [f"{name} {METRICS[name](baseline, variant):.4g}" for name in effect.beside]
    words = [] if holds or effect.reason is None else [effect.reason]
    return AblationRow(
        case=case.case,
        feature=effect.feature,
        mode="published",
        step_time_s=variant.plan.step_time_s,
        peak_memory_gib=variant.plan.peak_memory_gib,
        fits=variant.plan.fits,
        predicted=predicted,
        unit=effect.unit,
        published=effect.published,
        tolerance=str(effect.tolerance),
        within_tolerance=holds,
        reason=joined([*words, *beside], "semicolon") if words or beside else None,
    )
