"""Uneven work between ranks: hot experts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Number = Floats | float | int


def rank_imbalance(group_imbalance: Number, ranks: Number) -> Floats:
    """max / mean load over the ranks of an expert parallel group, never above what the group allows.

    One rank can at most receive everything: the factor is at most the number of ranks; a group of one rank is
    balanced by definition.
    """
    return np.asarray(np.where(np.asarray(ranks) > 1, np.minimum(group_imbalance, ranks), 1.0))
