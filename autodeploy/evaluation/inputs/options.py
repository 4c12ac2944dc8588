"""Switches of a batch of candidates that change exchanges and overlap: arrays of booleans, candidate first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.strategies.candidates import DISPATCHERS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from autodeploy.evaluation.inputs.expert_balance import ExpertBalance
    from cost_models.all_to_all import ExpertGroups
    from cost_models.arrays import Bools, Floats
    from cost_models.collectives import Group

FLAT, SEQUENTIAL, ALL_GATHER, HIERARCHICAL = range(len(DISPATCHERS))


@dataclass(frozen=True, slots=True)
class Sharded:
    """Fully sharded data parallelism: the ranks that share dense and expert parameters, and what runs beside work.

    gradient_bytes : of one gradient element in the reduction; expert_gradient_bytes : of an expert's [n].
    dense_copies, expert_copies_group : the ranks that hold the same shard and add up its gradients (HSDP).
    keeps_gathered : weights stay whole from the forward to the backward pass [n].
    copies, expert_copies : of weights out of what is gathered, and of gradients into what is reduced [n].
    """

    dense: Group
    expert: Group
    dense_copies: Group
    expert_copies_group: Group
    gradient_bytes: float
    expert_gradient_bytes: Floats
    overlap_gather: bool
    overlap_reduce: bool
    keeps_gathered: Bools
    copies: float
    expert_copies: Floats


@dataclass(frozen=True, slots=True)
class ExchangeFeatures:
    """Features of the communication, one entry per candidate.

    tp_fusion : chunks of a fused or chunked matrix multiplication with its collective (1 = none).
    dispatcher : index into DISPATCHERS. balance : how evenly experts load the ranks.
    paired : the schedule runs the forward of one micro batch against the backward of another.
    recompute_in_waits : what the backward pass recomputes may run while it waits for an exchange.
    attention_imbalance : time of attention on the ranks that set the pace, against the mean.
    async_gathers : an all-gather dispatcher issues its gathers before the host waits. captured : what does not depend
    on the router's sizes is launched as a graph.
    compiled : the device runs a whole graph, and no host issues its operators.
    groups : group-limited routing. pipelined : the two steps of a hierarchical exchange run at the same time.
    """

    dispatcher: npt.NDArray[np.int64]
    tp_fusion: npt.NDArray[np.float64]
    tp_fused_kernel: bool
    alltoall_overlap: Bools
    shared_expert_overlap: Bools
    paired: Bools
    recompute_in_waits: Bools
    balance: ExpertBalance
    attention_imbalance: npt.NDArray[np.float64]
    deduplicate: bool = False
    sync_free: bool = False
    compiled: bool = False
    host_reorder: bool = False
    async_gathers: bool = False
    captured: bool = False
    vector_parallel: bool = False
    pipelined: bool = True
    groups: ExpertGroups | None = None
    sharded: Sharded | None = None  # None: every rank holds its parameters whole
