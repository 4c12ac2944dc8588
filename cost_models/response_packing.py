"""Responses as the micro batches that are trained on: packed whole up to a number of tokens, or a few at a time."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cost_models.sample_packing import SEED

if TYPE_CHECKING:
    from cost_models.arrays import Floats
    from cost_models.response_lengths import Lengths


MOST_SAMPLES = 2048  # that are packed; more change the tokens of a mean pack by less than 1 in 1000


@dataclass(frozen=True, eq=False)
class Packing:
    """Samples (prompt and response) in packs.

    packs : for one sample (ratio, at most 1). tokens : of a sample, mean [tokens]. longest : tokens of the longest
        sample [tokens].
    squares : sum of squared sample lengths of each pack, in the order of training [packs, tokens^2].
    """

    packs: float
    tokens: float
    longest: float
    squares: Floats

    @property
    def keys(self) -> float:
        """Mean keys that a query attends to, causal and inside its sample [tokens]."""
        return float(self.squares.mean()) * self.packs / (2.0 * self.tokens)

    @property
    def documents(self) -> float:
        """Samples of a mean pack."""
        return 1.0 / self.packs


@lru_cache(maxsize=64)
def packing(lengths: Lengths, prompt_tokens: float, capacity: float | None, samples: int) -> Packing:
    """How the samples of an update are packed.

    Parameters
    ----------
    prompt_tokens : mean length of a prompt, which each sample begins with [tokens]. capacity : tokens of a pack; None:
        each sample is a sequence of its own [tokens]. samples : of the update [count].

    Raises
    ------
    ValueError
        if the longest sample is longer than a pack.

    Notes
    -----
    The samples are the middles of as many equal shares of the lengths. Best fit, longest first: a sample goes where it
    leaves least room. No sample is cut.

    References
    ----------
    Johnson, "Near-optimal bin packing algorithms", 1973: best fit decreasing. NeMo RL (modified first fit decreasing)
    and verl (balanced partitions) come within a pack or two of it.
    """
    count = min(samples, MOST_SAMPLES)
    upto = np.cumsum(lengths.share) / lengths.share.sum()
    place = np.minimum(np.searchsorted(upto, (np.arange(count) + 0.5) / count), len(upto) - 1)
    each = prompt_tokens + lengths.tokens[place]
    mean, longest = prompt_tokens + lengths.mean, prompt_tokens + lengths.longest
    if capacity is None:
        return Packing(1.0, mean, longest, _in_turn(each**2))
    if longest > capacity:
        raise ValueError(f"a sample of {longest:.0f} tokens is longer than a pack of {capacity:.0f}")
    squares = _best_fit(np.sort(each)[::-1], capacity)
    return Packing(len(squares) / count, mean, longest, _in_turn(squares))


def _best_fit(lengths: Floats, capacity: float) -> Floats:
    """Sum of squared lengths of each pack, lengths given longest first [packs]."""
    rooms: list[tuple[float, int]] = []  # ascending
    squares: list[float] = []
    for length in lengths.tolist():
        place = bisect_left(rooms, (length, -1))
        if place == len(rooms):
            room, pack = capacity, len(squares)
            squares.append(0.0)
        else:
            room, pack = rooms.pop(place)
        squares[pack] += length**2
        insort(rooms, (room - length, pack))
    return np.array(squares)


def _in_turn(squares: Floats) -> Floats:
    """Packs in an order that has nothing to do with their lengths, the same each time."""
    return np.asarray(squares[np.random.RandomState(SEED).permutation(len(squares))])
