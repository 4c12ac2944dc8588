"""Generation of a step's responses: continuous batching over the distribution of their lengths.

Between two completions the batch is constant, so that a rank takes the sum over the stretches between lengths of steps
times the time per output token at the batch of the stretch. Replicas of a dense model run on their own. With experts
the ranks of an expert group step together, with dummy passes where a rank has nothing left: the fullest rank's batch
counts, and the group ends with its last response. Nothing is drawn at random: see docs/explanation/rollout.md.

Parameters
----------
longest_tokens : of the longest response [tokens].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from cost_models.arrays import Floats
from cost_models.response_lengths import likeness
from cost_models.rollout_batch import LEAST, Engines, Stretches, slowest

if TYPE_CHECKING:
    from cost_models.response_lengths import Lengths
    from cost_models.rollout_batch import TokenTime


# Responses of several consecutive steps that run at the same time.
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


PrefillTime = Callable[[Floats], Floats]  # seconds of a rank's prefill by its tokens [n]

TAIL = 0.1  # the last responses of a step, whose time is its tail. Source: Seer, arXiv:2511.14617


@dataclass(frozen=True)
class Rollout:
    """Generation of a step, of the unit that ends last [n].

    prefill_s, decode_s : their sum is `generation_s`. longest_s : from first to last token of the longest response, of
        longest_tokens. tail_s : of decode_s, in which the last tenth of a step's responses runs alone. waves :
        responses a slot, at least 1 [ratio]. start_batch : of the fullest rank as the step begins [responses].
        kept_tokens : of a rank's unfinished responses of earlier steps, which are prefilled again [tokens]. steady_s :
        what the same tokens take in full batches that never drain, prefill included.
    ends_s : when each stretch of decode ends [n, S]; the tail is the last tail_s.
    batch, mean_batch : of the fullest rank and of a mean one, by stretches [n, S] [responses].
    """

    prefill_s: Floats
    decode_s: Floats
    longest_s: Floats
    longest_tokens: Floats
    tail_s: Floats
    waves: Floats
    start_batch: Floats
    kept_tokens: Floats
    steady_s: Floats
    ends_s: Floats
    batch: Floats
    mean_batch: Floats

    @property
    def generation_s(self) -> Floats:
        """Prefill and decode [n]."""
        return self.prefill_s + self.decode_s

    @property
    def tail_share(self) -> Floats:
        """The tail's share of decode [n]."""
        return self.tail_s / np.maximum(self.decode_s, 1e-300)


class Dispatch(TypedDict, total=False):
    """Options of how responses come to their ranks.

    correlation : of the responses of one prompt, by default a half; see `likeness`. group_size : of them on one rank:
        all where prompts are dispatched whole, 1 where responses are [responses].
    shared_prefix : the prompt is prefilled once for those.
    parts : steps over which a response may extend: 1 waits for all; with more, the unfinished ones go on in the next
        step beside its new ones (partial rollout), or new ones start before all the old ones have ended (staleness)
        [steps].
    by_group : `tpot_s` takes, third, the batch of all ranks of a unit: what reaches their experts, few in the tail.
    prefill_kept : what unfinished responses have written is prefilled again in each step, as new weights need.
    """

    correlation: float
    group_size: int
    shared_prefix: bool
    parts: int
    prefill_kept: bool
    by_group: bool


def rollout(
    engines: Engines,
    lengths: Lengths,
    prompt_tokens: float,
    tpot_s: TokenTime,
    prefill_s: PrefillTime,
    **dispatch: Unpack[Dispatch],
) -> Rollout:
    """Seconds and tokens of a rollout by layout: continuous batching until the last response ends.

    Parameters
    ----------
    engines : layouts; slots of at least 1. prompt_tokens : mean length of a prompt [tokens].
    tpot_s : seconds of one step of a unit, by batch of a rank and mean context. prefill_s : by a rank's tokens.

    Notes
    -----
    With parts, more responses may run than there are slots. Then all of them take as much longer.

    References
    ----------
    Orca (OSDI 2022): continuous batching. AReaL, arXiv:2505.24298: interruption, and prefill of what is kept.
    """
    group_size, parts, by_group = (
        dispatch.get("group_size", 1),
        dispatch.get("parts", 1),
        dispatch.get("by_group", False),
    )
    alike = likeness(lengths, dispatch.get("correlation", 0.5), group_size)
    ranks = engines.ranks if by_group else None
    own = slowest(engines, lengths, alike, group_size, prompt_tokens, tpot_s, parts, by_group)
    new_tokens = engines.responses * prompt_tokens / (group_size if dispatch.get("shared_prefix", True) else 1)
    if parts > 1:
        own, kept = folded(own, parts, engines.ranks)
        kept = kept if dispatch.get("prefill_kept", True) else np.zeros_like(kept)
        own = own.within(engines.slots)
        ends = np.cumsum(own.seconds(tpot_s, ranks), axis=1)
        longest, tail = parts * ends[:, -1], np.zeros(len(ends))
    else:
        kept = np.zeros(len(own.steps))
        ends = np.cumsum(own.seconds(tpot_s, ranks), axis=1)
        steps = np.cumsum(own.steps, axis=1)
        before = at_steps(steps, ends, steps[:, -1:] - own.longest_tokens[:, None])
        longest, tail = ends[:, -1] - before[:, 0], _tail_s(own, ends, engines)
    return Rollout(
        prefill_s=np.asarray(prefill_s(new_tokens + kept)),
        decode_s=ends[:, -1],
        longest_s=longest,
        longest_tokens=own.longest_tokens,
        tail_s=tail,
        waves=np.maximum(1.0, engines.responses / engines.slots),
        start_batch=own.batch[:, 0],
        kept_tokens=kept,
        steady_s=_steady_s(engines, lengths, prompt_tokens, tpot_s, parts, ranks) + prefill_s(new_tokens),
        ends_s=ends,
        batch=own.batch,
        mean_batch=own.mean_batch,
    )


def _tail_s(own: Stretches, ends: Floats, engines: Engines) -> Floats:
    """Seconds in which at most TAIL of the step's responses are not complete [n]."""
    last = TAIL * engines.responses
    seconds = np.diff(ends, axis=1, prepend=0.0)
    drain = np.where(own.mean_batch[:, 1:] <= last[:, None], seconds[:, 1:], 0.0).sum(axis=1)
    # While responses wait, what is not complete falls evenly from all to the slots.
    waiting = np.maximum(engines.responses - engines.running, 1e-300)
    return np.asarray(drain + seconds[:, 0] * np.clip((last - engines.running) / waiting, 0.0, 1.0))


def _steady_s(
    engines: Engines, lengths: Lengths, prompt_tokens: float, tpot_s: TokenTime, parts: int, ranks: Floats | None
) -> Floats:
    """Seconds of a step's decode in batches as large as slots and responses in flight allow, never draining [n]."""
    full = np.minimum(engines.slots, parts * engines.responses)[:, None]
    # A response that is met at random has written E l^2 / (2 E l) tokens.
    context = np.full_like(full, prompt_tokens + lengths.mean_square / (2.0 * lengths.mean))
    steady = Stretches(engines.responses[:, None] * lengths.mean / full, full, full, context, full[:, 0])
    return np.asarray(steady.seconds(tpot_s, ranks)[:, 0])
