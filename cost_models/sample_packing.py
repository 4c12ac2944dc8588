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

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cost_models.arrays import Floats


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
    count = int(np.ceil(DRAW_SHARE * needed / float(lengths @ share))) + DRAW_MORE
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
