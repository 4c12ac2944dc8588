"""Attention over packed documents: what a pack of documents costs, and how unevenly packs load the ranks.

Documents of different lengths are packed into sequences of one length and cut at its end; attention stays inside a
document. A pack's attention takes c1 sum(l) + c2 sum(l^2) over its documents: every pack has the same tokens, so packs
differ by their sum of squares.

Parameters
----------
packs : sequences made of documents [packs].
costs, bins : what is dealt, and to how many.
micro_batch_size : sequences of a micro batch [sequences].
micro_batches : of a step on one data-parallel rank [count].
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import product

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cost_models.arrays import Floats
    from cost_models.response_lengths import Lengths


SEED = 20251121
MOST_PACKS = 4096  # of a global batch that are looked at; more only sharpen the mean
# Documents drawn at a time: a fifth and 64 more than the mean needs, so that one draw is enough but for rare batches.
# The generator is read on in order, so that how many are drawn at a time changes no pack.
DRAW_SHARE, DRAW_MORE = 1.2, 64


def pack_squares(weights: Mapping[int, float], seq_length: int, packs: int) -> Floats:
    """Sum of squared document lengths of each pack [packs].

    Parameters
    ----------
    weights : document length [tokens] -> share of documents; the shares may add up to anything.
    seq_length : of a pack [tokens].

    Documents are drawn in proportion to their shares with numpy's frozen legacy generator, so that equal histograms
    give equal packs.
    """
    lengths = np.array(sorted(weights), dtype=np.int64)
    share = np.array([weights[int(length)] for length in lengths])
    share = share / share.sum()
    needed = packs * seq_length
    count = int(np.ceil(DRAW_SHARE * needed / float(product(lengths, share)))) + DRAW_MORE
    state = np.random.RandomState(SEED)
    ends = np.cumsum(state.choice(lengths, size=count, p=share))
    while ends[-1] < needed:
        ends = np.concatenate([ends, ends[-1] + np.cumsum(state.choice(lengths, size=count, p=share))])
    cuts = np.union1d(ends[ends < needed], np.arange(0, needed + 1, seq_length))
    pieces = np.diff(cuts).astype(np.float64)
    return np.asarray(np.bincount(cuts[:-1] // seq_length, weights=pieces**2, minlength=packs), dtype=np.float64)


def mean_keys(squares: Floats, seq_length: int) -> float:
    """Mean keys that a query attends to under a causal mask inside documents [tokens]: sum(l^2) / (2 sum(l)).

    Each document is a causal triangle of l^2 / 2 scores; every pack has `seq_length` tokens.
    """
    return float(squares.mean()) / (2.0 * seq_length)


def longest_first(costs: Floats, bins: int) -> Floats:
    """Load of each bin when costs go, largest first, to the bin with the least load that has a free slot [bins].

    Every bin takes the same number of costs. Graham, 1969: longest processing time first.
    """
    slots = len(costs) // bins
    heap = [(0.0, number, slots) for number in range(bins)]
    heapify(heap)
    done = np.zeros(bins)
    for cost in np.sort(costs)[::-1].tolist():
        load, number, free = heap[0]
        if free == 1:
            done[number] = load + cost
            heapreplace(heap, (float("inf"), number, 0))
        else:
            heapreplace(heap, (load + cost, number, free - 1))
    return done


def attention_imbalance(
    squares: Floats, *, groups: int, ranks: int, micro_batch_size: int, micro_batches: int, rearranged: bool
) -> float:
    """Time of attention on the ranks that set the pace against the mean rank (ratio, at least 1).

    Parameters
    ----------
    squares : of the packs of a global batch, in the order in which they are read [tokens^2].
    groups : sets of data-parallel ranks that wait for each other only at the end of a step.
    ranks : of each set; they wait for each other in every micro batch (experts spread over them). 1: nobody does.
    rearranged : similar packs share a micro batch, and longest first deals the packs of each to the ranks; where nobody
        waits inside a step, longest first deals all packs to all ranks. Never worse than the order as read.

    Notes
    -----
    max over groups of (sum over rounds of (max over ranks of S)) / (rounds x mean of S), with S the sum of the squares
    of a rank's packs in a round: attention's time is in proportion to it. A round is one micro batch of every rank; at
    least one is looked at, and no more than MOST_PACKS packs.

    References
    ----------
    Own derivation for ranks that wait in every micro batch. Dealing longest first: Graham, 1969, as `longest_first`.
    """
    per_round = groups * ranks * micro_batch_size
    rounds = max(1, min(micro_batches, MOST_PACKS // per_round))
    used = np.resize(squares, rounds * per_round)
    mean = float(used.mean()) * rounds * micro_batch_size
    plain = used.reshape(rounds, groups, ranks, micro_batch_size).sum(axis=3).max(axis=2).sum(axis=0).max()
    if not rearranged:
        return float(plain) / mean
    if ranks == 1:
        return float(min(plain, longest_first(used, groups).max())) / mean
    ordered = np.sort(used)[::-1].reshape(rounds, groups * ranks * micro_batch_size)
    slowest = np.zeros(groups)
    for packs in ordered:
        # Alternate the order so that no set takes the longer packs of every micro batch.
        grouped = packs.reshape(-1, groups)
        grouped = np.where((np.arange(len(grouped)) % 2 == 0)[:, None], grouped, grouped[:, ::-1])
        for group in range(groups):
            slowest[group] += longest_first(grouped[:, group], ranks).max()
    return float(min(plain, slowest.max())) / mean


# Responses as the micro batches that are trained on.
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
    """Packs of the samples of an update.

    Parameters
    ----------
    prompt_tokens : mean length of a prompt, which each sample begins with [tokens]. capacity : tokens of a pack; None:
        each sample is a sequence of its own [tokens]. samples : of the update [count].

    Raises ValueError if the longest sample is longer than a pack.

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
