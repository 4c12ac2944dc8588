"""A PlanSet as rows and back. What comes back equals what went in, floats bit for bit.

The plans are rows of their own and the spec is a column of the search; `result` holds the rest. JSON keeps Python's
shortest representation of a float, which reads back as the same float.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.specs.planset import Optimality, Plan, PlanSet, SearchInfo
from autodeploy.store.clock import iso
from autodeploy.store.tables import PlanRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.store.tables import SearchRow


def result_columns(plan_set: PlanSet) -> dict[str, Any]:
    """The columns of a search that its result sets."""
    document = plan_set.model_dump(mode="json", exclude={"plans": True, "search": {"spec"}})
    best = plan_set.plans[0] if plan_set.plans else None
    columns: dict[str, Any] = {
        "status": plan_set.status,
        "spec": plan_set.search.spec,
        "result": document,
        "error": plan_set.error,
        "num_plans": len(plan_set.plans),
        "best_plan_id": best.plan_id if best else None,
        "best_step_time_s": best.step_time_s if best else None,
        "best_tokens_per_s_per_npu": best.tokens_per_s_per_npu if best else None,
        "best_mfu": best.mfu if best else None,
        "gap": plan_set.optimality.gap,
        "reproducible": plan_set.reproducible,
    }
    if best is not None:
        columns["num_npus"] = best.num_npus_used
    return columns


def plan_rows(search_id: str, plans: Iterable[Plan]) -> list[PlanRow]:
    """One row for each plan, in their order."""
    return [
        PlanRow(
            search_id=search_id,
            plan_id=plan.plan_id,
            position=position,
            rank=plan.rank,
            step_time_s=plan.step_time_s,
            tokens_per_s_per_npu=plan.tokens_per_s_per_npu,
            mfu=plan.mfu,
            peak_memory_gib=plan.peak_memory_gib,
            tp=plan.strategy.tp,
            pp=plan.strategy.pp,
            vpp=plan.strategy.vpp,
            dp=plan.strategy.dp,
            cp=plan.strategy.cp,
            ep=plan.strategy.ep,
            micro_batch_size=plan.strategy.micro_batch_size,
            schedule=plan.strategy.schedule,
            document=plan.model_dump(mode="json"),
        )
        for position, plan in enumerate(plans)
    ]


def read_plan(document: dict[str, Any]) -> Plan:
    """The plan of a row's document."""
    return Plan.model_validate(document)


def read_plan_set(row: SearchRow, plan_documents: Iterable[dict[str, Any]]) -> PlanSet:
    """The stored PlanSet; of a search without a result, one that says its status."""
    if row.result is None:
        return _without_result(row)
    search = {**row.result["search"], "spec": row.spec}
    return PlanSet.model_validate({**row.result, "search": search, "plans": list(plan_documents)})


def _without_result(row: SearchRow) -> PlanSet:
    return PlanSet.model_validate(
        {
            "search": SearchInfo(
                id=row.id,
                spec=row.spec,
                spec_hash=row.spec_hash,
                profile_hash=row.profile_hash,
                engine_version=row.engine_version,
                created_at=iso(row.created_at),
            ),
            "status": row.status,
            "optimality": Optimality(objective=row.spec["search"]["objective"]),
            "error": row.error,
        }
    )
