"""What pairs of chunks hide at most, as sums over layers: valid whatever the layout."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.inner_problem import layer_pairs
from autodeploy.evaluation.pair_shares import one_sided_shares, tight_shares

if TYPE_CHECKING:
    from autodeploy.evaluation.inner_problem import Floats, InnerProblem


@lru_cache(maxsize=64)
def _shares(hidden: tuple[tuple[float, ...], ...], layers: tuple[int, ...]) -> tuple[tuple[Floats, Floats], ...]:
    table = [[np.asarray(value) for value in row] for row in hidden]
    rows = (tight_shares(table, layers), *one_sided_shares(table))
    return tuple((np.array(s.forward_s, dtype=np.float64), np.array(s.backward_s, dtype=np.float64)) for s in rows)


def hidden_shares(problem: InnerProblem) -> tuple[tuple[Floats, Floats], ...]:
    """Seconds that a layer hides in a paired forward and in a paired backward ([classes], [classes]), at most.

    Each entry bounds every pair of chunks; the first bounds all layers together best. None where nothing is paired.
    """
    if not problem.pairs:
        return ()
    hidden = layer_pairs(problem).hidden_s
    if not (hidden > 0.0).any():
        return ()
    return _shares(tuple(map(tuple, hidden.tolist())), problem.layers)


def most_hidden_s(problem: InnerProblem) -> Floats:
    """Seconds that a layer of each class hides when both of its passes are in a pair [classes], at most."""
    shares = hidden_shares(problem)
    return shares[0][0] + shares[0][1] if shares else np.zeros(len(problem.classes))
