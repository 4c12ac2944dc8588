"""How unevenly packed documents load the data-parallel ranks of each candidate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cost_models.sample_packing import MOST_PACKS, attention_imbalance, mean_keys, pack_squares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Floats


@dataclass(frozen=True, eq=False)
class Packs:
    """Packs of a global batch: sum of squared document lengths of each, the mean keys that a query attends to, and the
    mean number of documents of a pack.
    """

    squares: Floats
    keys: float
    documents: float


def packs_of(histogram: Mapping[str, float], seq_length: int, global_batch: int) -> Packs:
    """Documents drawn from a histogram {length: share}, packed; longer ones are cut into full sequences."""
    weights = tuple(sorted((int(length), share) for length, share in histogram.items() if share > 0.0))
    return _packs(weights, seq_length, min(global_batch, MOST_PACKS))


@lru_cache(maxsize=16)
def _packs(weights: tuple[tuple[int, float], ...], seq_length: int, packs: int) -> Packs:
    squares = pack_squares(dict(weights), seq_length, packs)
    mean = sum(length * share for length, share in weights) / sum(share for _, share in weights)
    return Packs(squares, mean_keys(squares, seq_length), max(1.0, seq_length / mean))


def attention_factor(packs: Packs | None, candidates: Candidates, *, rearranged: bool) -> Floats:
    """Time of attention on the ranks that set the pace, against the mean [n]; 1 where sequences are full.

    Ranks whose experts lie on each other wait for each other in every micro batch; the others at the end of a step.
    A pipeline's bubble is that of equal micro batches. rearranged : similar packs share a micro batch.
    """
    if packs is None:
        return np.ones(len(candidates))
    c = candidates
    spread = np.where(c.ep > 1, c.ep * c.etp // np.maximum(c.tp * c.cp, 1), 1)
    ranks = np.gcd(np.clip(spread, 1, np.maximum(c.dp, 1)), c.dp)
    keys = np.stack([c.dp // ranks, ranks, c.micro_batch_size, c.micro_batches], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    factors = [_factor(packs, *(int(value) for value in row), rearranged) for row in distinct]
    return np.asarray(factors)[inverse.ravel()]


@lru_cache(maxsize=65_536)
def _factor(
    packs: Packs, groups: int, ranks: int, micro_batch_size: int, micro_batches: int, rearranged: bool
) -> float:
    return attention_imbalance(
        packs.squares,
        groups=groups,
        ranks=ranks,
        micro_batch_size=micro_batch_size,
        micro_batches=micro_batches,
        rearranged=rearranged,
    )
