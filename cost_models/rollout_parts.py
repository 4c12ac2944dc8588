"""Responses of several consecutive steps that run at the same time: partial rollouts, generation ahead of training.

Parameters
----------
of_a_step : `Stretches` of one step's responses.
parts : steps over which a response may extend [steps].
ranks : that step together [ranks].
steps : of each stretch [steps].
values, at : what is read off, and at which steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.rollout_batch import LEAST, Stretches

if TYPE_CHECKING:
    from cost_models.arrays import Floats

CELLS = 48  # of a step in which responses of several steps run: its batch is the mean of each


def folded(of_a_step: Stretches, parts: int, ranks: Floats) -> tuple[Stretches, Floats]:
    """Responses of `parts` consecutive steps that run at the same time, and the tokens of the unfinished ones [n].

    A step lasts the same share of its responses' own time, 1 / parts of their steps: at any moment the responses of
    this step and of parts - 1 earlier ones run. Batch and context are means of CELLS cells, so that no token is lost.
    """
    end = of_a_step.steps.sum(axis=1, keepdims=True)
    at = np.linspace(0.0, 1.0, CELLS * parts + 1) * end
    steps, cell = np.cumsum(of_a_step.steps, axis=1), end / (CELLS * parts)

    def cells(rate: Floats) -> Floats:
        """Means of what stretches have over cells [n, parts, CELLS]."""
        total = np.diff(at_steps(steps, np.cumsum(of_a_step.steps * rate, axis=1), at), axis=1)
        return np.asarray((total / cell).reshape(-1, parts, CELLS))

    # The stretches before have all tokens: a wait for the longest response beyond them, the last, adds steps alone.
    mean_batch = of_a_step.mean_batch.copy()
    mean_batch[:, -1] = 0.0
    mean = cells(mean_batch)
    in_cells = cells(mean_batch * of_a_step.context)
    # What one step's responses put on a rank beyond the mean is independent of what another's do.
    excess = np.sqrt(((cells(of_a_step.batch) - mean) ** 2).sum(axis=1))
    running = mean.sum(axis=1)
    # A rank has no more than all of its unit have: one alone has its own.
    fullest = np.minimum(running + excess, ranks[:, None] * running)
    several = Stretches(
        steps=np.broadcast_to(cell, running.shape),
        batch=np.maximum(1.0, fullest),
        mean_batch=running,
        context=in_cells.sum(axis=1) / np.maximum(running, LEAST),
        longest_tokens=of_a_step.longest_tokens,
    )
    return several, in_cells[:, 1:, 0].sum(axis=1)


def at_steps(steps: Floats, values: Floats, at: Floats) -> Floats:
    """Values [n, S], 0 at step 0 and linear between the ascending `steps` [n, S], read off `at` [n, any]."""
    end = np.maximum(steps[:, -1:], LEAST)
    row = 2.0 * np.arange(len(steps))[:, None]
    known = np.concatenate([row, row + steps / end], axis=1)
    from_zero = np.concatenate([np.zeros_like(end), values], axis=1)
    asked = row + np.clip(at / end, 0.0, 1.0)
    return np.asarray(np.interp(asked.ravel(), known.ravel(), from_zero.ravel()).reshape(asked.shape))
