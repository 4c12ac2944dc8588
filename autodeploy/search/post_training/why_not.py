"""Why a strategy of post-training is not the plan: what rules its axes out, or what the best plan with them costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autodeploy.messages import Message, joined
from autodeploy.search.post_training.planning import estimate_rl
from autodeploy.search.ranking.why_not import FEW_AXES, given_axes, short_of_memory, shown_axes, timed, verdict
from autodeploy.specs.answers import WhyNot
from autodeploy.specs.derived_fields import SWITCHED
from autodeploy.specs.search import RL_AXES, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

MOST_REASONS: Final = 3


def why_not_rl(
    spec: Spec, strategy: Strategy, *, search: Callable[[Spec], PlanSet], best: Callable[[], PlanSet] | None
) -> WhyNot:
    """The best plan that has what is given against the recommended and the fastest one.

    strategy : axes of the update, and under `rl` of generation; only those that it gives count.
    search : `planner.plan`. best : plans with everything free; None compares with nothing.
    """
    axes = asked_axes(strategy, moe=spec.model.is_moe)
    words = _words(axes, best)
    answer = search(_pinned(spec, strategy, axes))
    if not answer.plans:
        return _ruled_out(words, answer)
    result = answer if best is None else best()
    plan = answer.plans[0]
    whole = _as_given(plan.strategy, strategy, axes)
    if whole is not None:
        stands = estimate_rl(spec, whole, beyond_memory=True)
        if not stands.fits:
            return short_of_memory(stands, plan, lambda: result).model_copy(update={"completed": stands})
        plan = stands
    ranked = next((each for each in result.plans if _has(each, axes)), None)
    if whole is None and ranked is not None and ranked.step_time_s <= plan.step_time_s:
        plan = ranked
    return timed(
        WhyNot(message=Message("common.at_best_with", axes=words, verdict=verdict(plan, result)), completed=plan),
        plan,
        result,
    )


def asked_axes(strategy: Strategy, *, moe: bool) -> dict[str, Any]:
    """The axes of update and generation that a strategy gives, by their names in `search.fix`."""
    axes: dict[str, Any] = {str(axis): value for axis, value in given_axes(strategy, moe=moe).items()}
    if strategy.rl is None:
        return axes
    given = {f"rl.{name}" for name in strategy.rl.model_fields_set - {"generation"}}
    given |= {f"rl.generation.{name}" for name in strategy.rl.generation.model_fields_set}
    values = {axis: value_of(strategy.rl, axis) for axis in RL_AXES if axis in given}
    return axes | {axis: value for axis, value in values.items() if value is not None}


def _words(axes: Mapping[str, Any], best: Callable[[], PlanSet] | None) -> str:
    plans = best().plans if best is not None and len(axes) > FEW_AXES else ()
    return shown_axes(axes, _axes_of(plans[0]) if plans else {}) or "what is given"


def _axes_of(plan: Plan) -> dict[str, Any]:
    """Every axis of a plan, by its name in `search.fix`."""
    how = plan.strategy.rl
    of_generation: dict[str, Any] = {} if how is None else {axis: value_of(how, axis) for axis in RL_AXES}
    return {**plan.strategy.model_dump(), **of_generation}


def _pinned(spec: Spec, strategy: Strategy, axes: Mapping[str, Any]) -> Spec:
    """The spec of a search among plans with these axes; of the given ones it says nothing else."""
    search = spec.search
    switches = {
        name: "on" if getattr(strategy, name) else "off" for name in SWITCHED if name in strategy.model_fields_set
    }
    asked: dict[str, Any] = {
        "top_k": 1,
        "fix": {name: value for name, value in search.fix.items() if name not in axes} | dict(axes),
        "features": {**search.features, **switches},
    }
    for field in ("allow", "forbid"):
        asked[field] = {name: values for name, values in getattr(search, field).items() if name not in axes}
    return spec.model_copy(update={"strategy": None, "search": search.model_copy(update=asked)})


def _as_given(strategy: Strategy, asked: Strategy, axes: Mapping[str, Any]) -> Strategy | None:
    """The strategy with what else is asked for, such as recomputation; None where it has that already."""
    names = asked.model_fields_set - axes.keys() - {"rl", "dp"}
    given = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    changes = {name: value for name, value in given.items() if value != getattr(strategy, name)}
    if "swap" in changes:
        changes.setdefault("swap_per_stage", None)
    return strategy.model_copy(update=changes) if changes else None


def _has(plan: Plan, axes: Mapping[str, Any]) -> bool:
    axes_of_plan = _axes_of(plan)
    return all(axes_of_plan[axis] == value for axis, value in axes.items())


def _reasons(reasons: Sequence[str]) -> Message:
    return joined(reasons, "semicolon") if reasons else Message("rl_planning.no_layout_divides_cards")


def _ruled_out(words: str, answer: PlanSet) -> WhyNot:
    """The rules that leave nothing, the commonest first, and what comes nearest."""
    rejected = answer.counts.rejected
    rules = tuple(sorted(rejected, key=lambda rule: (-rejected[rule], rule)))
    reasons = () if answer.infeasible is None else answer.infeasible.binding_rules[:MOST_REASONS]
    return WhyNot(
        rule=rules[0] if rules else "space",
        message=Message("ranking.no_plan_with", axes=words, text=_reasons(reasons)),
        broken_rules=rules,
        nearest=() if answer.infeasible is None else answer.infeasible.nearest,
    )
