"""The request of a comparison: plans by id or as PlanSets."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from autodeploy.errors import SpecError
from autodeploy.specs.base import Document
from autodeploy.specs.planset import Plan, PlanSet
from autodeploy.specs.validation import field_errors

MOST = 5


class CompareRequest(Document):
    """Two to five plans: the id of a stored plan, or a PlanSet, whose best plan is taken."""

    plans: Annotated[tuple[str | dict[str, Any], ...], Field(min_length=2, max_length=MOST)]


def best_of(document: dict[str, Any], path: str = "/plans") -> tuple[PlanSet, Plan]:
    """A PlanSet and its best plan.

    Raises
    ------
    SpecError
        when it is no PlanSet, or has no plan.
    """
    extra = {"progress", "cached", "cancel_requested", "tags", "note", "note_by", "author", "team", "stale"}
    try:
        plan_set = PlanSet.model_validate({name: value for name, value in document.items() if name not in extra})
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix=path, model=PlanSet)) from error
    if not plan_set.plans:
        raise SpecError("the PlanSet has no plan", path=path, hint="compare searches that found one")
    return plan_set, plan_set.plans[0]
