"""Plans with some nodes fewer, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.run_facts import duration
from autodeploy.reports.tables import Table
from autodeploy.reports.texts import check_text, report_text
from autodeploy.reports.wording import degrees

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spares import SparePlan

COLUMNS = ("nodes", "num_npus", "plan", "batch", "s_per_step", "throughput", "checkpoint")
NUMBERS = frozenset({0, 1, 3, 4, 5})


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
        cells += [[f"-{row.nodes}", *_cells(plan, lang)] for plan in plans]
    return Table([report_text(lang, name) for name in COLUMNS], cells, NUMBERS)


def _cells(plan: SparePlan, lang: Language) -> list[str]:
    change = plan.checkpoint
    how = check_text(lang, f"checkpoint_{change.how}")
    if change.seconds is not None:
        how += f" ({duration(change.seconds)})"
    return [
        f"{plan.num_npus:,}",
        degrees(plan.strategy),
        f"{plan.global_batch_size:,}",
        f"{plan.step_time_s:.4g}",
        f"{plan.throughput_pct:.0f} %",
        how,
    ]
