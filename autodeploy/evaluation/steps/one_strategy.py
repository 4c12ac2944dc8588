"""One strategy as it stands, in a context: its candidate and its estimate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.evaluation.layers.alternatives import resolved
from autodeploy.evaluation.layers.unit_costs import unit_costs
from autodeploy.evaluation.stages.step_classes import step_classes
from autodeploy.evaluation.steps.estimate import estimate_layout
from autodeploy.evaluation.steps.strategy_layout import candidate_of, layout_of, refuse_fractions
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.step_classes import StepClasses
    from autodeploy.evaluation.steps.estimate import Estimate, Layout
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

    def again(self, *, forward_only: bool) -> Estimated:
        """The same strategy with its layers priced already: of its forward passes alone, or of a whole update."""
        found = estimate_layout(self.classes, self.candidate, self.context, 0, self.layout, forward_only=forward_only)
        return replace(self, estimate=found)


def estimated(strategy: Strategy, context: Context, *, forward_only: bool = False) -> Estimated:
    """The estimate of a strategy; of its forward passes alone where nothing is trained.

    Raises
    ------
    SpecError
        if its degrees contradict the cluster, or its schedule is not modelled.
    """
    candidate = candidate_for(context, strategy)
    context = resolved(context, candidate)
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    layout = layout_of(strategy, tuple(c.count for c in classes.layers))
    estimate = estimate_layout(classes, candidate, context, 0, layout, forward_only=forward_only)
    return Estimated(estimate, context, candidate, classes, layout)


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
