"""The plan and its search as a PlanSet with this one plan: the same schema as everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.exporters.artefact import Artefact

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """Canonical JSON of a PlanSet that holds the plan alone."""
    alone = plan_set.model_copy(update={"plans": (plan,)})
    return Artefact(alone.model_dump_json(indent=2) + "\n", "application/json", f"{plan.plan_id}.json")
