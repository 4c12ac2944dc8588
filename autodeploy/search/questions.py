"""Why a strategy is not the plan, and where its time goes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.inputs.build_context import healthy_npus, profile_of
from autodeploy.costs.stages.stage_memory import communication_bytes, on_card_bytes
from autodeploy.costs.steps.one_strategy import candidate_for, judged_candidate
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message, joined
from autodeploy.search.branch_and_bound.frontier import outer_tuples
from autodeploy.search.branch_and_bound.search_space import search_space
from autodeploy.search.plan_search import first_plan, plan, with_best_batch
from autodeploy.search.predictions import as_it_stands, described, estimate, lowered, predict, reestimate, with_run
from autodeploy.search.prepared import Undescribed, context_for, prepare
from autodeploy.search.ranking.nearest_legal import nearest_changes
from autodeploy.search.ranking.one_strategy import place as place_candidate
from autodeploy.search.ranking.operator_report import operator_report
from autodeploy.search.ranking.selection import axes_asked, mfu_of_a_second
from autodeploy.search.ranking.why_not import (
    PartialStrategy,
    explain_partly_given,
    explain_rejection,
    is_whole,
    ruled_out,
)
from autodeploy.space.tree import distinct
from autodeploy.specs.answers import StrategyBound, StrategyBounds
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from autodeploy.search.branch_and_bound.search_space import SearchSpace
    from autodeploy.specs.answers import WhyNot
    from autodeploy.specs.plan_details import OperatorReport
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from cost_models.arrays import Floats, Ints


# What the sweep proves of the strategies of a search.
FASTEST_SHARE = 0.4
"""Of a sample: those of the least bounds, where plans are chosen. The rest is spread evenly over all others."""


def strategy_bounds(spec: Spec, most: int) -> StrategyBounds:
    """At most so many strategies that are legal and may fit, by rising bound of their step; the same ones every time.

    Candidates that differ in how optimizer states are kept, in the order of ranks, or in the pairwise dispatcher, are
    one strategy.

    Raises SpecError if the spec asks for something that can't be planned with, or has too many strategies;
    UnsupportedError for post-training, whose strategies are searched apart for update and generation.
    """
    if spec.training.rl is not None:
        raise UnsupportedError(Message("planner.post_training_not_swept"), path="/training/rl")
    prepared = with_best_batch(prepare(spec))
    searched = search_space(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    fastest, least_bytes = _by_strategy(searched)
    chosen = sampled(searched.swept.bound_s[fastest], most)
    least_gib = _on_card_gib(searched, fastest[chosen], least_bytes[chosen])
    ratio = prepared.identity.ratio
    of_contexts = [mfu_of_a_second(context) for context in searched.contexts]
    return StrategyBounds(
        total=len(fastest),
        sample=tuple(
            _bound(searched, int(index), gib, ratio, of_contexts[int(searched.variant[index])])
            for index, gib in zip(fastest[chosen], least_gib.tolist(), strict=True)
        ),
    )


def sampled(bound_s: Floats, most: int) -> Ints:
    """Places of a sample of bounds [n], by rising bound: the lowest ones, then evenly spaced ones of the rest."""
    order = np.argsort(bound_s, kind="stable")
    if len(order) <= most:
        return order
    lowest = int(FASTEST_SHARE * most)
    rest = most - lowest
    spread = lowest + np.arange(rest) * (len(order) - lowest) // rest
    return np.concatenate([order[:lowest], order[spread]])


def _by_strategy(searched: SearchSpace) -> tuple[Ints, Floats]:
    """Of each strategy the candidate with the lowest bound, and the fewest bytes that the allocator holds under any."""
    if not len(searched.candidates):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    cards = np.array([context.num_npus for context in searched.contexts])[searched.variant]
    in_one_order = replace(searched.candidates, tp_pp_dp_mapping=np.zeros(len(cards), dtype=bool))
    number = distinct([outer_tuples(in_one_order), cards])[1]
    order = np.lexsort((searched.swept.bound_s, number))
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    return order[starts], np.minimum.reduceat(searched.swept.least_bytes[order], starts)


def _on_card_gib(searched: SearchSpace, chosen: Ints, allocator_bytes: Floats) -> Floats:
    """Memory on the card of candidates whose allocators hold so many bytes [n]."""
    gib = np.zeros(len(chosen))
    for number in np.unique(searched.variant[chosen]).tolist():
        of_variant = searched.variant[chosen] == number
        context = searched.contexts[number]
        beside = (
            communication_bytes(searched.candidates.take(chosen[of_variant]), context) + context.machine.runtime_bytes
        )
        gib[of_variant] = on_card_bytes(allocator_bytes[of_variant], beside, context.machine.fragmentation) / GIB
    return gib


def _bound(searched: SearchSpace, index: int, least_gib: float, ratio: float, mfu_of_a_second: float) -> StrategyBound:
    context = searched.context_of(index)
    axes = searched.candidates.axes_at(index)
    step_s = ratio * float(searched.swept.bound_s[index])
    return StrategyBound(
        axes=axes_asked(axes, moe=context.model.is_moe),
        dp=int(axes["dp"]),
        num_npus=context.num_npus,
        step_time_s=step_s,
        peak_memory_gib=least_gib,
        mfu=mfu_of_a_second / step_s,
    )


def why_not(spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> WhyNot:
    """Why a strategy is not the plan: the rule it breaks, the memory it lacks, or what it would cost.

    Axes that it does not give are those of the best plan that has the others; `is_whole` says what stands as it is.

    best : what a search for this spec found, where that is known; None searches.
    """
    return _explained(spec, strategy, best, alone=False)


def _explained(spec: Spec, strategy: Strategy, known: PlanSet | None, *, alone: bool) -> WhyNot:
    """`why_not`; alone: without a search for plans to compare the answer with."""

    def best() -> PlanSet:
        return known or plan(spec)

    others = None if alone and known is None else best
    if spec.training.rl is not None:
        from autodeploy.search.post_training.why_not import why_not_rl

        return why_not_rl(spec, strategy, search=plan, best=others)
    prepared = prepare(spec)
    if not is_whole(strategy, moe=spec.model.is_moe):
        return explain_partly_given(
            PartialStrategy.of(prepared, strategy, known),
            search=plan,
            predicted=lambda whole: predict(prepared, whole).plan,
            best=others,
        )
    context = context_for(prepared, strategy, None) if strategy.fsdp else prepared.context
    candidate = judged_candidate(context, strategy)
    return explain_rejection(
        candidate,
        context,
        spec,
        nearest=lambda: nearest_changes(
            candidate, strategy, context, spec, prepared.profile, prepared.choice, prepared.identity
        ),
        estimated=lambda: predict(prepared, strategy).plan,
        placed=lambda: place_candidate(candidate, context, spec, prepared.identity),
        best=best,
    )


def complete(spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> Plan:
    """The plan of a strategy: as it stands where it `is_whole`, else as `why_not` completes it.

    best : as of `why_not`; None searches for nothing to compare it with.

    Raises SpecError if its degrees contradict the cluster, or no plan has what it gives.
    """
    if is_whole(strategy, moe=spec.model.is_moe):
        return estimate(spec.model_copy(update={"strategy": strategy}))
    if spec.training.rl is not None:
        return reestimate(spec, _of(_explained(spec, strategy, best, alone=True)))
    prepared = prepare(spec)
    asked = PartialStrategy.of(prepared, strategy, best)
    step = asked.stepped
    if step is not None:
        return with_run(prepared, predict(prepared, step).plan)
    if not asked.has_all_degrees or asked.is_shared_by(best):
        return described(prepared, _of(_explained(spec, strategy, best, alone=True)))
    found = first_plan(asked.pinned(asked.axes))
    first = found if isinstance(found, Undescribed) else _of(ruled_out(asked, found))
    whole = asked.as_given(first.strategy)
    return described(prepared, first if whole is None else as_it_stands(prepared, whole))


def _of(answer: WhyNot) -> Plan:
    """The plan of an answer; a refusal where it has none."""
    if answer.completed is not None:
        return answer.completed
    near = joined((Message("common.place", place=n.change, message=n.effect) for n in answer.nearest), "semicolon")
    raise SpecError(answer.message, path="/strategy", hint=near if answer.nearest else "")


def operators(spec: Spec, plan: Plan) -> OperatorReport:
    """Time of a plan of this spec, down to the operators of each kind of layer; of post-training, of one
    update.

    Raises SpecError if the plan's degrees contradict the cluster.
    """
    if spec.training.rl is not None:
        from autodeploy.search.post_training.one_update import context_of_update, trainers

        how = plan.strategy.rl
        assert how is not None
        profile = profile_of(spec.cluster)
        strategy = plan.strategy.model_copy(update={"rl": None})
        npus = trainers(how, healthy_npus(profile, spec.cluster))
        context = context_of_update(spec, profile, strategy, how.pack_tokens, npus=npus)
        return operator_report(plan, candidate_for(context, strategy), context)
    context, candidate = lowered(spec, plan)
    return operator_report(plan, candidate, context)
