"""The slots of an engine whose queue is not empty: who runs when the last response starts, and what KV cache is held.

Where a rank has more responses than slots, a slot that ends a response takes the next one. Counted in steps of the
engine this is a renewal process, the same for every layout that has the same lengths and as many responses a slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import product

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number
    from cost_models.response_lengths import Lengths


STEPS_A_MEAN, MOST_WAVES = 32, 16  # of the lattice of steps: in a mean length; responses a slot that it follows
LEAST = 1e-12
DECIMALS = 9


@dataclass(frozen=True, eq=False)
class Renewal:
    """Slots that start at once and start again whenever their response ends, on a lattice of steps.

    starts : a slot's expected starts at each point [rows]. running : share of slots that still runs, in each stretch of
        the lengths after a point, of what started before it [rows, Q]. ages : the same times the tokens written so far
        [tokens].
    held : most tokens that a slot has written in the mean at any point, its prompt not counted [tokens].
    """

    starts: Floats
    running: Floats
    ages: Floats
    held: float


@lru_cache(maxsize=8)  # a MiB each
def renewal(lengths: Lengths) -> Renewal:
    """The renewal process of these lengths.

    Notes
    -----
    h(0) = 1, h(t) = sum over k of P(length = k) h(t - k); of what started at t, the survival of x + (now - t) runs on
    in the stretch x. Ends between two lattice points are shared by both.
    """
    step = lengths.mean / STEPS_A_MEAN
    rows = STEPS_A_MEAN * MOST_WAVES + 1
    place = np.maximum(lengths.tokens / step, 1.0)
    below = np.minimum(np.floor(place + 1e-9).astype(np.int64), rows)
    weight = lengths.share / lengths.share.sum()
    upper = np.clip(place - below, 0.0, 1.0)
    ends = np.bincount(below, weight * (1.0 - upper), rows + 2) + np.bincount(below + 1, weight * upper, rows + 2)
    starts = np.zeros(rows)
    starts[0] = 1.0
    for row in range(1, rows):
        starts[row] = product(ends[1 : row + 1], starts[row - 1 :: -1][:row])
    edges, area = np.append(0.0, lengths.tokens), np.append(0.0, np.cumsum(lengths.stretch * lengths.survival))
    elapsed = step * np.arange(1, rows)
    inside = np.maximum(np.diff(edges), LEAST)
    survives = np.diff(np.interp(elapsed[:, None] + edges, edges, area), axis=1) / inside
    middle = elapsed[:, None] + (edges[1:] + edges[:-1]) / 2.0
    lag = np.arange(rows)[:, None] - np.arange(1, rows)
    earlier = np.where(lag >= 0, starts[lag], 0.0)
    still = np.append(lengths.survival, 0.0)[np.searchsorted(lengths.tokens, elapsed - 1e-9, side="right")]
    in_slots = product(earlier, still * (elapsed + step))
    # BLAS is needed for so many products; its last bits depend on the processor.
    running, ages = (np.round(earlier @ later, DECIMALS) for later in (survives, survives * middle))
    return Renewal(starts, running, ages, float(in_slots.max()))


def drained(lengths: Lengths, waves: Floats) -> tuple[Floats, Floats]:
    """After the last response started: share of slots that runs, and tokens that it has written [n, Q].

    waves : responses a slot [n], at least 1. At 1 everything starts together, and the share is the survival. Beyond
        MOST_WAVES whole waves are left out: they change nothing of how the last ones end [ratio].
    """
    middle = lengths.tokens - lengths.stretch / 2.0
    if np.all(waves <= 1.0):
        shape = (len(waves), len(middle))
        return np.broadcast_to(lengths.survival, shape), np.broadcast_to(middle, shape)
    renewed = renewal(lengths)
    started = np.cumsum(renewed.starts)
    waves = waves - np.maximum(0.0, np.ceil(waves - started[-1]))
    row = np.minimum(np.searchsorted(started, waves - 1e-9), len(started) - 1)
    last = np.clip(waves - started[row] + renewed.starts[row], 0.0, renewed.starts[row])[:, None]
    running = renewed.running[row] + last * lengths.survival
    written = (renewed.ages[row] + last * lengths.survival * middle) / np.maximum(running, LEAST)
    return np.clip(running, 0.0, 1.0), np.where(running > LEAST, np.minimum(written, lengths.longest), middle)


def mean_start(lengths: Lengths, waves: Floats) -> Floats:
    """Steps before a response at random starts, mean [the shape of waves]; waves : responses a slot, at least 1."""
    if np.all(waves <= 1.0):
        return np.zeros_like(waves)
    starts = renewal(lengths).starts
    started, at = np.cumsum(starts), lengths.mean / STEPS_A_MEAN * np.arange(len(starts))
    beyond = np.maximum(0.0, waves - started[-1])  # of the lattice: a slot then starts a response every mean length
    row = np.minimum(np.searchsorted(started, waves - 1e-9), len(started) - 1)
    within = np.cumsum(starts * at)[row] - np.maximum(0.0, started[row] - waves) * at[row]
    return np.asarray((within + beyond * (at[row] + beyond * lengths.mean / 2.0)) / np.maximum(waves, 1.0))


def held_tokens(lengths: Lengths, prompt_tokens: Number, group_size: int = 1) -> tuple[Floats, Floats]:
    """Most tokens of KV cache that a slot holds in the mean: where all responses start at once, and with a queue.

    prompt_tokens : of a prompt, held once by the `group_size` responses of a prompt on a rank that share it [tokens].
    """
    prompt = np.asarray(prompt_tokens, dtype=np.float64) / group_size
    at_once = np.max(lengths.survival * (prompt[..., None] + lengths.tokens), axis=-1)
    # With a queue slots are refilled: all of them hold a prompt.
    return np.asarray(at_once), np.asarray(np.maximum(at_once, prompt + renewal(lengths).held))


def slots(
    responses: Number,
    kv_tokens: Number,
    max_num_seqs: Number,
    lengths: Lengths,
    prompt_tokens: Number,
    group_size: int = 1,
) -> Floats:
    """Responses that a rank runs at the same time [n]: whole ones; 0 where not even one fits.

    Parameters
    ----------
    responses : of the rank that run at the same time if they can: a step's, or several steps' [responses].
    kv_tokens : that its KV cache holds [tokens]. max_num_seqs : the engine's own limit [responses].
    group_size : responses of a prompt on the rank that hold its prompt once; 1 without prefix sharing [responses].

    Notes
    -----
    All at once where their most tokens fit: as some end, the others grow. Else as many as fit with a queue behind them.
    """
    responses, kv_tokens = np.asarray(responses, dtype=np.float64), np.asarray(kv_tokens, dtype=np.float64)
    at_once, queued = held_tokens(lengths, prompt_tokens, group_size)
    all_fit = (responses * at_once <= kv_tokens) & (responses <= max_num_seqs)
    fitting = np.minimum(np.floor(kv_tokens / queued), max_num_seqs)
    # One response alone may grow to the greatest length.
    fitting = np.where(kv_tokens >= prompt_tokens + lengths.longest, fitting, 0.0)
    return np.asarray(np.where(all_fit, responses, np.minimum(fitting, responses)))
