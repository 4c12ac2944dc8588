"""What pairs hide, shared out over the layers that run forward and those that run backward.

A pair of chunks hides the sum over its pairs of layers of what each hides. Shares u (of a layer's forward) and v (of a
layer's backward) with u_i + v_j >= hidden[i, j], all >= 0, bound that sum from above, layer by layer, whatever runs
beside what: linear programming's dual of matching layers. Every feasible pair of shares is such a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_models.arrays import Floats


@dataclass(frozen=True, eq=False)
class PairShares:
    """Seconds that a layer of each class hides at most in a paired forward and in a paired backward [classes][n]."""

    forward_s: tuple[Floats, ...]
    backward_s: tuple[Floats, ...]

    @property
    def both_s(self) -> tuple[Floats, ...]:
        """Of a layer whose two passes are both in a pair."""
        return tuple(np.asarray(f + b) for f, b in zip(self.forward_s, self.backward_s, strict=True))


def tight_shares(hidden_s: Sequence[Sequence[Floats]], counts: Sequence[int]) -> PairShares:
    """Shares that together bound what all layers hide (each class `counts` times in both passes) as low as we can.

    Tried: forwards take what they hide beside a backward of one class and backwards the rest, for every class, and
    the same with forward and backward exchanged. With one or two classes the best of them is the optimum.
    """
    classes = range(len(hidden_s))
    mirrored = [[hidden_s[j][i] for j in classes] for i in classes]
    tried = [_from_column(hidden_s, k) for k in classes]
    tried += [PairShares(s.backward_s, s.forward_s) for s in (_from_column(mirrored, k) for k in classes)]
    best, least = tried[0], _total(tried[0], counts)
    for shares in tried[1:]:
        total = _total(shares, counts)
        better = total < least
        best = PairShares(
            tuple(np.where(better, a, b) for a, b in zip(shares.forward_s, best.forward_s, strict=True)),
            tuple(np.where(better, a, b) for a, b in zip(shares.backward_s, best.backward_s, strict=True)),
        )
        least = np.minimum(total, least)
    return best


def one_sided_shares(hidden_s: Sequence[Sequence[Floats]]) -> tuple[PairShares, PairShares]:
    """Everything counted for the forwards, and everything for the backwards."""
    classes = range(len(hidden_s))
    zero = tuple(np.zeros_like(np.asarray(hidden_s[i][i])) for i in classes)
    rows = tuple(np.asarray(np.max(np.stack([np.asarray(hidden_s[i][j]) for j in classes]), axis=0)) for i in classes)
    columns = tuple(
        np.asarray(np.max(np.stack([np.asarray(hidden_s[i][j]) for i in classes]), axis=0)) for j in classes
    )
    return PairShares(_positive(rows), zero), PairShares(zero, _positive(columns))


def _from_column(hidden_s: Sequence[Sequence[Floats]], column: int) -> PairShares:
    classes = range(len(hidden_s))
    forward = [np.maximum(hidden_s[i][column], 0.0) for i in classes]
    backward = []
    for j in classes:
        short = np.zeros_like(np.asarray(forward[0]))
        for i in classes:
            short = np.maximum(short, hidden_s[i][j] - forward[i])
        backward.append(short)
    return PairShares(tuple(np.asarray(f) for f in forward), tuple(np.asarray(b) for b in backward))


def _total(shares: PairShares, counts: Sequence[int]) -> Floats:
    return np.asarray(sum(count * both for count, both in zip(counts, shares.both_s, strict=True)))


def _positive(values: tuple[Floats, ...]) -> tuple[Floats, ...]:
    return tuple(np.asarray(np.maximum(value, 0.0)) for value in values)
