"""Why a strategy is not the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.ranking.explain import explanation
from autodeploy.specs.what_if import WhyNot
from autodeploy.strategies.rules import broken_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.context import Context
    from autodeploy.specs.planset import NearestChange, Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.strategies.candidates import Candidates


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
        first = broken[0]
        text = "; ".join(rule.text for rule in broken)
        return WhyNot(
            rule=first.name,
            message=f"not legal for {spec.search.target}: {text} ({first.source})",
            broken_rules=tuple(rule.name for rule in broken),
            nearest=nearest(),
        )
    plan = estimated()
    if not plan.fits:
        return _short_of_memory(plan, placed(), best)
    result = best()
    if not result.plans:
        return WhyNot(rule=None, message="the search found no plan to compare with", step_time_s=plan.step_time_s)
    top = result.plans[0]
    return WhyNot(
        rule=None,
        message=f"legal and fits, but slower than the best: {explanation(top, plan)}",
        step_time_s=plan.step_time_s,
        against_best_pct=_slower_pct(plan, top),
    )


def _short_of_memory(plan: Plan, placed: Plan | None, best: Callable[[], PlanSet]) -> WhyNot:
    """What the strategy lacks as it stands, and what it takes with the memory choices that make it fit."""
    stage = max(range(len(plan.stages)), key=lambda i: plan.stages[i].total_gib)
    lacking = f"stage {stage} needs {plan.peak_memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB as it stands"
    if placed is None:
        return WhyNot(
            rule="memory",
            message=f"{lacking}; no placement, recomputation or swap that can be launched makes it fit",
        )
    result = best()
    return WhyNot(
        rule="memory",
        message=lacking,
        step_time_s=placed.step_time_s,
        against_best_pct=_slower_pct(placed, result.plans[0]) if result.plans else None,
        fitting=placed,
    )


def _slower_pct(plan: Plan, top: Plan) -> float:
    return 100.0 * (plan.step_time_s / top.step_time_s - 1.0)
