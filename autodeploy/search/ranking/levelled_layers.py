"""Layers placed to level the stages of one strategy: what `virtual_pipeline_balance` does where a search is not run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autodeploy.costs.stages.build_problem import build_problem
from autodeploy.costs.steps.one_strategy import estimated
from autodeploy.messages import Message
from autodeploy.search.choices.effort import QUICK
from autodeploy.search.placement.solve import solve
from autodeploy.search.ranking.plans import fits
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.stages.inner_problem import InnerProblem, LayerClass
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.strategy import Strategy

FEATURE: Final = "virtual_pipeline_balance"
UNLIMITED_BYTES: Final = 1e18
"""Of a published layout, which may not fit as it is modelled."""
MIN_TOLD: Final = 0.03
"""Share by which the slowest stage takes longer than the mean one, from which it is told."""


def levelled(strategy: Strategy, context: Context) -> Strategy:
    """The strategy with its layers where its stages are level, if the context balances them and it states none.

    The solver places them with the strategy's own memory choices, and the framework's even placement stays where it is
    no slower; memory bounds it where the even placement fits.
    """
    if strategy.layers_per_stage is not None or strategy.pp == 1 or FEATURE not in context.mechanisms:
        return strategy
    even = estimated(strategy, context)
    choices = frozenset(key.name for key in even.layout.applied)
    problem = build_problem(even.priced, choices=choices, menu=False)
    limit = problem.limit_bytes if fits(even.estimate, even.context) else UNLIMITED_BYTES
    solution = solve(replace(_with_choices(problem), limit_bytes=limit), effort=QUICK).plan
    if solution is None:
        return strategy
    rows = tuple(tuple(int(count) for count in stage) for stage in solution.layout.sum(axis=-1))
    placed = strategy.model_copy(update={"layers_per_stage": rows})
    faster = estimated(placed, context).estimate.step_time_s < even.estimate.step_time_s
    return placed if faster else strategy


def even_note(strategy: Strategy, plan: Plan) -> tuple[Message, ...]:
    """Note on the unevenness of stages of a plan whose strategy does not say where its layers are."""
    times = [stage.forward_s + stage.backward_s for stage in plan.stages]
    share = len(times) * max(times, default=0.0) / sum(times) - 1.0 if sum(times) > 0.0 else 0.0
    if strategy.layers_per_stage is not None or plan.strategy.layers_per_stage is not None or share < MIN_TOLD:
        return ()
    return (Message("ranking.layers_are_spread_evenly", share=100.0 * share, slowest=times.index(max(times))),)


def unused_note(strategy: Strategy, plan: Plan) -> tuple[Message, ...]:
    """The features that a strategy lists and that change nothing of it."""
    unused = [name for name in strategy.features if name in FEATURES and name not in plan.strategy.features]
    return (Message("ranking.features_without_effect", names=", ".join(unused)),) if unused else ()


def _with_choices(problem: InnerProblem) -> InnerProblem:
    """The problem with every choice applied to every layer, so that only the placement is left to decide."""

    def applied(number: int, layer: LayerClass) -> LayerClass:
        of_class = [option for option in problem.options if option.layer_class == number]
        return layer._replace(
            backward_s=layer.backward_s + sum(option.extra_backward_s for option in of_class),
            activation_bytes=max(0.0, layer.activation_bytes - sum(option.saved_bytes for option in of_class)),
        )

    classes = tuple(applied(number, layer) for number, layer in enumerate(problem.classes))
    return replace(problem, classes=classes, options=())
