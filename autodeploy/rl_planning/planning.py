"""A spec of reinforcement learning, answered: the prediction of one strategy, or the PlanSet of a search."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from autodeploy.engine import ENGINE_VERSION
from autodeploy.errors import SearchCancelled, SpecError
from autodeploy.evaluation.inputs.build_context import healthy_npus, profile_of
from autodeploy.evaluation.steps.one_strategy import estimated
from autodeploy.evaluation.steps.timeline import pipeline_timeline
from autodeploy.post_training import overheads_of, rl_step
from autodeploy.ranking.explain import explanation
from autodeploy.ranking.fit_probability import LEAST_P_FITS
from autodeploy.ranking.pareto import pareto_set
from autodeploy.ranking.plans import Identity
from autodeploy.rl_planning.documents import plan_of_step
from autodeploy.rl_planning.one_update import context_of_update, trainers
from autodeploy.rl_planning.search import RlSearch
from autodeploy.rl_planning.words import infeasible, search_notes
from autodeploy.specs.planset import Counts, Fastest, Optimality, PlanSet, SearchInfo, Timing
from autodeploy.specs.spec import spec_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.deadline import Deadline
    from autodeploy.rl_planning.search import Choice, Found
    from autodeploy.specs.planset import Plan, Status
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from autodeploy.specs.timeline import PipelineTimeline
    from hardware_profiles.profile import Profile

OPTIMAL_GAP = 1e-4
RELAXATION = (
    "every layout of generation beside the bound of the update's search; fewer cards never train faster, launch rules "
    "aside"
)


def identity_of(spec: Spec, profile: Profile) -> Identity:
    """What makes a plan's id. No measured run of reinforcement learning multiplies its times."""
    return Identity(spec_hash(spec), profile.content_hash, ENGINE_VERSION, None)


def estimate_rl(
    spec: Spec,
    strategy: Strategy | None = None,
    *,
    features: frozenset[str] | None = None,
    beyond_memory: bool = False,
) -> Plan:
    """The prediction of a strategy, of that in the spec where none is given.

    Parameters
    ----------
    beyond_memory : also of one that needs more memory than a die has; where nothing is left for a response, of none.

    Raises
    ------
    SpecError
        if the spec has no strategy, its degrees contradict the cards, or a phase fits into no memory.
    """
    strategy, rl = strategy or spec.strategy, spec.training.rl
    assert rl is not None
    if strategy is None or strategy.rl is None:
        raise SpecError("estimate needs a strategy", path="/strategy", hint="give tp, pp, ep, micro_batch_size ...")
    profile = profile_of(spec.cluster)
    cards = healthy_npus(profile, spec.cluster)
    update = strategy.model_copy(update={"rl": None})
    step = rl_step(
        spec.model,
        profile,
        spec.cluster,
        rl,
        update,
        strategy.rl,
        features=features,
        overheads=overheads_of(spec.search.target),
        beyond_memory=beyond_memory,
    )
    return plan_of_step(
        spec, profile, update, strategy.rl, step, identity_of(spec, profile), cards=cards, features=features
    )


def timeline_rl(spec: Spec, strategy: Strategy) -> PipelineTimeline:
    """The simulated pipeline of one update of a strategy, slot by slot.

    Raises
    ------
    SpecError
        if the strategy's degrees contradict the cards, or its schedule is not modelled.
    """
    layout = strategy.rl
    if layout is None:
        raise SpecError("the strategy doesn't say where and how it generates", path="/strategy/rl")
    profile = profile_of(spec.cluster)
    npus = trainers(layout, healthy_npus(profile, spec.cluster))
    update = strategy.model_copy(update={"rl": None})
    found = estimated(update, context_of_update(spec, profile, update, layout.pack_tokens, npus=npus))
    return pipeline_timeline(found.classes, found.candidate, found.context, 0, found.layout)


def plan_rl(
    spec: Spec,
    plan: Callable[[Spec], PlanSet],
    stop: Deadline,
    *,
    search_id: str,
    created_at: str,
    started: float,
) -> PlanSet:
    """The best plans of a spec, ranked and explained.

    Parameters
    ----------
    plan : searches the layouts of an update, given as a spec of pre-training.
    """
    profile = profile_of(spec.cluster)
    cards = healthy_npus(profile, spec.cluster)
    found = RlSearch(spec, profile, cards, plan, stop).run()
    solved_s = time.monotonic() - started
    if not found.choices and stop():
        raise _no_plan_in_time(spec) if stop.out_of_time else SearchCancelled
    stop.finish()
    ranked = _ranked(spec, profile, cards, found)
    bound = found.bound_s if spec.search.objective != "peak_memory" else None
    gap = None if bound is None or not ranked else max(0.0, 1.0 - bound / min(p.step_time_s for p in ranked))
    plans = _explained(ranked[: spec.search.top_k], bound)
    proved = gap is not None and gap <= OPTIMAL_GAP
    status: Status = "infeasible" if not plans else "optimal" if proved else "feasible"
    return PlanSet(
        search=SearchInfo(
            id=search_id,
            spec=spec.model_dump(mode="json"),
            spec_hash=spec_hash(spec),
            profile_hash=profile.content_hash,
            engine_version=ENGINE_VERSION,
            created_at=created_at,
        ),
        status=status,
        reproducible=not stop.out_of_time and spec.search.mode == "reproducible",
        optimality=Optimality(
            objective=spec.search.objective,
            bound=bound,
            relaxation=RELAXATION if bound is not None else "",
            gap=gap,
            proved=proved,
        ),
        counts=_counts(found),
        timing=Timing(solve_s=solved_s, total_s=time.monotonic() - started),
        plans=plans,
        pareto=pareto_set(ranked, plans),
        fastest=_fastest(ranked, plans),
        warnings=(*spec.doubts, *search_notes(spec, found, plans, gap)),
        infeasible=None if plans else infeasible(spec, found),
    )


def _counts(found: Found) -> Counts:
    """Layouts of the update, and what was put beside them; `pruned`: what bounds rule out."""
    pruned = max(0, found.enumerated - found.combined)
    refused = dict(sorted(found.refused.items()))
    whole = pruned + found.combined + sum(refused.values())
    return Counts(enumerated=whole, rejected=refused, pruned=pruned, solved=found.combined)


def _fastest(ranked: list[Plan], plans: tuple[Plan, ...]) -> Fastest | None:
    """The fastest plan by the predicted times alone, which may be none of those that are recommended."""
    if not ranked:
        return None
    first = min(ranked, key=lambda plan: (plan.step_time_s, plan.plan_id))
    rank = next((plan.rank for plan in plans if plan.plan_id == first.plan_id), None)
    return Fastest(
        plan_id=first.plan_id,
        rank=rank,
        step_time_s=first.step_time_s,
        p_fits=first.p_fits or 0.0,
        strategy=first.strategy,
    )


def _no_plan_in_time(spec: Spec) -> SpecError:
    limit = f"time limit: no plan was found in {spec.search.time_limit_s:g} s"
    return SpecError(limit, path="/search/time_limit_s", hint="more seconds, or fewer strategies: fix or allow axes")


def _ranked(spec: Spec, profile: Profile, cards: int, found: Found) -> list[Plan]:
    """Documents of the best choices, in order of the objective; those that may well not fit come last."""
    identity = identity_of(spec, profile)

    def document(choice: Choice) -> Plan:
        return plan_of_step(spec, profile, choice.update.strategy, choice.layout, choice.step, identity, cards=cards)

    def daring(plan: Plan) -> bool:
        return spec.search.risk == "averse" and (plan.p_fits or 0.0) < LEAST_P_FITS

    choices = found.choices
    if spec.search.objective == "peak_memory":
        choices = sorted(found.choices, key=lambda each: each.peak_bytes)
    plans: list[Plan] = []
    for choice in choices:
        plans.append(document(choice))
        if sum(not daring(plan) for plan in plans) >= spec.search.top_k and len(plans) > spec.search.top_k:
            break

    def order(plan: Plan) -> tuple[bool, float, float, str]:
        worth = plan.peak_memory_gib if spec.search.objective == "peak_memory" else plan.step_time_s
        return daring(plan), worth, plan.step_time_s, plan.plan_id

    return [plan.model_copy(update={"rank": number}) for number, plan in enumerate(sorted(plans, key=order), start=1)]


def _explained(plans: list[Plan], bound: float | None) -> tuple[Plan, ...]:
    """Plans with their gaps and what sets them apart from the first, the first from the second."""
    found = []
    for number, plan in enumerate(plans):
        other = plans[0] if number else (plans[1] if len(plans) > 1 else None)
        gap = None if bound is None else max(0.0, 1.0 - bound / plan.step_time_s)
        found.append(plan.model_copy(update={"gap": gap, "explanation": explanation(plan, other)}))
    return tuple(found)
