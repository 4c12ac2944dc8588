"""Tables of plans: the ranked ones, and those with fewer nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.run_facts import duration, generation_in_words
from autodeploy.reports.tables import Table
from autodeploy.reports.wording import (
    bracketed,
    chance,
    check_text,
    degrees,
    part_name,
    recompute_names,
    reference_name,
    report_text,
    schedule_cell,
    seconds,
    swap_names,
    valued,
)

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.comparison import SparePlan
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy

UNKNOWN = "-"
_COLUMNS = (
    *("plan", "layout", "generation_s", "schedule", "s_per_step", "tokens_per_s_per_npu", "gib", "p_fits"),
    *("versus_best", "regret"),
)
_WIDE = frozenset({"plan", "tokens_per_s_per_npu"})  # step times tell throughput too
_OF_SOME = frozenset({"generation_s", "p_fits", "regret"})
_TEXTS = frozenset({"#", "plan", "layout", "generation_s", "schedule", ""})
_SPARE_COLUMNS = ("nodes", "num_npus", "plan", "batch", "s_per_step", "throughput", "checkpoint")


def plans_table(plan_set: PlanSet, lang: Language = "en", *, wide: bool = False) -> Table:
    """The plans in rank order, then the reference plan, each compared with the best; remarks in the last column.

    Columns of which no plan knows anything are left out; only a wide table has ids and throughput.
    """
    plans = plan_set.plans
    rows = [_cells(plan, plans[0], lang, before=plans[:index]) for index, plan in enumerate(plans)]
    if plans and plan_set.reference is not None:
        rows.append(_cells(plan_set.reference, plans[0], lang, is_reference=True))
    shown = [name for name in _COLUMNS if name not in _OF_SOME or any(row[name] != UNKNOWN for row in rows)]
    names = ["#", *(name for name in shown if wide or name not in _WIDE), ""]
    titles = {"#": "#", "": "", "generation_s": part_name(lang, "generation_s")}
    return Table(
        [titles.get(name) or report_text(lang, name) if name else "" for name in names],
        [[row[name] for name in names] for row in rows],
        {place for place, name in enumerate(names) if name == "#" or name not in _TEXTS},
    )


def _cells(
    plan: Plan, best: Plan, lang: Language, *, before: tuple[Plan, ...] = (), is_reference: bool = False
) -> dict[str, str]:
    """The cells of a plan by their column; the remark has no name."""
    remarks = [f"≈ #{plan.tie_with}"] if plan.tie_with is not None and not is_reference else []
    twin = next((other for other in before if looks_like(plan.strategy, other.strategy)), None)
    remarks += [what_differs(plan.strategy, twin.strategy, lang)] if twin is not None else []
    remarks += [reference_name(plan.label, lang)] if is_reference else []
    if not plan.fits:
        excess = plan.peak_memory_gib - plan.memory_limit_gib
        remarks.append(report_text(lang, "does_not_fit", excess=f"{excess:.1f}"))
    return {
        "#": UNKNOWN if is_reference else str(plan.rank),
        "plan": plan.plan_id,
        "layout": degrees(plan.strategy, with_dp=False),
        "generation_s": generation_cell(plan.strategy),
        "schedule": schedule_cell(plan.strategy, lang),
        "s_per_step": seconds(plan.step_time_s),
        "tokens_per_s_per_npu": f"{plan.tokens_per_s_per_npu:,.0f}",
        "gib": f"{plan.peak_memory_gib:.1f}",
        "p_fits": UNKNOWN if plan.p_fits is None else chance(plan.p_fits),
        "versus_best": UNKNOWN if plan is best else f"{100 * (plan.step_time_s / best.step_time_s - 1):+z.1f} %",
        "regret": UNKNOWN if plan.regret_p80_pct is None else f"{plan.regret_p80_pct:.1f} %",
        "": report_text(lang, "comma").join(remarks),
    }


def looks_like(one: Strategy, other: Strategy) -> bool:
    """Whether a table row would show both the same."""
    same = degrees(one) == degrees(other) and one.schedule == other.schedule
    return same and generation_cell(one) == generation_cell(other)


def generation_cell(strategy: Strategy) -> str:
    """Where a plan of post-training generates, on how many cards of their own, and how it is cut."""
    if strategy.rl is None:
        return UNKNOWN
    layout, generation = strategy.rl, strategy.rl.generation
    cards = [] if layout.generation_npus is None else [f"{layout.generation_npus:,}"]
    return " ".join([layout.placement, *cards, f"TP{generation.tp}", *[f"EP{generation.ep}"] * (generation.ep > 1)])


def what_differs(strategy: Strategy, other: Strategy, lang: Language) -> str:
    """The first thing that tells two strategies of equal degrees and schedule apart."""
    if strategy.micro_batch_size != other.micro_batch_size:
        return valued(lang, "micro_batch_size", strategy.micro_batch_size)
    if strategy.moe_dispatcher != other.moe_dispatcher:
        return str(strategy.moe_dispatcher)
    recomputed = recompute_names(strategy.recompute)
    if recomputed != recompute_names(other.recompute):
        return valued(lang, "recompute", "+".join(recomputed) or report_text(lang, "none"))
    swapped = swap_names(strategy)
    if swapped != swap_names(other):
        return valued(lang, "swap", "+".join(swapped) or report_text(lang, "none"))
    both = {*strategy.features} & {*other.features}
    changed = [name for name in (*strategy.features, *other.features) if name not in both]
    if changed:
        return ("+" if changed[0] in strategy.features else "-") + changed[0]
    if strategy.rl is not None and other.rl is not None and strategy.rl.generation != other.rl.generation:
        return generation_in_words(strategy.rl)
    return check_text(lang, "placement")


def spare_table(plan_set: PlanSet, lang: Language) -> Table:
    """For each number of nodes the best plan, and that of today's layout."""
    cells = []
    for row in plan_set.spares:
        if row.best is None:
            cells.append([f"-{row.nodes}", f"{row.num_npus:,}", report_text(lang, "none"), "", "", "", ""])
            continue
        plans = [row.best]
        if row.same_layout is not None and row.same_layout.strategy != row.best.strategy:
            plans.append(row.same_layout)
        cells += [[f"-{row.nodes}", *_spare_cells(plan, lang)] for plan in plans]
    return Table([report_text(lang, name) for name in _SPARE_COLUMNS], cells, {0, 1, 3, 4, 5})


def _spare_cells(plan: SparePlan, lang: Language) -> list[str]:
    change = plan.checkpoint
    how = check_text(lang, f"checkpoint_{change.how}")
    if change.seconds is not None:
        how = bracketed(lang, how, duration(change.seconds))
    return [
        f"{plan.num_npus:,}",
        degrees(plan.strategy),
        f"{plan.global_batch_size:,}",
        f"{plan.step_time_s:.4g}",
        f"{plan.throughput_pct:.0f} %",
        how,
    ]
