"""Micro batches in flight: how many forwards of each chunk a device holds whose backward has not ended yet.

A device runs one slot at a time, so the counts follow from its order alone, whatever the times. In a fused pair the
old backward frees a layer for each that the new forward keeps: beside the larger of the two there is one layer more,
which is workspace. Source: MindSpeed @028de58c moe_feature/fb_overlap/overlap_funcs/fwdbwd.py, whose pairs of layers
drop the backward's graph before the next pair, and no_pipelining_schedules.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.compiled import compiled
from cost_models.schedule.graph_counts import of_stages
from cost_models.schedule.kinds import Schedule, schedule
from cost_models.schedule.orders import NONE, Numbers, OperationOrder, forwards_ahead, operation_order

if TYPE_CHECKING:
    from cost_models.arrays import Counts, Ints


def in_flight(kind: str, pp: int, vpp: int, micro_batches: int) -> Ints:
    """Micro batches in flight: those that each chunk holds at its stage's peak [pp, vpp], from the graph.

    The peak is the first moment at which the device holds most chunks (equal chunk bytes). With unequal chunks another
    moment can cost more: see `in_flight_moments`.
    """
    return _in_flight(schedule(kind), pp, vpp, micro_batches)


@lru_cache(maxsize=256)
def _in_flight(how: Schedule, pp: int, vpp: int, micro_batches: int) -> Ints:
    order = operation_order(how.name, pp, vpp, micro_batches)
    return np.stack([held[held.sum(axis=1).argmax()] for held in (_held_on(order, device) for device in range(pp))])


def in_flight_moments(kind: str, pp: int, vpp: int, micro_batches: int) -> Ints:
    """Every composition that can be a stage's peak for some chunk bytes [pp, moments, vpp].

    A stage's activation peak is the maximum over moments of sum_c count_c bytes_c. Moments that another one dominates,
    or that lie between two others, are left out; short rows repeat their last moment.
    """
    return _moments(schedule(kind), pp, vpp, micro_batches)


@lru_cache(maxsize=1024)
def _moments(how: Schedule, pp: int, vpp: int, micro_batches: int) -> Ints:
    order = operation_order(how.name, pp, vpp, micro_batches)
    rows = [_outermost(_undominated(_held_on(order, device))) for device in range(pp)]
    most = max(len(row) for row in rows)
    return np.stack([np.concatenate([row, np.repeat(row[-1:], most - len(row), axis=0)]) for row in rows])


def _outermost(points: Ints) -> Ints:
    """Points [n, vpp] that are no midpoint of two others in their own direction, in ascending order."""
    points = points[np.lexsort(points.T[::-1])]
    vpp = points.shape[1]
    if vpp == 1 or len(points) < 3:
        return points
    base = int(points.max()) + 3
    if base**vpp >= 1 << 62:
        return points
    # Points as whole numbers; every count one more, so that a neighbour below zero is no other point's number.
    digit = base ** np.arange(vpp, dtype=np.int64)
    codes = (points + 1) @ digit
    ahead, behind = _chunk_pairs(vpp)
    steps, sorted_codes = (digit[ahead] - digit[behind])[:, None], np.sort(codes)
    between = (_among(codes + steps, sorted_codes) & _among(codes - steps, sorted_codes)).any(axis=0)
    return np.asarray(points[~between])


@compiled
def _covers(points: Ints, one: int, others: Ints, other: int) -> bool:
    """Whether no count of one of the points [n, vpp] is below that of one of the others; rows are not cut out, which
    would cost more than the comparison.
    """
    chunk, vpp = 0, points.shape[1]
    while chunk < vpp and points[one, chunk] >= others[other, chunk]:
        chunk += 1
    return bool(chunk == vpp)


@compiled
def _undominated(points: Ints) -> Ints:
    """The points [n, vpp] that no other one covers, each once."""
    kept, vpp = np.empty_like(points), points.shape[1]
    number = 0
    for one in range(len(points)):
        for other in range(number):
            if _covers(kept, other, points, one):
                break
        else:
            left = 0
            for other in range(number):
                if not _covers(points, one, kept, other):
                    for chunk in range(vpp):  # an assignment of rows takes seconds to compile
                        kept[left, chunk] = kept[other, chunk]
                    left += 1
            for chunk in range(vpp):
                kept[left, chunk] = points[one, chunk]
            number = left + 1
    return kept[:number].copy()


@lru_cache(maxsize=64)
def _chunk_pairs(vpp: int) -> tuple[Ints, Ints]:
    """The later and the earlier chunk of each pair of different ones."""
    ahead, behind = np.tril_indices(vpp, -1)
    return ahead, behind


def _among(numbers: Ints, sorted_numbers: Ints) -> npt.NDArray[np.bool_]:
    """Whether each number is one of some known ones, in ascending order."""
    place = np.minimum(np.searchsorted(sorted_numbers, numbers), len(sorted_numbers) - 1)
    return np.asarray(sorted_numbers[place] == numbers)


def _held_on(order: OperationOrder, device: int) -> Ints:
    """Counts while each slot of a device runs [slots, vpp]."""
    return _held(order.forward_chunk[device], order.backward_chunk[device], order.vpp)


@compiled
def _held(forward: Numbers, backward: Numbers, vpp: int) -> Ints:
    """Counts from the chunks whose forward and backward run in each slot [slots, vpp]."""
    counts = np.empty((len(forward), vpp), dtype=np.int64)
    now = np.zeros(vpp, dtype=np.int64)
    for slot in range(len(forward)):
        begun, ended = forward[slot], backward[slot]
        if begun != NONE:
            now[begun] += 1
        # What a pair starts from is what the slot before it has left: no row of its own.
        if begun != NONE and ended != NONE:
            now[ended] -= 1
        for chunk in range(vpp):
            counts[slot, chunk] = now[chunk]
        if begun == NONE and ended != NONE:
            now[ended] -= 1
    return counts


def in_flight_closed(
    kind: str, stage: Counts, pp: Counts, vpp: Counts, micro_batches: Counts, size: Counts | None = None
) -> Counts:
    """Chunk-micro-batches that a stage holds at its peak [n]: the sum of `in_flight` over its chunks, by formula.

    1f1b: min(M, P - p). interleaved: min(M V, 2 (P - p - 1) + (V - 1) N + 1), all M V when M <= P, with group size N;
    one more for each extra forward of the warm-up (adaptive_pipe). Folded (dualpipev): 2P, and one more on the stage at
    the turn, whose first pair is not fused; with two copies (dualpipe) as many as a DualPipeV of half the devices, in
    chunks twice as large. A schedule with an order of its own holds what its graph says. Divide by vpp for whole micro
    batches of the stage. size: `group_size`, where they are known already.

    References
    ----------
    arXiv 2104.04473; Megatron-LM `theoretical_memory_usage.py` (stage 0: L (1 + (P - 1) / (P V)) layers); MindSpeed
    `vpp_schedules.py`. DualPipeV: <= 2P + 1 chunks of L / 2P layers on every rank, with whole chunks handed over.
    """
    m, how = micro_batches, schedule(kind)
    if how.own_order:
        return of_stages(_most_held, kind, stage, pp, vpp, m)
    if how.alternates:
        return np.asarray(np.minimum(m, pp - stage))
    if how.ends_meet:
        if how.copies > 1:
            stage, pp, m = np.minimum(stage, pp - 1 - stage), pp // 2, m // 2
        return _dual_closed(stage, pp, m)
    most = np.minimum(m * vpp, forwards_ahead(kind, stage, pp, vpp, m, size))
    if how.gathers:
        most = np.where((m <= pp) & (vpp > 1), m * vpp, most)
    return np.asarray(most)


def _dual_closed(stage: Counts, ranks: Counts, m: Counts) -> Counts:
    """After the first two steps a rank holds 2 (P - r - 1) + 2 (r + 1) = 2P chunks; at the turn the main step begins
    with a forward alone.
    """
    return np.asarray(2 * ranks + ((m - 2 * ranks + stage + 1 > 0) & (stage == ranks - 1)))


def _most_held(kind: str, pp: int, vpp: int, micro_batches: int) -> Ints:
    return np.asarray(in_flight(kind, pp, vpp, micro_batches).sum(axis=1))
