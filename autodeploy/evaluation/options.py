"""Switches of a batch of candidates that change exchanges and overlap: arrays of booleans, candidate first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autodeploy.strategies.candidates import DISPATCHERS

Bools = npt.NDArray[np.bool_]
FLAT, SEQUENTIAL, ALL_GATHER, HIERARCHICAL = range(len(DISPATCHERS))


@dataclass(frozen=True, slots=True)
class ExchangeFeatures:
    """Features of the communication, one entry per candidate.

    tp_fusion : chunks of a fused or chunked matrix multiplication with its collective (1 = none).
    dispatcher : index into DISPATCHERS.
    paired : the schedule runs the forward of one micro batch against the backward of another.
    """

    dispatcher: npt.NDArray[np.int64]
    tp_fusion: npt.NDArray[np.float64]
    alltoall_overlap: Bools
    shared_expert_overlap: Bools
    paired: Bools
    deduplicate: bool = False
    sync_free: bool = False
    imbalance: float = 1.0
    groups_limit: float | None = None
