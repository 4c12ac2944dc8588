"""The request of a comparison: plans by id or as PlanSets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from autodeploy.errors import AutoDeployError, SpecError
from autodeploy.evaluation.inputs.build_context import profile_of
from autodeploy.messages import Message
from autodeploy.specs.base import Document
from autodeploy.specs.planset import Plan, PlanSet
from autodeploy.specs.spec import Spec
from autodeploy.specs.validation import field_errors
from autodeploy.training_run.checkpoint_change import Launched, checkpoint_change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.comparison import Comparison

MAX_COMPARED = 5


def with_checkpoints(comparison: Comparison, pairs: Sequence[tuple[PlanSet, Plan]]) -> Comparison:
    """The comparison with what a checkpoint of the first plan is to each other, where that can be said."""
    launched = [_launched(plan_set, plan) for plan_set, plan in pairs]
    first, others = launched[0], launched[1:]
    changes = [checkpoint_change(first, other) for other in others if first is not None and other is not None]
    return comparison.model_copy(update={"checkpoints": tuple(changes)})


def _launched(plan_set: PlanSet, plan: Plan) -> Launched | None:
    """None where a spec is of post-training, or its profile is not there any more."""
    try:
        spec = Spec.model_validate(plan_set.search.spec)
        return None if spec.training.rl is not None else Launched(spec, plan, profile_of(spec.cluster).vendor)
    except (ValidationError, AutoDeployError):
        return None


class CompareRequest(Document):
    """Two to five plans: the id of a stored plan, or a PlanSet, whose best plan is taken."""

    plans: Annotated[tuple[str | dict[str, Any], ...], Field(min_length=2, max_length=MAX_COMPARED)]


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
        raise SpecError(
            Message("services.planset_has_no_plan"), path=path, hint=Message("services.name_search_with_plan")
        )
    return plan_set, plan_set.plans[0]
