"""Switches of a batch of candidates that change exchanges and overlap: arrays of booleans, candidate first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
DISPATCHERS: tuple[str, ...] = ("alltoall", "alltoall_seq", "allgather", "hierarchical")
FLAT, SEQUENTIAL, ALL_GATHER, HIERARCHICAL = range(4)


@dataclass(frozen=True, slots=True)
class ExchangeFeatures:
    """Features of the communication, one entry per candidate.

    tp_fusion : chunks of a fused or chunked matrix multiplication with its collective (1 = none).
    dispatcher : index into DISPATCHERS.
    """

    dispatcher: npt.NDArray[np.int64]
    tp_fusion: npt.NDArray[np.float64]
    alltoall_overlap: Bools
    shared_expert_overlap: Bools
    deduplicate: bool = False
    mutual_routing: bool = False
    sync_free: bool = False
    imbalance: float = 1.0
    groups_limit: float | None = None
    hidden_ring: bool = True


Phase = Literal["forward", "backward"]
