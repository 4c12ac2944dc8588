"""Refusals of strategies that recompute by operator where nothing knows it, or beside what frees the same tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.workload.memory_choices import compete

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.evaluation.stages.step_classes import StepClasses
    from autodeploy.evaluation.steps.estimate import Layout
    from autodeploy.specs.choice_key import ChoiceKey
    from cost_models.arrays import Ints

BY_OPERATOR = "by_operator"
PATH = "/strategy/recompute"


def refuse_beside(applied: Mapping[ChoiceKey, Ints], stage_layers: Ints) -> None:
    """Refuses layers that recompute by operator and use another choice of the same tensors: the policy is of all.

    Parameters
    ----------
    applied : layers of each stage that use a choice [pp]. stage_layers : of each stage [pp].

    Raises
    ------
    SpecError
        with the other choice.
    """
    counted = sum((counts for key, counts in applied.items() if key.name == BY_OPERATOR), np.zeros_like(stage_layers))
    for key, counts in applied.items():
        if key.name != BY_OPERATOR and compete(key.name, BY_OPERATOR) and np.any(counted + counts > stage_layers):
            raise SpecError(
                Message("evaluation.by_operator_decides_about_every_operator", name=key.name),
                path=PATH,
            )


def refuse_unknown(layout: Layout, classes: StepClasses) -> None:
    """Refuses recomputation by operator of layers that don't know it.

    Raises
    ------
    UnsupportedError
        if none of the model's layers does.
    """
    if BY_OPERATOR in layout.chosen and not any(BY_OPERATOR in each.cost.choices for each in classes.layers):
        raise UnsupportedError(
            Message("evaluation.by_operator_is_modelled_of"),
            path=PATH,
            hint="granularity=full",
        )
