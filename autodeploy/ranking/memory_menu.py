"""The menu of memory choices: what each frees and costs on a layer, whether a plan uses it or not."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layers.unit_costs import scalar_at
from autodeploy.specs.choice_key import ChoiceKey
from autodeploy.specs.planset import MemoryItem
from autodeploy.workload.memory_choices import CHOICES
from cost_models.hbm import GIB
from cost_models.swap import exposed_swap_s

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.step_classes import StepClass, StepClasses
    from autodeploy.evaluation.steps.estimate import Layout


def memory_menu(classes: StepClasses, context: Context, index: int, layout: Layout) -> tuple[MemoryItem, ...]:
    """All choices of every layer class, those that free most bytes a second first, and how many layers use them.

    Of a swap what its transfers take from device memory counts, and what the passes of the same layer do not hide.
    """
    items = []
    for number, step in enumerate(classes.layers):
        for name, cost in step.cost.choices.items():
            saved = scalar_at(cost.saved_bytes, index)
            if saved <= 0.0:
                continue
            added = scalar_at(cost.recompute_s, index) + _exposed_s(
                step, scalar_at(cost.swap_bytes, index), context, index
            )
            item = MemoryItem(
                layers=step.name,
                choice=name,
                kind=CHOICES[name].kind,
                saved_gib=saved / GIB,
                added_ms=1e3 * added,
                gib_per_ms=saved / GIB / (1e3 * added) if added > 0.0 else None,
                used_layers=_used(layout, name, step.name, number),
            )
            items.append(((step.name, added / saved, name), item))
    return tuple(item for _, item in sorted(items, key=itemgetter(0)))


def _exposed_s(step: StepClass, swap_bytes: float, context: Context, index: int) -> float:
    """What a layer's own passes do not hide of swapping this alone: out beside the forward, in beside the backward."""
    link = context.machine.host.link_bytes_per_s
    windows = (scalar_at(step.cost.forward.total_s, index), scalar_at(step.cost.backward.total_s, index))
    return sum(float(exposed_swap_s(swap_bytes, link, window)) for window in windows) if swap_bytes else 0.0


def _used(layout: Layout, choice: str, layers: str, number: int) -> int:
    """Layers of a class that use a choice: named for the class, or counted over all classes, first layers first."""
    own = layout.applied.get(ChoiceKey(choice, layers))
    if own is not None:
        return int(np.sum(own))
    counts = layout.applied.get(ChoiceKey(choice))
    if counts is None:
        return 0
    layers_of_stage = layout.layers.sum(axis=1)  # [pp, class]
    before = layers_of_stage[:, :number].sum(axis=1)
    return int(np.sum(np.clip(np.asarray(counts) - before, 0, layers_of_stage[:, number])))
