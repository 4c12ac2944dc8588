"""Memory choices of a fixed strategy that free the same tensors of the same layers: each tensor is freed once.

A search never applies two of them to one layer; launch scripts do, as activation recompute beside zero-memory experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.entries import at
from autodeploy.evaluation.layers.layer_cost import freed_by
from autodeploy.evaluation.layers.unit_costs import tensor_bytes
from autodeploy.workload.memory_choices import CHOICES, compete

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.inner_problem import InnerProblem, MemoryOption
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Ints


def without_overlaps(
    problem: InnerProblem, layers: Ints, applied: Ints, candidates: Candidates, context: Context, index: int
) -> InnerProblem:
    """The problem with options that save what no larger one of the same layers has freed; itself where none overlap.

    Parameters
    ----------
    layers [1, pp, vpp, class], applied [1, pp, option] : of the fixed layout.
    """
    room = layers[0].sum(axis=1)  # [pp, class]
    taken = applied[0]

    def overlap(one: int, other: int) -> bool:
        a, b = problem.options[one], problem.options[other]
        if a.layer_class != b.layer_class or not compete(a.name, b.name):
            return False
        both = (taken[:, one] > 0) & (taken[:, other] > 0)
        return bool(np.any(both & (taken[:, one] + taken[:, other] > room[:, a.layer_class])))

    numbers = range(len(problem.options))
    doubled = {n for n in numbers for other in numbers if n != other and overlap(n, other)}
    if not doubled:
        return problem
    tensors = tensor_bytes(context, candidates.take(np.array([index])))
    options: list[MemoryOption] = list(problem.options)
    for number, layer_class in enumerate(problem.classes):
        kept = {name: at(values, 0) for name, values in tensors[layer_class.name].items()}
        gone: set[str] = set()
        mine = [n for n in doubled if problem.options[n].layer_class == number]
        for n in sorted(mine, key=lambda n: -problem.options[n].saved_bytes):
            option = problem.options[n]
            names = set(freed_by(CHOICES[option.name], kept))
            saved = sum(kept[name] for name in names - gone)
            gone |= names
            options[n] = replace(option, saved_bytes=saved, swap_bytes=min(option.swap_bytes, saved))
    return replace(problem, options=tuple(options))
