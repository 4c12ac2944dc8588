"""What a plan's what-if box leads to: a search of the spec as it was changed, and a script of the changed strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from api.ui.conditions import changed_spec, conditions_of
from api.ui.plan_page import KNOBS, changed_strategy, knobs_of
from autodeploy.errors import FieldError, SpecError
from autodeploy.messages import Message
from autodeploy.specs.search import Axis
from autodeploy.specs.spec import Spec
from autodeploy.stack.frameworks import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from api.ui.views import Views
    from autodeploy.exporters.artefact import Artefact
    from autodeploy.services import PlanView
    from autodeploy.specs.strategy import Strategy


def changed_by(view: PlanView, given: Mapping[str, str]) -> tuple[Spec, Strategy]:
    """The spec and the strategy of a plan with what a form changed.

    Raises
    ------
    SpecError
        with every bad field.
    """
    spec = Spec.model_validate(view.plan_set.search.spec)
    changed = changed_spec(spec, conditions_of(view.plan, view.plan_set.search.spec), given)
    return changed, changed_strategy(view.plan.strategy, {name: given[name] for name in KNOBS if name in given})


def searched_from(view: PlanView, given: Mapping[str, str]) -> dict[str, Any]:
    """The spec of a search that begins where the form stands: axes that were turned are fixed, all others are searched.

    Errors as `changed_by`.
    """
    spec, strategy = changed_by(view, given)
    now = {knob.name: knob.value for knob in knobs_of(view.plan.strategy)}
    turned = [name for name in get_args(Axis) if name in now and given.get(name, now[name]) != now[name]]
    document = spec.model_dump(mode="json", exclude_none=True)
    search = document["search"]
    search["fix"] = {**search.get("fix", {}), **{name: getattr(strategy, name) for name in turned}}
    for limits in ("allow", "forbid"):
        search[limits] = {name: values for name, values in search.get(limits, {}).items() if name not in turned}
    return document


def kept_from(view: PlanView, given: Mapping[str, str], views: Views) -> str:
    """Stores the strategy as it was changed as a plan of its own; its id.

    Errors as `changed_by`, and SpecError where it does not fit.
    """
    spec, strategy = changed_by(view, given)
    plan = views.changed(view, spec, strategy)
    if not plan.fits:
        raise SpecError(Message("api.plan_that_does_not_fit_is_not_kept"), path="/strategy")
    return views.keep(view, spec.model_copy(update={"strategy": None}), plan)


def script_from(view: PlanView, given: Mapping[str, str], views: Views) -> Artefact:
    """The launch file of the strategy as it was changed, for the framework that the search was for.

    Raises
    ------
    SpecError
        with every bad field, with the rules of the framework that the strategy breaks, or with why none launches it.
    """
    spec, strategy = changed_by(view, given)
    plan = views.changed(view, spec, strategy)
    (broken,) = views.rules_broken(spec, [plan.strategy])
    if broken:
        raise SpecError(errors=tuple(FieldError("/strategy", rule) for rule in broken))
    # Where none launches it, the export to the usual one says why.
    return views.script(view, spec, plan, views.launch_format(plan, spec.model_dump(mode="json")) or DEFAULT)
