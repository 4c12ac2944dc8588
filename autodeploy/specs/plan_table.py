"""Plans as rows of a table: numbers in full precision, lists joined by `+` or blanks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.specs.planset import PARTS

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
INTERVAL = ("low_s", "high_s", "nearest_record", "memory_low_gib", "memory_high_gib", "unproven")
CHOICES = ("recompute", "swap", "features", "layers_per_stage")
HEAD = ("rank", "plan_id", "label", "engine_version", "spec_hash")
ROW_NAMES = (*HEAD, *DEGREES, *CHOICES, *FIGURES, *(f"run_{name}" for name in RUN), *INTERVAL, *PARTS)


def plan_rows(plan_set: PlanSet) -> list[dict[str, Any]]:
    """A row a plan, columns `ROW_NAMES` in this order; the plan for comparison is last and has no rank."""
    rows = [_row(plan_set, plan) for plan in plan_set.plans]
    if plan_set.reference is not None:
        rows.append(_row(plan_set, plan_set.reference) | {"rank": None})
    return rows


def _row(plan_set: PlanSet, plan: Plan) -> dict[str, Any]:
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
    return {name: values[name] for name in ROW_NAMES}
