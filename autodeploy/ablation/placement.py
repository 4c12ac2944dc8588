"""Layers placed to level the stages of one strategy: what `virtual_pipeline_balance` does where a search is not run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autodeploy.evaluation.stages.build_problem import build_problem
from autodeploy.planner import predict
from autodeploy.solver.inner.solve import solve

if TYPE_CHECKING:
    from autodeploy.evaluation.stages.inner_problem import InnerProblem, LayerClass
    from autodeploy.planner import Predicted, Prepared
    from autodeploy.specs.strategy import Strategy


UNLIMITED_BYTES = 1e18  # bytes: a published layout may not fit as it is modelled


def with_balanced_layers(prepared: Prepared, strategy: Strategy, features: frozenset[str]) -> Predicted:
    """The prediction of a strategy whose layers go where its stages are level.

    The solver places them with the strategy's own memory choices, and the framework's even placement stays where it is
    no slower; memory bounds it where the even placement fits. A strategy that states its layers keeps them.
    """
    even = predict(prepared, strategy, features)
    if strategy.layers_per_stage is not None or "virtual_pipeline_balance" not in features:
        return even
    choices = frozenset(key.name for key in even.layout.applied)
    problem = build_problem(even.priced, choices=choices, menu=False)
    limit = problem.limit_bytes if even.plan.fits else UNLIMITED_BYTES
    solution = solve(replace(_with_choices(problem), limit_bytes=limit)).plan
    if solution is None:
        return even
    rows = tuple(tuple(int(count) for count in stage) for stage in solution.layout.sum(axis=-1))
    placed = predict(prepared, strategy.model_copy(update={"layers_per_stage": rows}), features)
    return min((even, placed), key=lambda predicted: predicted.plan.step_time_s)


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
