"""One strategy as it stands, in a context: its candidate, its estimate, its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.evaluation.alternatives import resolved
from autodeploy.evaluation.estimate import estimate_layout
from autodeploy.evaluation.stage_classes import step_classes
from autodeploy.evaluation.strategy_layout import candidate_of, layout_of, refuse_fractions
from autodeploy.evaluation.unit_costs import unit_costs
from autodeploy.ranking.plans import Identity, plan_of_estimate
from autodeploy.ranking.uncertainty import slopes_of
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.estimate import Estimate, Layout
    from autodeploy.evaluation.stage_classes import StepClasses
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from autodeploy.strategies.candidates import Candidates


@dataclass(frozen=True)
class Estimated:
    """A strategy's estimate and what it was made from: the context has the features that the strategy uses."""

    estimate: Estimate
    context: Context
    candidate: Candidates
    classes: StepClasses
    layout: Layout


@dataclass(frozen=True)
class Predicted(Estimated):
    """The same with the plan that users read."""

    plan: Plan


def estimated(strategy: Strategy, context: Context) -> Estimated:
    """The estimate of a strategy.

    Raises
    ------
    SpecError
        if its degrees contradict the cluster, or its schedule is not modelled.
    """
    candidate = candidate_for(context, strategy)
    context = resolved(context, candidate)
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    layout = layout_of(strategy, tuple(c.count for c in classes.layers))
    return Estimated(estimate_layout(classes, candidate, context, 0, layout), context, candidate, classes, layout)


def predicted(strategy: Strategy, context: Context, spec: Spec, identity: Identity) -> Predicted:
    """The plan of a strategy, legal or not, fitting or not; as `estimated`."""
    found = estimated(strategy, context)
    context, candidate = found.context, found.candidate
    full = strategy.model_copy(update={"dp": int(candidate.dp[0])})
    slopes = slopes_of(candidate, context, [found.layout])[0]
    plan = plan_of_estimate(
        found.estimate, full, candidate, found.classes, context, found.layout, spec, identity, slopes
    )
    return Predicted(
        found.estimate, context, candidate, found.classes, found.layout, plan.model_copy(update={"rank": 1})
    )


def candidate_for(context: Context, strategy: Strategy) -> Candidates:
    """The strategy as a batch of one.

    Raises
    ------
    SpecError
        if its degrees contradict the cluster or leave a fraction of a group, or its schedule is not modelled.
    """
    candidate = judged_candidate(context, strategy)
    refuse_fractions(candidate, context)
    return candidate


def judged_candidate(context: Context, strategy: Strategy) -> Candidates:
    """The same for rules to judge: fractions are theirs to name."""
    used = strategy.tp * strategy.pp * strategy.cp
    if used > context.world:
        raise SpecError(
            f"tp x pp x cp = {used} ranks, the cluster has {context.world}", path="/strategy", hint="lower a degree"
        )
    if context.fsdp and kinds.schedule(strategy.schedule).pairs:
        raise SpecError(
            f"{strategy.schedule} has no place to gather sharded parameters layer by layer",
            path="/strategy/fsdp",
            hint="1f1b or interleaved takes them",
        )
    return as_candidate(context, strategy, possible=True)


def as_candidate(context: Context, strategy: Strategy, *, possible: bool) -> Candidates:
    """The strategy as a batch of one, refused or not where it can't be simulated."""
    return candidate_of(
        strategy,
        world=context.world,
        global_batch=context.global_batch,
        moe=context.model.is_moe,
        vendor=context.machine.vendor,
        possible=possible,
    )
