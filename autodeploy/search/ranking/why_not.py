"""Why a strategy is not the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message, joined
from autodeploy.search.ranking.explanation import explanation
from autodeploy.space.rules import broken_rules, told, values_of
from autodeploy.specs.answers import WhyNot

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import NearestChange, Plan, PlanSet
    from autodeploy.specs.spec import Spec


CLEARLY_FASTER = 0.999
"""A step above this share of another is as long."""


def explain_rejection(
    candidate: Candidates,
    context: Context,
    spec: Spec,
    *,
    nearest: Callable[[], tuple[NearestChange, ...]],
    estimated: Callable[[], Plan],
    placed: Callable[[], Plan | None],
    best: Callable[[], PlanSet],
) -> WhyNot:
    """Legality first, then memory, then time against the best plan.

    nearest, estimated, placed, best : asked only where the answer needs them. `placed` is the strategy with its layers,
    recomputation and swap chosen anew, None where nothing fits.
    """
    broken = broken_rules(candidate, context.facts, spec.search.target)[0]
    if broken:
        text = joined((rule.text for rule in told(broken, values_of(candidate, context.facts))), "semicolon")
        return WhyNot(
            rule=broken[0].name,
            message=Message("ranking.not_legal_for", target=spec.search.target, texts=text),
            broken_rules=tuple(rule.name for rule in broken),
            nearest=nearest(),
        )
    plan = estimated()
    if not plan.fits:
        return short_of_memory(plan, placed(), best)
    result = best()
    return timed(WhyNot(message=verdict(plan, result)), plan, result)


def verdict(plan: Plan, result: PlanSet) -> str:
    """What speaks against a plan that is legal and fits, in words."""
    if not result.plans:
        return Message("ranking.search_found_no_plan_to_compare_with")
    top = result.plans[0]
    if plan.strategy == top.strategy:
        return Message("ranking.legal_and_fits_and_is_recommended_plan")
    if plan.step_time_s > top.step_time_s:
        return Message("ranking.legal_and_fits_but_slower_than_best", explanation=explanation(top, plan))
    if result.risk is None or result.risk.risk == "neutral":
        if plan.step_time_s < CLEARLY_FASTER * top.step_time_s:
            return Message("ranking.legal_and_fits_and_is_faster_than_best")
        return Message("ranking.legal_and_fits_and_is_no_slower_than")
    least = result.risk.least_p_fits
    if plan.p_fits is not None and plan.p_fits < least:
        key = "ranking.legal_no_slower_but_fits_too_rarely"
        return Message(key, chance=100 * plan.p_fits, least=100 * least)
    return Message("ranking.legal_and_fits_and_by_its_predicted_time")


def timed(answer: WhyNot, plan: Plan, result: PlanSet) -> WhyNot:
    """The answer with what a step of the plan takes, against the recommended plan and the fastest on paper."""
    best = result.plans[0].step_time_s if result.plans else None
    fastest = result.fastest.step_time_s if result.fastest is not None else None
    return answer.model_copy(
        update={
            "step_time_s": plan.step_time_s,
            "against_best_pct": _slower_pct(plan, best),
            "against_fastest_pct": _slower_pct(plan, fastest),
        }
    )


def short_of_memory(plan: Plan, placed: Plan | None, best: Callable[[], PlanSet]) -> WhyNot:
    """What the strategy lacks as it stands, and what it takes with the memory choices that make it fit."""
    stage = max(range(len(plan.stages)), key=lambda i: plan.stages[i].total_gib)
    needs = {"stage": stage, "needed": plan.peak_memory_gib, "limit": plan.memory_limit_gib}
    if placed is None:
        return WhyNot(rule="memory", message=Message("ranking.stage_needs_and_no_choice_makes_it_fit", **needs))
    lacking = Message("ranking.stage_needs_of_gib_as_it_stands", **needs)
    return timed(WhyNot(rule="memory", message=lacking, fitting=placed), placed, best())


def _slower_pct(plan: Plan, step_time_s: float | None) -> float | None:
    return None if step_time_s is None else 100.0 * (plan.step_time_s / step_time_s - 1.0)
