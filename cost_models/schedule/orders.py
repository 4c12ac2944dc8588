"""Pipeline schedules as operation orders: which micro batch and chunk every device runs, slot after slot.

Symbols: P = pp pipeline devices, V = vpp chunks a device, M = micro_batches, p = device, c = chunk.
A slot is one forward (F), one backward (B), or a fused pair: the forward of one micro batch beside the backward of
another. Warm-up and cool-down slots are never fused: F and B carry what a pass alone takes.

The warm-up counts of the frameworks. Megatron-core's interleaved schedule runs 2 (P - p - 1) + (V - 1) N forwards
first, with groups of N micro batches, N = P unless `microbatch_group_size_per_vp_stage` says more; MindSpeed runs the
same schedule for plain interleaving. With no more micro batches than stages all forwards come first, as in
Megatron-core before 0.10 (4295be1a) and MindSpeed on it; later releases start the backwards of the later stages
sooner, which takes as long where stages are equal. Under MindSpeed's moe-fb-overlap there is one forward more
(`vpp_schedules.py`), so that the forward and the backward of every steady slot are independent; Megatron-core does
the same under `overlap_moe_expert_parallel_comm`. MindSpeed refuses micro batches that do not divide by P there;
Megatron-core takes any M >= N with a last group of at least P.

References
----------
1F1B and interleaving: Narayanan et al., arXiv 2104.04473, section 2.2; Megatron-core @d98e8a64
`pipeline_parallel/schedules.py` (`get_pp_rank_microbatches`, `get_schedule_table`). Adaptive Pipe: MindSpeed @028de58c
`fb_overlap/vpp_schedules.py`. DualPipe and DualPipeV: DeepSeek `dualpipe.py`, `dualpipev.py`, with dW split off in
step 3 and not in the cool-down, as MindSpeed does without --dualpipev-dw-detach.

Parameters
----------
forward_micro_batch, forward_chunk : what a slot runs forward, NONE where nothing [P, slots].
backward_micro_batch, backward_chunk : what a slot runs backward [P, slots].
forward_from, backward_from : chunk that sends this chunk its input, p v + c [P, v].
splits : lone backwards whose output leaves before their dW [P, slots].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from cost_models.bounded_cache import kept
from cost_models.schedule.kinds import MOST_CHUNKS, SCHEDULES, Schedule, schedule
from cost_models.schedule.placement import parts_of

if TYPE_CHECKING:
    from cost_models.arrays import Counts, Ints

NONE: Final = -1
"""Marks an absent forward or backward in a slot, and an absent neighbour of a model part."""
NUMBER: Final = np.int32
"""Kind of the numbers of slots, chunks and micro batches, of which long schedules keep many."""
Numbers: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class OperationOrder:
    """The slots of every device, in the order in which the device runs them.

    forward_micro_batch, forward_chunk, backward_micro_batch, backward_chunk: [pp, slots], NONE (-1) where a slot has no
    such half; short rows are padded with empty slots at the end. forward_from, backward_from: [pp, vpp], flat
    index p * vpp + c of the chunk that sends this chunk its input (of the forward, of the backward), or NONE.
    splits [pp, slots]: lone backwards whose output leaves before their weight gradients run.
    """

    kind: str
    pp: int
    vpp: int
    micro_batches: int
    forward_micro_batch: Numbers
    forward_chunk: Numbers
    backward_micro_batch: Numbers
    backward_chunk: Numbers
    forward_from: Ints
    backward_from: Ints
    splits: npt.NDArray[np.bool_]

    @cached_property
    def slots(self) -> Ints:
        """Slots that each device really has [pp]."""
        used = (self.forward_micro_batch != NONE) | (self.backward_micro_batch != NONE)
        return np.asarray(used.sum(axis=1))

    @cached_property
    def pairs(self) -> npt.NDArray[np.bool_]:
        """Slots that are fused forward-backward pairs [pp, slots]."""
        return np.asarray((self.forward_micro_batch != NONE) & (self.backward_micro_batch != NONE))

    @cached_property
    def has_pairs(self) -> bool:
        """True where a slot is a pair."""
        return bool(self.pairs.any())

    @cached_property
    def has_splits(self) -> bool:
        """True where a slot is a split backward."""
        return bool(self.splits.any())


def group_size(pp: Ints | int, micro_batches: Ints | int) -> Ints:
    """Micro batches that run through one chunk before the next chunk has its turn (interleaved schedules) [n].

    P when M is a multiple of P. Megatron-core refuses a last group smaller than P, so otherwise the smallest N > P with
    M mod N = 0 or M mod N >= P (its `microbatch_group_size_per_vp_stage`); all of them when M < P.
    """
    pp, micro_batches = np.broadcast_arrays(pp, micro_batches)
    size = np.atleast_1d(np.minimum(pp, micro_batches)).copy()
    stages, m = pp.ravel(), micro_batches.ravel()
    refused = np.flatnonzero(m % np.maximum(stages, 1))  # the others come in groups of pp
    while len(refused):
        smallest = size.ravel()[refused]
        rest = m[refused] % np.maximum(smallest, 1)
        refused = refused[(smallest < m[refused]) & (rest != 0) & (rest < stages[refused])]
        size.ravel()[refused] += 1
    return np.asarray(size.reshape(pp.shape))


def forwards_ahead(
    kind: str,
    stage: Counts | int,
    pp: Counts | int,
    vpp: Counts | int,
    micro_batches: Counts | int,
    size: Counts | None = None,
) -> Counts:
    """Forwards before a stage's first backward in the interleaved orders, were there enough of them [n].

    2 (P - p - 1) + (V - 1) N + 1 with group size N (`size`, where it is known already) in the plain one, whose last
    forward of these is in the first steady slot. Where passes are paired all of them are warm-up forwards, so that one
    extra forward in the warm-up makes as many.
    """
    how = schedule(kind)
    size = group_size(pp, micro_batches) if size is None else size
    first = how.extra_warm_up + (0 if how.pairs else 1)
    return np.asarray(2 * (np.asarray(pp) - stage - 1) + (np.asarray(vpp) - 1) * size + first)


def warm_up_slots(kind: str, pp: int, vpp: int, micro_batches: int) -> Ints:
    """Forwards that each device runs before its first steady slot [pp], of schedules that have one.

    One a device behind (1f1b): P - p - 1; interleaved: 2 (P - p - 1) + (V - 1) N with group size N, and the schedule's
    extra ones. Never more than the M V forwards there are, and all of them where it gathers forwards and M <= P.
    """
    how = schedule(kind)
    stage = np.arange(pp)
    total = micro_batches * vpp
    if how.alternates:
        return np.minimum(pp - stage - 1, total)
    if how.gathers and micro_batches <= pp and vpp > 1:
        return np.full(pp, total)
    ahead = forwards_ahead(kind, stage, pp, vpp, micro_batches)
    return np.asarray(np.minimum(ahead if how.pairs else ahead - 1, total))


def schedule_problem(kind: str, pp: int, vpp: int, micro_batches: int) -> str | None:
    """Why a schedule doesn't exist for these numbers, or None."""
    if kind not in SCHEDULES:
        return f"unknown schedule {kind!r}; known: {', '.join(SCHEDULES)}"
    if min(pp, vpp, micro_batches) < 1:
        return f"pp, vpp and micro_batches must be at least 1, not {pp}, {vpp}, {micro_batches}"
    how = schedule(kind)
    # One chunk of an interleaved schedule has an order too, though nobody would launch it.
    if how.most_chunks < MOST_CHUNKS and not how.has_chunks(vpp):
        other = f"; use {how.other_chunks}" if how.other_chunks else ""
        return f"{kind} has {chunks_in_words(how)} a device, not {vpp}{other}"
    if how.own_order:
        return how.problem(pp, vpp, micro_batches)
    if how.folded and micro_batches < 2 * pp - 1:
        return f"{kind} needs at least 2 pp - 1 = {2 * pp - 1} micro batches, not {micro_batches}"
    if how.copies > 1 and (pp % 2 or micro_batches % 2 or micro_batches < 2 * pp - 2):
        return (
            f"{kind} needs an even pp, an even number of micro batches and at least 2 pp - 2 of them, "
            f"not pp {pp} and {micro_batches} micro batches"
        )
    return None


def chunks_in_words(how: Schedule) -> str:
    """Number of chunks of a device where there is a limit: one chunk, two chunks, 2 to 4 chunks."""
    if how.least_chunks == how.most_chunks:
        return {1: "one chunk", 2: "two chunks"}.get(how.most_chunks, f"{how.most_chunks} chunks")
    return f"{how.least_chunks} to {how.most_chunks} chunks"


def operation_order(kind: str, pp: int, vpp: int, micro_batches: int) -> OperationOrder:
    """The slots of every device under a schedule.

    Raises
    ------
    ValueError : the schedule doesn't exist for these numbers, or there is none of that name (`schedule_problem`).
    """
    if problem := schedule_problem(kind, pp, vpp, micro_batches):
        raise ValueError(problem)
    return _order_of(schedule(kind), pp, vpp, micro_batches)


@kept(256)
def _order_of(how: Schedule, pp: int, vpp: int, micro_batches: int) -> OperationOrder:
    if how.order is not None:
        return _assemble(how, vpp, micro_batches, how.order(pp, vpp, micro_batches))
    if how.ends_meet:
        return _dual_order(how, pp, vpp, micro_batches)
    return _interleaved_order(how, pp, vpp, micro_batches)


def _interleaved_order(how: Schedule, pp: int, vpp: int, micro_batches: int) -> OperationOrder:
    micro_batch, chunk = _chunk_turns(pp, vpp, micro_batches)
    rows = [
        _steady_row(how.pairs, int(ahead), micro_batch, chunk, vpp)
        for ahead in warm_up_slots(how.name, pp, vpp, micro_batches)
    ]
    return _assemble(how, vpp, micro_batches, rows)


def _chunk_turns(pp: int, vpp: int, micro_batches: int) -> tuple[Ints, Ints]:
    """The sequence of (micro batch, chunk) of the forwards; backwards take the chunks in reverse."""
    size = int(group_size(pp, micro_batches)) if vpp > 1 else micro_batches
    micro_batch, chunk = [], []
    for first in range(0, micro_batches, size):
        group = np.arange(first, min(first + size, micro_batches))
        micro_batch.append(np.tile(group, vpp))
        chunk.append(np.repeat(np.arange(vpp), len(group)))
    return np.concatenate(micro_batch), np.concatenate(chunk)


def _steady_row(fused: bool, ahead: int, micro_batch: Ints, chunk: Ints, vpp: int) -> Ints:
    """One device's slots [5, slots]: warm-up forwards, steady F-B slots (fused or one after the other), backwards."""
    total = len(micro_batch)
    none = np.full(total, NONE)
    forwards = np.stack([micro_batch, chunk, none, none, none])
    backwards = np.stack([none, none, micro_batch, vpp - 1 - chunk, none])
    steady = total - ahead
    if fused:
        middle = np.concatenate([forwards[:2, ahead:], backwards[2:, :steady]])
    else:
        middle = np.stack([forwards[:, ahead:], backwards[:, :steady]], axis=-1).reshape(5, -1)
    return np.concatenate([forwards[:, :ahead], middle, backwards[:, steady:]], axis=1)


def _dual_order(how: Schedule, pp: int, vpp: int, micro_batches: int) -> OperationOrder:
    if how.folded:
        rows = [_dual_row(pp, rank, micro_batches, fuse_first=rank < pp - 1) for rank in range(pp)]
        return _assemble(how, vpp, micro_batches, rows)
    half = pp // 2
    rows = []
    for rank in range(pp):
        near_end = min(rank, pp - 1 - rank)
        row = _dual_row(half, near_end, micro_batches // 2, fuse_first=near_end < half - 1)
        if rank >= half:  # the second half of the devices sees the two directions swapped
            row[1] = np.where(row[1] == NONE, NONE, 1 - row[1])
            row[3] = np.where(row[3] == NONE, NONE, 1 - row[3])
        rows.append(row)
    return _assemble(how, vpp, micro_batches, rows)


def _dual_row(ranks: int, rank: int, micro_batches: int, *, fuse_first: bool) -> Ints:
    """One device of DualPipe or DualPipeV [5, slots]: the seven steps of DeepSeek's programs.

    nF0, n(F0 F1), n(B1 F1), n(F0&B1 F1&B0), n(B1 F1&B0), n(B1 B0), nB0; the device at the turn doesn't fuse its first
    pair, whose backward needs the forward just before. In the third step dW runs after the output of B1 has left.
    """
    outer = ranks - rank - 1
    main = micro_batches - 2 * ranks + rank + 1
    row: list[tuple[int, int]] = [(0, NONE)] * (2 * outer)
    row += [(0, NONE), (1, NONE)] * (rank + 1)
    split = len(row) + 2 * np.arange(outer)
    row += [(NONE, 1), (1, NONE)] * outer
    if main > 0:
        row += ([(0, 1)] if fuse_first else [(0, NONE), (NONE, 1)]) + [(1, 0)]
        row += [(0, 1), (1, 0)] * (main - 1)
    row += [(NONE, 1), (1, 0)] * outer
    row += [(NONE, 1), (NONE, 0)] * (rank + 1)
    row += [(NONE, 0)] * outer
    chunks = np.array(row).T
    slots = np.full((5, chunks.shape[1]), NONE)
    slots[1], slots[3] = chunks
    slots[4, split] = 1
    for half in (0, 2):
        for chunk in (0, 1):
            of_chunk = slots[half + 1] == chunk
            slots[half, of_chunk] = np.arange(of_chunk.sum())
    return slots


def _assemble(how: Schedule, vpp: int, micro_batches: int, rows: list[Ints]) -> OperationOrder:
    """Pad the rows to one array and link the chunks in model order."""
    pp = len(rows)
    slots = np.full((4, pp, max(row.shape[1] for row in rows)), NONE, dtype=NUMBER)
    splits = np.zeros(slots.shape[1:], dtype=np.bool_)
    for device, row in enumerate(rows):
        slots[:, device, : row.shape[1]] = row[:4]
        splits[device, : row.shape[1]] = row[4] == 1
    before, after = np.full((pp, vpp), NONE), np.full((pp, vpp), NONE)
    parts = parts_of(how, pp, vpp)
    for first, second in pairwise(parts):
        # The copies of a part are in different directions: each feeds the copy of the next part in its own.
        for here, there in zip(first, second, strict=True):
            before[there] = here[0] * vpp + here[1]
            after[here] = there[0] * vpp + there[1]
    forward_micro_batch, forward_chunk, backward_micro_batch, backward_chunk = slots
    return OperationOrder(
        how.name,
        pp,
        vpp,
        micro_batches,
        forward_micro_batch,
        forward_chunk,
        backward_micro_batch,
        backward_chunk,
        before,
        after,
        splits,
    )
