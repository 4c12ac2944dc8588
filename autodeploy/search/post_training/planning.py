"""A spec of reinforcement learning, answered: the prediction of one strategy, or the PlanSet of a search."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.calibration.evidence import evidence_of_generation
from autodeploy.costs.inputs.build_context import healthy_npus, profile_of
from autodeploy.costs.post_training.overheads import overheads_of
from autodeploy.costs.post_training.rl_step import rl_step
from autodeploy.costs.post_training.samples import InfeasibleRlError, software_of
from autodeploy.costs.steps.one_strategy import estimated
from autodeploy.costs.steps.timeline import pipeline_timeline
from autodeploy.costs.workload.flops import mfu
from autodeploy.kit.errors import SearchCancelled, SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message
from autodeploy.search.post_training.advice import advise, by_prediction
from autodeploy.search.post_training.launchable import rule_texts
from autodeploy.search.post_training.one_update import context_of_update, trainers
from autodeploy.search.post_training.search import RlSearch
from autodeploy.search.post_training.update_layouts import update_spec
from autodeploy.search.ranking.diversity import different, pareto_set
from autodeploy.search.ranking.explanation import headroom
from autodeploy.search.ranking.one_strategy import described
from autodeploy.search.ranking.plans import Identity, plan_id
from autodeploy.search.ranking.regret import DEFAULT_PRICE
from autodeploy.search.ranking.search_result import (
    Proof,
    Searching,
    gap_of,
    no_plan_in_time,
    plan_set,
    ranked_plans,
    strategy_note,
)
from autodeploy.search.ranking.selection import fastest_of, ranking_of
from autodeploy.specs.plan_details import BatchPoint, RlGeneration, RlPeakMemory, RlPlan, RlTokensPerS
from autodeploy.specs.planset import Breakdown, Counts, Infeasible, NearestChange, Uncertainty
from autodeploy.specs.spec import no_strategy, spec_hash
from autodeploy.stack.frameworks import FRAMEWORKS, title_of
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.post_training.generation import Series
    from autodeploy.costs.post_training.step import RlStep
    from autodeploy.kit.deadline import Deadline
    from autodeploy.search.post_training.advice import RlAdvice
    from autodeploy.search.post_training.search import Choice, RlResult
    from autodeploy.search.post_training.update_layouts import LayoutSearch
    from autodeploy.search.ranking.search_result import SearchLabel
    from autodeploy.specs.plan_details import PipelineTimeline
    from autodeploy.specs.planset import Fastest, Plan, PlanSet
    from autodeploy.specs.rl import RlStrategy
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile


MOST_POINTS = 64  # of the batch over time, in a document


def plan_of_step(
    spec: Spec,
    profile: Profile,
    strategy: Strategy,
    layout: RlStrategy,
    step: RlStep,
    identity: Identity,
    *,
    cards: int,
) -> Plan:
    """The plan of a strategy of the update, a layout of generation and the step that they make.

    Stages, memory choices, evidence and the probability to fit are the update's, on its fullest packs; times,
    breakdown, tokens and the interval are the whole step's.

    strategy : with its `dp`. cards : that train and generate.
    """
    rl = spec.training.rl
    assert rl is not None
    layout = layout.model_copy(update={"generation_npus": step.generation_npus})
    context = step.fullest.context
    update = described(step.fullest, strategy, spec, identity)
    whole = update.strategy.model_copy(update={"rl": layout})
    seconds = step.step_time_s
    breakdown = Breakdown(**{name: step.breakdown.get(name, 0.0) for name in Breakdown.model_fields})
    tokens = step.tokens_per_s[rl.token_count]
    mean_tokens = rl.prompt_length.mean_tokens + rl.response_length.distribution().mean
    trained = rl.samples * mean_tokens / seconds
    share = mfu(spec.model, round(mean_tokens), trained / (cards * profile.devices_per_npu), context.machine.peak_flops)
    peak = max(step.peak_memory_bytes.values()) / GIB
    limit = update.memory_limit_gib
    low, high = step.interval_s
    return update.model_copy(
        update={
            "rank": 1,
            "plan_id": plan_id(identity, whole),
            "strategy": whole,
            "step_time_s": seconds,
            "tokens_per_s": tokens,
            "tokens_per_s_per_npu": tokens / cards,
            "mfu": share,
            "peak_memory_gib": peak,
            "allocator_peak_gib": max(update.allocator_peak_gib, step.peak_memory_bytes["generation"] / GIB),
            "memory_interval": update.memory_interval if peak == update.peak_memory_gib else None,
            "fits": update.fits and peak <= limit * (1.0 + 1e-9),
            "num_npus_used": cards,
            "breakdown": breakdown,
            "headroom": headroom(seconds, share, breakdown),
            "uncertainty": Uncertainty(
                low_s=low,
                high_s=high,
                basis=Message("rl_planning.combined_interval"),
                nearest_record=update.uncertainty.nearest_record,
                extrapolated=update.uncertainty.extrapolated,
            ),
            "rl": _rl_plan(step, cards),
            "evidence": (
                *update.evidence,
                *evidence_of_generation(layout, profile.document.family, moe=spec.model.is_moe),
            ),
            "assumptions": (*update.assumptions, *(note.text for note in step.notes)),
            "provenance": "assumed",
        }
    )


def _rl_plan(step: RlStep, cards: int) -> RlPlan:
    generating = step.generation_npus
    return RlPlan(
        phases=step.phases,
        generation=RlGeneration(
            **step.generation, batch_over_time=_points(step.series), tail_starts_s=_tail_starts_s(step.series)
        ),
        hand_over_s=step.hand_over_s,
        samples_in_flight=step.samples_in_flight,
        blocked_s=step.blocked_s,
        generation_npus=generating or cards,
        training_npus=cards - (generating or 0),
        tokens_per_s=RlTokensPerS(**step.tokens_per_s),
        peak_memory_gib=RlPeakMemory(**{name: size / GIB for name, size in step.peak_memory_bytes.items()}),
        notes=tuple(note.text for note in step.notes),
    )


def _tail_starts_s(series: Series) -> float:
    return max(0.0, float(series.ends_s[-1]) - series.tail_s)


def _points(series: Series) -> tuple[BatchPoint, ...]:
    """The series at even instants of decoding, no more than a chart shows."""
    ends = np.asarray(series.ends_s, dtype=np.float64)
    at = np.linspace(ends[-1] / MOST_POINTS, ends[-1], MOST_POINTS)
    where = np.minimum(np.searchsorted(ends, at - 1e-12 * ends[-1]), len(ends) - 1)
    return tuple(
        BatchPoint(until_s=float(end), batch=float(series.batch[row]), mean_batch=float(series.mean_batch[row]))
        for end, row in zip(at, where, strict=True)
    )


# What is said of a search over placements.
USUAL_GAP = 0.15
MOST_REASONS = 5
RULES: Final = {
    "generation_cards": "degrees of generation divide its cards",
    "generation_kv": "the longest response fits beside the engine's weights",
    "generation_weights": "the engine's weights fit on its ranks",
    "hand_over_memory": "trained and generating weights fit on a die at once",
    "memory_limit_gib": "every phase stays within search.memory_limit_gib",
    "pack_tokens": "a pack holds the longest sample",
    "split": "some cards generate, and some train",
    "update": "a layout of the update is legal and fits",
    "update_cards": "degrees of the update divide the cards that train",
    "update_memory": "training fits into the memory of a die",
    "whole_nodes": "generation and training share no node",
}
"""What the rules of this search say; those of a target are `rule_texts`."""


def search_notes(spec: Spec, result: RlResult, gap: float | None) -> tuple[str, ...]:
    """Notes beside the plans."""
    notes: list[str] = []
    best = result.best_of
    together = min((s for name, s in best.items() if name != "async"), default=None)
    beside = best.get("async")
    if together is not None and beside is not None:
        longer = 100.0 * (beside / together - 1.0)
        if beside >= together:
            notes.append(Message("rl_planning.asynchrony_slower", beside=beside, longer=longer))
        else:
            notes.append(Message("rl_planning.asynchrony_off_policy", together=together, beside=beside))
    if FRAMEWORKS[spec.search.target].generates_beside and not spec.search.asks_off_policy:
        notes.append(Message("rl_planning.synchronous_only"))
    notes += strategy_note(spec)
    if gap is not None and gap > USUAL_GAP:
        notes.append(Message("rl_planning.gap_remains", gap=100.0 * gap))
    return tuple(notes)


def infeasible(spec: Spec, result: RlResult, update: Infeasible | None = None) -> Infeasible:
    """The rules that bind, the commonest first, and the changes that their refusals name.

    update : why the search of the update alone leaves nothing, where it does.
    """
    texts = rule_texts(spec.search.target)
    binding = sorted(result.refused, key=lambda rule: (-result.refused[rule], rule))
    rules = [] if update is None else list(update.binding_rules)
    rules += [_told(rule, result.refused[rule]) for rule in binding[:MOST_REASONS]]
    title = title_of(spec.search.target)
    rules += [
        Message("common.cannot_launch_this_plan", release=title, reason=texts[rule])
        for rule in binding[:MOST_REASONS]
        if rule in texts
    ]
    changes = {error.errors[0].hint: error.errors[0].message for error in _nearest(result.errors)}
    rules += [error.errors[0].message for error in result.errors[-1:]] if not rules else []
    nearest = [] if update is None else list(update.nearest)
    nearest += [NearestChange(change=change, effect=message) for change, message in changes.items()]
    return Infeasible(
        binding_rules=tuple(rules or [Message("rl_planning.no_layout_divides_cards")]),
        nearest=tuple(nearest[:MOST_REASONS]),
    )


def _told(rule: str, layouts: int) -> str:
    """Text of a rule, or the number of layouts that break it where its words follow."""
    if rule in RULES:
        return Message("common.place", place=rule, message=RULES[rule])
    return Message("rl_planning.layouts", rule=rule, count=layouts)


def _nearest(errors: Sequence[SpecError]) -> list[SpecError]:
    """Refusals that name a change: of those by one rule the one that lacks least, the rest the last first."""
    least: dict[str, InfeasibleRlError] = {}
    for error in errors:
        if isinstance(error, InfeasibleRlError):
            nearer = least.get(error.rule)
            if nearer is None or error.share > nearer.share:
                least[error.rule] = error
    others = [error for error in reversed(errors) if not isinstance(error, InfeasibleRlError)]
    refusals = [*sorted(least.values(), key=lambda error: (-error.share, error.rule)), *others]
    return [error for error in refusals if error.errors[0].hint]


OPTIMAL_GAP = 1e-4
RELAXATION = Message("rl_planning.layout_bound")


def identity_of(spec: Spec, profile: Profile) -> Identity:
    """Parts of a plan's id. No measured run of reinforcement learning multiplies its times."""
    return Identity(spec_hash(spec), profile.content_hash, ENGINE_VERSION, None)


def estimate_rl(
    spec: Spec,
    strategy: Strategy | None = None,
    *,
    features: frozenset[str] | None = None,
    beyond_memory: bool = False,
) -> Plan:
    """The prediction of a strategy, of that in the spec where none is given.

    beyond_memory : also of one that needs more memory than a die has; where nothing is left for a response, of none.

    Raises SpecError if the spec has no strategy, its degrees contradict the cards, or a phase fits into no memory.
    """
    strategy, rl = strategy or spec.strategy, spec.training.rl
    assert rl is not None
    if strategy is None or strategy.rl is None:
        raise no_strategy()
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
        software=software_of(spec, profile.vendor),
        routed=spec.training,
        beyond_memory=beyond_memory,
    )
    return plan_of_step(spec, profile, update, strategy.rl, step, identity_of(spec, profile), cards=cards)


def timeline_rl(spec: Spec, strategy: Strategy, *, slots: bool = True) -> PipelineTimeline:
    """The simulated pipeline of one update of a strategy, slot by slot or without slots.

    Raises SpecError if the strategy's degrees contradict the cards, or its schedule is not modelled.
    """
    layout = strategy.rl
    if layout is None:
        raise SpecError(Message("common.is_required", name="strategy.rl"), path="/strategy/rl")
    profile = profile_of(spec.cluster)
    npus = trainers(layout, healthy_npus(profile, spec.cluster))
    update = strategy.model_copy(update={"rl": None})
    estimate = estimated(update, context_of_update(spec, profile, update, layout.pack_tokens, npus=npus))
    return pipeline_timeline(estimate.priced, estimate.layout, slots=slots)


def plan_post_training(spec: Spec, updates: LayoutSearch, stop: Deadline, label: SearchLabel) -> PlanSet:
    """The best plans of a spec, ranked and explained.

    updates : searches the layouts of an update.
    """
    profile = profile_of(spec.cluster)
    cards = healthy_npus(profile, spec.cluster)
    search = RlSearch(spec, profile, cards, updates, stop)
    result = search.run()
    advice = _advice(spec, profile, result, stop)
    solve_s = time.monotonic() - label.started
    if not result.choices and stop():
        raise no_plan_in_time(spec) if stop.out_of_time else SearchCancelled
    stop.finish()
    ranked = _ranked(spec, profile, cards, result, advice)
    objective = spec.search.objective
    bound = (result.bound_s or None) if objective != "peak_memory" else None
    gap = gap_of(min(p.step_time_s for p in ranked), bound) if ranked else None
    plans = ranked_plans(ranked[: spec.search.top_k], objective, bound)
    return plan_set(
        Searching(spec, identity_of(spec, profile), label, stop, solve_s),
        plans,
        Proof(bound, gap, RELAXATION if bound is not None else "", OPTIMAL_GAP),
        counts=_counts(result),
        pareto=pareto_set(ranked, plans),
        risk=ranking_of(advice, profile, DEFAULT_PRICE if advice is None else advice.price) if ranked else None,
        fastest=_fastest(ranked, plans, advice),
        warnings=(*spec.to_check, *search_notes(spec, result, gap)),
        infeasible=None if plans else infeasible(spec, result, _no_update(spec, search)),
    )


def _counts(result: RlResult) -> Counts:
    """Layouts of the update, and what was put beside them; `pruned`: what bounds rule out."""
    pruned = max(0, result.enumerated - result.combined)
    refused = dict(sorted(result.refused.items()))
    whole = pruned + result.combined + sum(refused.values())
    return Counts(enumerated=whole, rejected=refused, pruned=pruned, solved=result.combined)


def _no_update(spec: Spec, search: RlSearch) -> Infeasible | None:
    """Why no layout of the update is left; None where some are, or where it was not asked."""
    if not search.searched or any(each.strategies for each in search.searched.values()):
        return None
    try:
        reasons = search.updates.why_none(update_spec(spec, min(search.searched)))
    except SpecError:  # said already
        return None
    if reasons is None:
        return None
    near = tuple(
        each.model_copy(update={"effect": Message("rl_planning.layouts_of_update_fit")}) for each in reasons.nearest
    )
    return reasons.model_copy(update={"nearest": near})


def _fastest(ranked: list[Plan], plans: list[Plan], advice: RlAdvice | None) -> Fastest | None:
    """The fastest plan by the predicted times alone."""
    if not ranked:
        return None
    return fastest_of(min(ranked, key=lambda plan: (plan.step_time_s, plan.plan_id)), plans, advice)


def _advice(spec: Spec, profile: Profile, result: RlResult, stop: Deadline) -> RlAdvice | None:
    """The ranking by risk, where the spec wants one and there is something to rank."""
    if spec.search.risk_terms.rule == "neutral" or spec.search.objective == "peak_memory" or not result.choices:
        return None
    stop.weigh()
    advised = stop.search(lambda: advise(spec, profile, result.choices, overheads_of(spec.search.target), stop))
    return advised or by_prediction(spec, profile, result.choices)


def _ranked(spec: Spec, profile: Profile, cards: int, result: RlResult, advice: RlAdvice | None) -> list[Plan]:
    """Documents of the best choices in order of rank, then of the fastest others, which only the Pareto set needs.

    The fastest plan is among the first `top_k`, as the last of them where it is ranked behind.
    """
    identity = identity_of(spec, profile)
    if advice is not None:
        order = [each.choice for each in advice.weighed]
    elif spec.search.objective == "peak_memory":
        order = sorted(result.choices, key=lambda each: each.peak_bytes)
    else:
        order = list(result.choices)
    kept = different(order, spec.search.top_k, lambda each: each.outline)
    if advice is not None and all(each is not advice.fastest.choice for each in kept):
        kept[-1] = advice.fastest.choice
    kept += [each for each in result.choices[: spec.search.top_k] if all(each is not other for other in kept)]
    weights = {} if advice is None else {id(each.choice): each for each in advice.weighed}

    def document(rank: int, choice: Choice) -> Plan:
        plan = plan_of_step(spec, profile, choice.update.strategy, choice.layout, choice.step, identity, cards=cards)
        weighed = weights.get(id(choice))
        changes: dict[str, object] = {"rank": rank}
        if weighed is not None:
            regret = None if weighed.regret is None else 100.0 * weighed.regret
            changes |= {"expected_step_time_s": weighed.expected_s, "regret_p80_pct": regret}
        return plan.model_copy(update=changes)

    return [document(rank, choice) for rank, choice in enumerate(kept, start=1)]
