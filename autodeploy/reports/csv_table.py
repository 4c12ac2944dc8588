"""The ranked plans as a table: one line a plan, one column a figure, units in the names."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from autodeploy.specs.artefact import Artefact

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "micro_batch_size", "schedule", "moe_dispatcher")
RUN = ("days", "npu_hours", "goodput", "cost", "energy_mwh")
FIGURES = (
    "step_time_s",
    "expected_step_time_s",
    "regret_p80_pct",
    "tokens_per_s",
    "tokens_per_s_per_npu",
    "mfu",
    "mfu_convention",
    "peak_memory_gib",
    "allocator_peak_gib",
    "memory_limit_gib",
    "p_fits",
    "oom_imbalance",
    "num_npus_used",
    "micro_batches",
    "days",
    "npu_hours",
    "tie_with",
    "provenance",
)


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """All plans of the plan's search; the file is named after the plan."""
    return Artefact(plans_csv(plan_set), "text/csv", f"{plan.plan_id}.csv")


def plans_csv(plan_set: PlanSet) -> str:
    """Comma-separated values with a header line; the reference plan has no rank."""
    stream = io.StringIO()
    rows = [_row(plan_set, plan) for plan in plan_set.plans]
    if plan_set.reference is not None:
        rows.append(_row(plan_set, plan_set.reference) | {"rank": None})
    names = list(_row_names())
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _row_names() -> tuple[str, ...]:
    from autodeploy.specs.planset import PARTS

    interval = ("low_s", "high_s", "nearest_record", "memory_low_gib", "memory_high_gib", "unproven")
    choices = ("recompute", "swap", "features", "layers_per_stage")
    head = ("rank", "plan_id", "label", "engine_version", "spec_hash")
    return (*head, *DEGREES, *choices, *FIGURES, *(f"run_{name}" for name in RUN), *interval, *PARTS)


def _row(plan_set: PlanSet, plan: Plan) -> dict[str, Any]:
    """Numbers in full precision, lists joined by `+` or blanks; nothing a spreadsheet would run as a formula."""
    from autodeploy.specs.planset import PARTS

    strategy = plan.strategy
    recompute = strategy.recompute
    values: dict[str, Any] = {
        "rank": plan.rank,
        "plan_id": plan.plan_id,
        "label": plan.label,
        "engine_version": plan_set.search.engine_version,
        "spec_hash": plan_set.search.spec_hash,
        "recompute": "+".join([recompute.granularity, *recompute.modules]),
        "swap": "+".join([*strategy.swap, *(["optimizer"] if strategy.swap_optimizer else [])]),
        "features": "+".join(strategy.features),
        "layers_per_stage": " ".join("/".join(map(str, stage.layers)) for stage in plan.stages),
        "low_s": plan.uncertainty.low_s,
        "high_s": plan.uncertainty.high_s,
        "nearest_record": plan.uncertainty.nearest_record,
        "memory_low_gib": plan.memory_interval.low_gib if plan.memory_interval else None,
        "memory_high_gib": plan.memory_interval.high_gib if plan.memory_interval else None,
        "unproven": "+".join(f"{each.axis}={each.value}" for each in plan.evidence if each.runs == 0),
    }
    values |= {name: getattr(strategy, name) for name in DEGREES}
    values |= {name: getattr(plan, name) for name in FIGURES}
    values |= {f"run_{name}": getattr(plan.run, name) if plan.run else None for name in RUN}
    values |= {part: getattr(plan.breakdown, part) for part in PARTS}
    return {name: _harmless(value) for name, value in values.items()}


def _harmless(value: Any) -> Any:
    return "'" + value if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
