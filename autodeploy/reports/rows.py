"""The ranked plans as rows of cells with their titles, shared by the text, Markdown and HTML reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.reports.rl_lines import generation_in_words
from autodeploy.reports.texts import reference_name, report_text, valued
from autodeploy.reports.wording import chance, degrees, recompute_names, schedule_cell, seconds, swap_names

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One line of the table of plans, as text."""

    rank: str
    layout: str
    generation: str
    schedule: str
    step_time_s: str
    tokens_per_s_per_npu: str
    peak_memory_gib: str
    versus_best: str
    p_fits: str
    regret: str
    remark: str
    plan_id: str

    def cell(self, name: str) -> str:
        """The cell under a column."""
        return str(getattr(self, name))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: the field of a row, its title, and whether it holds numbers."""

    name: str
    title: str
    is_number: bool = False


_COLUMNS = (
    *(("plan_id", "plan", False), ("layout", "layout", False)),
    *(("generation", "generation_column", False), ("schedule", "schedule", False)),
    *(("step_time_s", "s_per_step", True), ("tokens_per_s_per_npu", "card_column", True)),
    *(("peak_memory_gib", "gib", True), ("p_fits", "p_fits_column", True), ("versus_best", "versus_best", True)),
    ("regret", "regret", True),
)
UNKNOWN = "-"


def columns(rows: list[PlanRow], lang: Language, *, with_id: bool) -> list[Column]:
    """The columns of a table of these rows, in order; those of which no row knows anything are left out."""
    found = [Column("rank", "#", is_number=True)]
    for name, key, is_number in _COLUMNS:
        known = name not in {"p_fits", "regret", "generation"} or any(row.cell(name) != UNKNOWN for row in rows)
        if known and (with_id or name != "plan_id"):
            found.append(Column(name, report_text(lang, key), is_number))
    return [*found, Column("remark", "")]


def plan_rows(plan_set: PlanSet, lang: Language = "en") -> list[PlanRow]:
    """The plans in rank order, then the reference plan, each compared with the best."""
    if not plan_set.plans:
        return []
    best = plan_set.plans[0]
    rows = [_row(plan, best, lang, before=plan_set.plans[:index]) for index, plan in enumerate(plan_set.plans)]
    if plan_set.reference is not None:
        rows.append(_row(plan_set.reference, best, lang, is_reference=True))
    return rows


def _row(
    plan: Plan, best: Plan, lang: Language, *, before: tuple[Plan, ...] = (), is_reference: bool = False
) -> PlanRow:
    difference = plan.step_time_s / best.step_time_s - 1
    remarks = [report_text(lang, "tie", rank=plan.tie_with)] if plan.tie_with is not None and not is_reference else []
    twin = next((other for other in before if looks_like(plan.strategy, other.strategy)), None)
    remarks += [what_differs(plan.strategy, twin.strategy, lang)] if twin is not None else []
    if is_reference:
        remarks.append(reference_name(plan.label, lang))
    if not plan.fits:
        excess = plan.peak_memory_gib - plan.memory_limit_gib
        remarks.append(report_text(lang, "does_not_fit", excess=f"{excess:.1f}"))
    return PlanRow(
        rank=UNKNOWN if is_reference else str(plan.rank),
        layout=degrees(plan.strategy, with_dp=False),
        generation=generation_cell(plan.strategy),
        schedule=schedule_cell(plan.strategy, lang),
        step_time_s=seconds(plan.step_time_s),
        tokens_per_s_per_npu=f"{plan.tokens_per_s_per_npu:,.0f}",
        peak_memory_gib=f"{plan.peak_memory_gib:.1f}",
        versus_best=UNKNOWN if plan is best else f"{100 * difference:+.1f} %",
        p_fits=UNKNOWN if plan.p_fits is None else chance(plan.p_fits),
        regret=UNKNOWN if plan.regret_p80_pct is None else f"{plan.regret_p80_pct:.1f} %",
        remark=report_text(lang, "comma").join(remark for remark in remarks if remark),
        plan_id=plan.plan_id,
    )


def looks_like(one: Strategy, other: Strategy) -> bool:
    """Whether a table row would show both the same."""
    same = degrees(one, with_dp=True) == degrees(other, with_dp=True) and one.schedule == other.schedule
    return same and generation_cell(one) == generation_cell(other)


def generation_cell(strategy: Strategy) -> str:
    """Where a plan of post-training generates, on how many cards of their own, and how it is cut."""
    if strategy.rl is None:
        return UNKNOWN
    layout, found = strategy.rl, strategy.rl.generation
    cards = [] if layout.generation_npus is None else [f"{layout.generation_npus:,}"]
    return " ".join([layout.placement, *cards, f"TP{found.tp}", *[f"EP{found.ep}"] * (found.ep > 1)])


def what_differs(strategy: Strategy, other: Strategy, lang: Language) -> str:
    """The first thing that tells two strategies of equal degrees and schedule apart."""
    if strategy.micro_batch_size != other.micro_batch_size:
        return valued(lang, "micro_batch_size", strategy.micro_batch_size)
    if strategy.moe_dispatcher != other.moe_dispatcher:
        return str(strategy.moe_dispatcher)
    recomputed = recompute_names(strategy.recompute)
    if recomputed != recompute_names(other.recompute):
        return valued(lang, "recompute", "+".join(recomputed) or "-")
    swapped = swap_names(strategy)
    if swapped != swap_names(other):
        return valued(lang, "swap", "+".join(swapped) or "-")
    both = {*strategy.features} & {*other.features}
    changed = [name for name in (*strategy.features, *other.features) if name not in both]
    if changed:
        return ("+" if changed[0] in strategy.features else "-") + changed[0]
    if strategy.rl is not None and other.rl is not None and strategy.rl.generation != other.rl.generation:
        return generation_in_words(strategy.rl)
    return report_text(lang, "other_layers")
