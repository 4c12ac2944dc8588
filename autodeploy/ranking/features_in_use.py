"""Which of the features that are on a candidate makes use of: what its plan names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.evaluation.stages.stage_memory import saves_buffers
from autodeploy.stack.expression import evaluate, names
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates


def features_in_use(candidate: Candidates, context: Context) -> set[str]:
    """Names of the features that the first candidate uses; recompute and swap are its layout's to name.

    What an axis of the strategy says is in use whatever is on; facts of a run that are no features always are.
    """
    possible = {name: each for name, each in FEATURES.items() if each.axis or name in context.features}
    used = {name for name, each in possible.items() if holds(each.in_use, candidate, context)}
    return used | (set(context.features) - FEATURES.keys())


def holds(condition: str, candidate: Candidates, context: Context) -> bool:
    """Whether a condition of a feature's record holds for the first candidate.

    Beside axes and facts of the spec it may name: paired (the schedule runs a forward against a backward pass), packed
    (documents of different lengths), levels_experts (experts can be moved or copied), saves_buffers (communication
    buffers sized by message are smaller), distributed_optimizer.
    """
    return bool(np.all(evaluate(condition, _values(candidate, context, names(condition)))))


def _values(candidate: Candidates, context: Context, named: frozenset[str]) -> dict[str, Any]:
    """Everything a condition may name; what takes time only where it does."""
    values = context.condition_values(candidate, named)
    if "levels_experts" in named:
        values["levels_experts"] = context.levels_experts(candidate)[:1]
    if "saves_buffers" in named:
        values["saves_buffers"] = saves_buffers(candidate, context)
    return values
