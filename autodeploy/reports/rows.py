"""The ranked plans as rows of cells, shared by the text, Markdown and CSV reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.reports.texts import Language, say
from autodeploy.reports.wording import degrees, schedule_cell, seconds

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One line of the table of plans, as text."""

    rank: str
    layout: str
    schedule: str
    step_time_s: str
    tokens_per_s_per_npu: str
    peak_memory_gib: str
    versus_best: str
    remark: str
    plan_id: str


def plan_rows(plan_set: PlanSet, lang: Language = "en") -> list[PlanRow]:
    """The plans in rank order, then the reference plan, each compared with the best."""
    if not plan_set.plans:
        return []
    best = plan_set.plans[0]
    rows = [_row(plan, best, lang) for plan in plan_set.plans]
    if plan_set.reference is not None:
        rows.append(_row(plan_set.reference, best, lang, is_reference=True))
    return rows


def _row(plan: Plan, best: Plan, lang: Language, *, is_reference: bool = False) -> PlanRow:
    difference = plan.step_time_s / best.step_time_s - 1
    remark = say(lang, "tie") if plan.tie_with is not None and not is_reference else ""
    if is_reference:
        remark = say(lang, "starting_point") if plan.label in {None, "the usual starting point"} else str(plan.label)
    if not plan.fits:
        excess = plan.peak_memory_gib - plan.memory_limit_gib
        remark = ", ".join([part for part in (remark, say(lang, "does_not_fit", excess=f"{excess:.1f}")) if part])
    return PlanRow(
        rank="-" if is_reference else str(plan.rank),
        layout=degrees(plan.strategy, with_dp=False),
        schedule=schedule_cell(plan.strategy, lang),
        step_time_s=seconds(plan.step_time_s),
        tokens_per_s_per_npu=f"{plan.tokens_per_s_per_npu:,.0f}",
        peak_memory_gib=f"{plan.peak_memory_gib:.1f}",
        versus_best="-" if plan is best else f"{100 * difference:+.1f} %",
        remark=remark,
        plan_id=plan.plan_id,
    )
