"""Time and memory of one strategy that a spec or a plan names."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from autodeploy.costs.layers.unit_costs import resolved
from autodeploy.costs.steps.one_strategy import candidate_for, estimated, layout_among
from autodeploy.costs.steps.scenarios import breakdowns_in as priced_breakdowns_in
from autodeploy.costs.steps.scenarios import reads
from autodeploy.costs.steps.timeline import pipeline_timeline
from autodeploy.costs.training_run.run_estimate import Step, planned_run
from autodeploy.search.legality import launch_rules
from autodeploy.search.prepared import Undescribed, at_size, context_for, context_of_plan, plan_context, prepare
from autodeploy.search.ranking.levelled_layers import even_note, levelled, unused_note
from autodeploy.search.ranking.measured_speed import rescaled_timeline
from autodeploy.search.ranking.one_strategy import Predicted, predicted
from autodeploy.search.ranking.one_strategy import place as place_candidate
from autodeploy.search.ranking.plans import fits
from autodeploy.space.rules import broken_rules
from autodeploy.specs.planset import Breakdown
from autodeploy.specs.spec import no_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.steps.scenarios import Perturbation, Scenario
    from autodeploy.search.prepared import OnCards
    from autodeploy.search.ranking.one_strategy import Prepared
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.plan_details import PipelineTimeline
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy


# Collators pad to a multiple of this; tensor and context parallelism cut what comes out in equal shares.
PADDED_TO: Final = 8
# Samples shorter than this share of the sequence length are no use: a launch that takes no longer ones is too large.
LEAST_SHARE: Final = 1 / 8


def longest_sample(prepared: Prepared, plan: Plan) -> int | None:
    """Tokens of the longest sample with which a plan fits that is too large for one of the full sequence length.

    Every sample of the batch has that length: a batch of none longer takes no more. Memory grows with the length, so
    halving finds it, in whole multiples of what collators pad to.

    Returns
    -------
    None where samples are padded, or where not even those of `LEAST_SHARE` of the length fit.
    """
    training, strategy = prepared.spec.training, plan.strategy
    if training.pads_samples or plan.fits:
        return None
    unit = PADDED_TO * strategy.tp * strategy.cp
    least = max(1, math.ceil(LEAST_SHARE * training.seq_length / unit))
    low, high = least - 1, max(least, training.seq_length // unit)
    if low * unit + unit > training.seq_length:
        return None
    batch = plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1)
    while high > low:
        middle = (low + high + 1) // 2
        shorter = replace(prepared, spec=at_size(prepared.spec, middle * unit, batch))
        result = estimated(strategy, context_of_plan(shorter, plan))
        if fits(result.estimate, result.context):
            low = middle
        else:
            high = middle - 1
    return low * unit if low >= least else None


def estimate(spec: Spec, *, features: frozenset[str] | None = None) -> Plan:
    """Predict the one strategy in the spec, fitting or not; with the rules of the target that it breaks, if any.

    Layers that the strategy does not place are spread evenly, as frameworks do, or, where its features balance them,
    levelled as by a search. An illegal strategy is predicted as if it could run: `broken_rules` are those on which
    `check` fails.

    features : exactly the features that are on; None: those of the strategy, or of the spec where it names none.

    Raises SpecError if the spec has no strategy, or its degrees contradict the cluster.
    """
    if spec.strategy is None:
        raise no_strategy()
    prepared = None
    if spec.training.rl is not None:
        from autodeploy.search.post_training.planning import estimate_rl  # a tenth of a second, for post-training alone

        plan = estimate_rl(spec, features=features)
    else:
        prepared = prepare(spec)
        strategy = spec.strategy
        if features or strategy.features:
            strategy = levelled(strategy, context_for(prepared, strategy, features))
        plan = with_run(prepared, predict(prepared, strategy, features).plan)
        notes = (*even_note(spec.strategy, plan), *unused_note(spec.strategy, plan))
        told = {"assumptions": (*plan.assumptions, *notes), "fits_to_tokens": longest_sample(prepared, plan)}
        plan = plan.model_copy(update=told)
    return plan.model_copy(update={"broken_rules": launch_rules(spec, features=features, prepared=prepared).broken})


def reestimate(spec: Spec, plan: Plan) -> Plan:
    """Predict a plan that a search for this spec found once more: on the cards and the batch that it uses."""
    if spec.training.rl is not None:
        from autodeploy.search.post_training.planning import estimate_rl

        return estimate_rl(spec, plan.strategy)
    return described(prepare(spec), plan)


def described(prepared: Prepared, plan: OnCards) -> Plan:
    """All that is predicted of a plan of a prepared spec."""
    context = context_of_plan(prepared, plan)
    return with_run(prepared, predicted(plan.strategy, context, prepared.spec, prepared.identity).plan)


def as_it_stands(prepared: Prepared, strategy: Strategy) -> Undescribed:
    """A strategy on all cards of a prepared spec, for which features are chosen as by `predict`."""
    context = context_for(prepared, strategy, None)
    candidate = candidate_for(context, strategy)
    whole = strategy.model_copy(update={"dp": int(candidate.dp[0])})
    return Undescribed(whole, context.num_npus, int(candidate.micro_batches[0]))


def breakdowns_in(
    spec: Spec, plan: Plan, numbers: Sequence[Perturbation], worlds: Sequence[Scenario]
) -> list[Breakdown]:
    """The parts of a plan's step predicted once more, in each world in which these numbers have moved.

    All are priced together, for a fit that asks often: for slopes, so without the limits of fractions. As the model
    predicts them by itself: no measured run of the same work rescales them.
    """
    context = plan_context(spec, plan)
    candidate = candidate_for(context, plan.strategy)
    context = resolved(context, candidate)
    read = [number for number in numbers if any(reads(context, name) for name in number.multiplies)]
    names = {number.name for number in read}
    moved = [{name: by for name, by in world.items() if name in names} for world in worlds]
    distinct = [world for place, world in enumerate(moved) if world not in moved[:place]]
    layout = partial(layout_among, plan.strategy)
    parts = priced_breakdowns_in(candidate, context, layout, read, distinct, limits=False)
    return [Breakdown(**parts[distinct.index(world)]) for world in moved]


def lowered(spec: Spec, plan: Plan) -> tuple[Context, Candidates]:
    """Inputs of the formulas for a plan of this spec: its context, and its strategy as a batch of one."""
    context = plan_context(spec, plan)
    candidate = candidate_for(context, plan.strategy)
    return resolved(context, candidate), candidate


def predict(prepared: Prepared, strategy: Strategy, features: frozenset[str] | None = None) -> Predicted:
    """Predict a strategy of a prepared spec; `features` as in `estimate`."""
    return predicted(strategy, context_for(prepared, strategy, features), prepared.spec, prepared.identity)


def with_run(prepared: Prepared, plan: Plan, layouts_for: Callable[[int, int], tuple[Plan, ...]] | None = None) -> Plan:
    """The plan with what the run of weeks takes under it; as it is where the spec says nothing of the run."""

    def step_of(layout: Plan, seq_length: int, global_batch: int) -> Step:
        resized = replace(prepared, spec=at_size(prepared.spec, seq_length, global_batch))
        count = global_batch // (layout.strategy.micro_batch_size * (layout.strategy.dp or 1))
        context = context_of_plan(resized, layout.model_copy(update={"micro_batches": count}))
        candidate = candidate_for(context, layout.strategy)
        broken = broken_rules(candidate, context.facts, resized.spec.search.target)[0]
        plan = predicted(layout.strategy, context, resized.spec, resized.identity).plan
        return Step(plan.step_time_s, plan.peak_memory_gib, broken[0].text if broken else None)

    link = float(prepared.context.machine.host.link_bytes_per_s)
    run = planned_run(prepared.spec, plan, step_of, host_link_bytes_per_s=link, layouts_for=layouts_for)
    return plan if run is None else plan.model_copy(update={"run": run})


def place(spec: Spec, *, features: frozenset[str] | None = None) -> Plan | None:
    """The spec's strategy with its layers, recomputation and swap chosen anew; None where nothing fits.

    Raises SpecError if the spec has no strategy, or its degrees contradict the cluster.
    """
    if spec.strategy is None:
        raise no_strategy()
    prepared = prepare(spec)
    context = context_for(prepared, spec.strategy, features)
    return place_candidate(candidate_for(context, spec.strategy), context, spec, prepared.identity)


def timeline(spec: Spec, strategy: Strategy, *, slots: bool = True) -> PipelineTimeline:
    """The simulated pipeline of a strategy, slot by slot; of post-training that of one update, on mean packs.

    Without slots it has the times of stages alone, much sooner where there are many.

    Raises SpecError if the strategy's degrees contradict the cluster, or its schedule is not modelled.
    """
    if spec.training.rl is not None:
        from autodeploy.search.post_training.planning import timeline_rl

        return timeline_rl(spec, strategy, slots=slots)
    prepared = prepare(spec)
    result = estimated(strategy, context_for(prepared, strategy, None))
    drawn = pipeline_timeline(result.priced, result.layout, slots=slots)
    return rescaled_timeline(drawn, prepared.identity.measured)
