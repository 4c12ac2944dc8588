"""Lengths of paths through a pipeline, compiled: what a path gains away from the stage that paces, which is longest.

`closed_forms` says which paths these are; it walks the stages of one pipeline, `stage_classes` has thousands of
pipelines, each described by its first, a middle and its last stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.compiled import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

FIRST, MIDDLE, LAST = 0, 1, 2


@compiled
def _missed(micro_batches: float, ahead: float, depth: float) -> float:
    """Forwards (1f1b: and backwards) that a stage runs while a path is `depth` stages further down.

    ahead : stages from this one to the end.
    """
    return min(micro_batches, ahead) - min(micro_batches, ahead - depth)


@compiled
def _lost_s(
    ahead: float, micro_batches: float, pp: float, vpp: float, size: float, waits: bool, first_s: float, last_s: float
) -> float:
    """Seconds of forwards that an interleaved stage runs between its first forward of all and its first backward.

    Those that are behind the return of the first group's first micro batch are of the last chunk, others of the first.

    Parameters
    ----------
    ahead : `orders.forwards_ahead` of the stage. size : `orders.group_size`.
    waits : with M <= P all forwards come first.
    first_s, last_s : forward of its first and of its last chunk.
    """
    missed = 0.0
    if not (waits and micro_batches <= pp and vpp > 1):
        missed = min(ahead, micro_batches * vpp) - ((vpp - 1.0) * size + 1.0)
    late = min(missed, size - 1.0)
    return late * last_s + (missed - late) * first_s


@compiled
def _one_chunk_s(
    micro_batches: float, ahead: float, depth: Floats, reach_s: Floats, forward_s: float, backward_s: float
) -> float:
    """What a path of 1f1b gains by leaving its stage for the stages behind it, at the start and at the end.

    depth, reach_s : how many stages it may go down, and the seconds that it spends there [k].
    """
    start = end = -np.inf
    for way in range(len(depth)):
        missed = _missed(micro_batches, ahead, depth[way])
        start = max(start, reach_s[way] - missed * forward_s)
        end = max(end, reach_s[way] - missed * backward_s)
    # With M <= P - p all forwards come before all backwards: there is one way down, not two.
    return start + end if micro_batches > ahead else max(start, end)


@compiled
def one_chunk_excursions_s(
    micro_batches: float, ahead: float, depth: Floats, reach_s: Floats, forward_s: Floats, backward_s: Floats
) -> Floats:
    """What paths of 1f1b gain by leaving a stage for the stages behind it [n].

    Parameters
    ----------
    ahead : stages from this one to the end, itself included.
    depth, reach_s : how many stages a path may go down [k], and the seconds that it spends there [n, k].
    forward_s, backward_s : of the stage [n].
    """
    found = np.empty(len(reach_s))
    for row in range(len(reach_s)):
        found[row] = _one_chunk_s(micro_batches, ahead, depth, reach_s[row], forward_s[row], backward_s[row])
    return found


@compiled
def interleaved_excursions_s(
    reach_s: Floats,
    ahead: float,
    micro_batches: float,
    pp: float,
    vpp: float,
    size: float,
    waits: bool,
    first_s: Floats,
    last_s: Floats,
) -> Floats:
    """The same where stages have several chunks [n]: a path goes down to the last stage, or not at all.

    reach_s : of the way down to the last stage [n]. first_s, last_s [n] and the others: as `_lost_s`.
    """
    found = np.empty(len(reach_s))
    for row in range(len(reach_s)):
        lost = _lost_s(ahead, micro_batches, pp, vpp, size, waits, first_s[row], last_s[row])
        found[row] = max(reach_s[row] - lost, 0.0)
    return found


@compiled
def _waiting_s(micro_batches: float, pp: float, vpp: float, waits: bool, forward_s: float, backward_s: float) -> float:
    """One micro batch waits at the slowest chunk for all the others: in the forward or in the backward pass.

    In both when all forwards come before all backwards (`waits`: interleaved, with M <= P).
    """
    both = waits and vpp > 1 and micro_batches <= pp
    return (micro_batches - 1.0) * (forward_s + backward_s if both else max(forward_s, backward_s))


@compiled
def waiting_s(
    micro_batches: float, pp: float, vpp: float, waits: bool, forward_s: Floats, backward_s: Floats
) -> Floats:
    """What a micro batch waits for the others [n] at chunks whose passes take forward_s and backward_s [n]."""
    found = np.empty(len(forward_s))
    for row in range(len(forward_s)):
        found[row] = _waiting_s(micro_batches, pp, vpp, waits, forward_s[row], backward_s[row])
    return found


@compiled
def _slowest_s(row: int, pp: float, first_chunk_s: Floats, last_chunk_s: Floats) -> float:
    """The longest first or last chunk [n, 3] of the stages that a pipeline has."""
    slowest = float(max(first_chunk_s[row, LAST], last_chunk_s[row, LAST]))
    for stage_class, before in ((FIRST, 1.0), (MIDDLE, 2.0)):
        if pp > before:
            slowest = max(slowest, first_chunk_s[row, stage_class], last_chunk_s[row, stage_class])
    return slowest


@compiled
def _both_s(row: int, stage_class: int, forward_s: Floats, backward_s: Floats) -> float:
    """Forward and backward of a class of stages [n, 3]."""
    return float(forward_s[row, stage_class] + backward_s[row, stage_class])


@compiled
def _through_s(row: int, pp: float, vpp: float, least_edge_s: float, forward_s: Floats, backward_s: Floats) -> float:
    """One micro batch through every chunk and back."""
    through = _both_s(row, LAST, forward_s, backward_s)
    if pp > 1:
        middle = (pp - 2.0) * _both_s(row, MIDDLE, forward_s, backward_s)
        through += _both_s(row, FIRST, forward_s, backward_s) + middle + 2.0 * (pp * vpp - 1.0) * least_edge_s
    return through


@compiled
def _ways_down(
    micro_batches: float, ahead: float, middles: float, middle_s: float, all_s: float, depth: Floats, reach_s: Floats
) -> None:
    """How far a path of 1f1b may go down, and the seconds there, into arrays [4] whose first is not at all.

    It loses nothing while micro batches are short of stages. middles : middle stages behind the one that paces,
    middle_s each; all_s : of the way to the last stage.
    """
    free = min(max(ahead - micro_batches, 0.0), middles)
    depth[1], depth[2], depth[3] = free, middles, ahead - 1.0
    reach_s[1], reach_s[2], reach_s[3] = free * middle_s, middles * middle_s, all_s


@compiled
def longest_paths(
    times: tuple[Floats, ...],
    pp: Floats,
    vpp: Floats,
    micro_batches: Floats,
    size: Floats,
    ahead: Floats,
    edge_s: Floats,
    least_edge_s: Floats,
    one_chunk: bool,
    waits: bool,
    pairs: bool,
) -> tuple[Floats, Floats, Floats]:
    """Of the longest path of every pipeline: work of the stage that paces, what it spends beside it, the stage [n].

    Stages 0, 1, P - 2 and P - 1 may pace, of equals the first; or one micro batch runs through every chunk and back.

    Parameters
    ----------
    times : the fields of `StageClasses` up to hidden_pair_s, each [n, 3].
    pp, vpp, micro_batches : counts [n]. size : `orders.group_size` [n].
    ahead : `orders.forwards_ahead` of stage 0 [n]; of every next stage two fewer.
    edge_s, least_edge_s : an edge between stages, and the least that one out of a pair takes [n].
    one_chunk : forwards and backwards of one chunk alternate. waits : all forwards come first with M <= P and several
    chunks. pairs : steady slots are fused. All three are attributes of `kinds.Schedule`.
    """
    forward_s, backward_s, first_forward_s, first_backward_s, last_forward_s, last_backward_s, hidden_pair_s = times
    n = len(pp)
    best_work, best_beside, best_stage = np.empty(n), np.empty(n), np.empty(n)
    depth, reach = np.zeros(4), np.zeros(4)
    for row in range(n):
        stages, m, chunks, least = pp[row], micro_batches[row], vpp[row], least_edge_s[row]
        ramp_first = _both_s(row, FIRST, first_forward_s, first_backward_s) + 2.0 * edge_s[row]
        ramp_middle = _both_s(row, MIDDLE, first_forward_s, first_backward_s) + 2.0 * edge_s[row]
        behind_middle = _both_s(row, MIDDLE, last_forward_s, last_backward_s) + (edge_s[row] + least)
        behind_last = _both_s(row, LAST, last_forward_s, last_backward_s) + (edge_s[row] + least)
        total, work = -np.inf, 0.0
        for stage, stage_class, exists in (
            (0.0, FIRST, stages > 1),
            (1.0, MIDDLE, stages > 2),
            (stages - 2.0, MIDDLE, stages > 2),
            (stages - 1.0, LAST, True),
        ):
            if not exists:
                continue
            ahead_here, first_s = ahead[row] - 2.0 * stage, first_forward_s[row, stage_class]
            work = m * _both_s(row, stage_class, forward_s, backward_s)
            if pairs and not (waits and m <= stages and chunks > 1.0):
                work -= max(m * chunks - ahead_here, 0.0) * hidden_pair_s[row, stage_class]
            beside = ramp_first + (stage - 1.0) * ramp_middle if stage > 0 else 0.0
            if stage_class != LAST:
                middles = max(stages - 2.0 - stage, 0.0)
                down = middles * behind_middle + behind_last
                if one_chunk:
                    _ways_down(m, stages - stage, middles, behind_middle, down, depth, reach)
                    beside += _one_chunk_s(m, stages - stage, depth, reach, first_s, backward_s[row, stage_class])
                else:
                    last_s = last_forward_s[row, stage_class]
                    beside += max(down - _lost_s(ahead_here, m, stages, chunks, size[row], waits, first_s, last_s), 0.0)
            if work + beside > total:
                total = work + beside
                best_work[row], best_beside[row], best_stage[row] = work, beside, stage
        forward = _slowest_s(row, stages, first_forward_s, last_forward_s)
        backward = _slowest_s(row, stages, first_backward_s, last_backward_s)
        through = _through_s(row, stages, chunks, least, forward_s, backward_s)
        beside = through + _waiting_s(m, stages, chunks, waits, forward, backward) - work
        if work + beside > total:
            best_work[row], best_beside[row], best_stage[row] = work, beside, stages - 1.0
    return best_work, best_beside, best_stage
