"""The menu of memory choices: what each frees and costs on a layer, whether a plan uses it or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from autodeploy.evaluation.entries import at
from autodeploy.specs.choice_key import ChoiceKey
from autodeploy.workload.memory_choices import CHOICES
from cost_models.swap import exposed_swap_s

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.step_classes import StepClass, StepClasses
    from autodeploy.evaluation.steps.estimate import Layout


@dataclass(frozen=True, slots=True)
class MenuItem:
    """One choice on one class of layers.

    saved_bytes : freed per layer and micro batch in flight. added_s : per layer and micro batch; of a swap, what its
    transfers take from device memory and what the passes of the same layer do not hide. used_layers : of the plan.
    """

    layers: str
    choice: str
    kind: Literal["recompute", "swap"]
    saved_bytes: float
    added_s: float
    used_layers: int


def memory_menu(classes: StepClasses, context: Context, index: int, layout: Layout) -> list[MenuItem]:
    """All choices of every layer class, those that free most bytes a second first."""
    found = []
    for number, step in enumerate(classes.layers):
        for name, cost in step.cost.choices.items():
            saved = at(cost.saved_bytes, index)
            if saved > 0.0:
                added = at(cost.recompute_s, index) + _exposed_s(step, at(cost.swap_bytes, index), context, index)
                used = _used(layout, name, step.name, number)
                found.append(MenuItem(step.name, name, CHOICES[name].kind, saved, added, used))
    return sorted(found, key=lambda item: (item.layers, item.added_s / item.saved_bytes, item.choice))


def _exposed_s(step: StepClass, swap_bytes: float, context: Context, index: int) -> float:
    """What a layer's own passes do not hide of swapping this alone: out beside the forward, in beside the backward."""
    link = context.machine.host.link_bytes_per_s
    windows = (at(step.cost.forward.total_s, index), at(step.cost.backward.total_s, index))
    return sum(float(exposed_swap_s(swap_bytes, link, window)) for window in windows) if swap_bytes else 0.0


def _used(layout: Layout, choice: str, layers: str, number: int) -> int:
    """Layers of a class that use a choice: named for the class, or counted over all classes, first layers first."""
    own = layout.applied.get(ChoiceKey(choice, layers))
    if own is not None:
        return int(np.sum(own))
    counts = layout.applied.get(ChoiceKey(choice))
    if counts is None:
        return 0
    held = layout.layers.sum(axis=1)  # [pp, class]
    before = held[:, :number].sum(axis=1)
    return int(np.sum(np.clip(np.asarray(counts) - before, 0, held[:, number])))
