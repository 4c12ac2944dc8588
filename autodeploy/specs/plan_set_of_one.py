"""A plan that no search found, as exporters and records take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.specs.planset import Optimality, Plan, PlanSet, SearchInfo
from autodeploy.specs.spec import spec_hash

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec


def plan_set_of_one(of: SearchInfo, spec: Spec, plan: Plan, objective: str) -> PlanSet:
    """A PlanSet of this plan alone for another spec; it keeps a search's releases and has no id."""
    changed = {"id": "", "spec": spec.model_dump(mode="json"), "spec_hash": spec_hash(spec)}
    search = of.model_copy(update=changed)
    return PlanSet(search=search, status="feasible", optimality=Optimality(objective=objective), plans=(plan,))
