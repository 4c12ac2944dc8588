"""Why a strategy is not the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.ranking.explain import explanation
from autodeploy.specs.what_if import WhyNot
from autodeploy.strategies.rule_sentences import told
from autodeploy.strategies.rules import broken_rules, values_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.specs.planset import NearestChange, Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.strategies.candidates import Candidates


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
        text = "; ".join(rule.text for rule in told(broken, values_of(candidate, context.facts)))
        return WhyNot(
            rule=broken[0].name,
            message=f"not legal for {spec.search.target}: {text}",
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
        return "the search found no plan to compare with"
    top = result.plans[0]
    if plan.strategy == top.strategy:
        return "legal and fits, and is the recommended plan"
    if plan.step_time_s > top.step_time_s:
        return f"legal and fits, but slower than the best: {explanation(top, plan)}"
    if result.risk is None or result.risk.risk == "neutral":
        if plan.step_time_s < CLEARLY_FASTER * top.step_time_s:
            return "legal and fits, and is faster than the best that the search found"
        return "legal and fits, and is no slower than the best"
    least = result.risk.least_p_fits
    if plan.p_fits is not None and plan.p_fits < least:
        fits = f"it fits with {100 * plan.p_fits:.0f} % only, and {100 * least:.0f} % are asked for"
        return f"legal, and by its predicted time no slower than the best, but {fits}"
    return "legal and fits, and by its predicted time no slower than the best, but more of it is uncertain"


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
    lacking = f"stage {stage} needs {plan.peak_memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB as it stands"
    if placed is None:
        return WhyNot(
            rule="memory",
            message=f"{lacking}; no placement, recomputation or swap that can be launched makes it fit",
        )
    return timed(WhyNot(rule="memory", message=lacking, fitting=placed), placed, best())


def _slower_pct(plan: Plan, step_time_s: float | None) -> float | None:
    return None if step_time_s is None else 100.0 * (plan.step_time_s / step_time_s - 1.0)
