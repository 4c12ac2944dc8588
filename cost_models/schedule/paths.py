"""Lengths of paths through pipelines, compiled: what a path gains away from the stage that paces, which is longest.

`closed_forms` says which paths these are. A pipeline is a row of classes of stages, each so many times as it has equal
stages: classes of one stage are a whole pipeline, a first, a middle and a last class one of a sweep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.compiled import compiled

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Ints

STAYS, ONE_CHUNK, SEVERAL = range(3)
"""How a path leaves the stage that paces: not at all, or down to stages of one chunk or of several."""


@compiled
def stage_times(
    forward_s: Floats,
    backward_s: Floats,
    hidden_s: Floats,
    pairs: Ints,
    split_s: Floats,
    runs: int,
    ranks: int,
    step: int,
) -> Floats:
    """Numbers of stages that follow each other [11, ranks, n], from those of their chunks in a step of so many runs.

    Found: forward and backward of a stage, of its first and of its last chunk; what a pair of its last forward chunk
    with its first backward chunk hides; weight gradients of its last chunk; all work in a step, less what its pairs
    hide; forward and backward of its slowest chunk.

    Parameters
    ----------
    forward_s, backward_s, split_s : of chunks [n, pp, vpp]. hidden_s : of pairs of chunks [n, pp, vpp, vpp].
    pairs : how many of them there are [pp, vpp, vpp].
    step : 1, or -1 for the other way, from the last device and its last chunk on.
    """
    n, pp, vpp = forward_s.shape
    times = np.zeros((11, ranks, n))
    for place in range(ranks):
        device = place if step > 0 else pp - 1 - place
        head, tail = (0, vpp - 1) if step > 0 else (vpp - 1, 0)
        for row in range(n):
            forward = backward = both = hidden = 0.0
            slowest_forward = slowest_backward = -np.inf
            for chunk in range(vpp):
                there, back = forward_s[row, device, chunk], backward_s[row, device, chunk]
                forward, backward, both = forward + there, backward + back, both + (there + back)
                slowest_forward, slowest_backward = max(slowest_forward, there), max(slowest_backward, back)
                for other in range(vpp):
                    hidden += hidden_s[row, device, chunk, other] * pairs[device, chunk, other]
            times[0, place, row], times[1, place, row] = forward, backward
            times[2, place, row], times[3, place, row] = forward_s[row, device, head], backward_s[row, device, head]
            times[4, place, row], times[5, place, row] = forward_s[row, device, tail], backward_s[row, device, tail]
            times[6, place, row] = hidden_s[row, device, tail, head]
            times[7, place, row] = split_s[row, device, tail]
            times[8, place, row] = runs * both - hidden
            times[9, place, row], times[10, place, row] = slowest_forward, slowest_backward
    return times


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
def longest_paths(
    counts: Floats,
    work: tuple[Floats, Floats],
    whole: tuple[Floats, Floats],
    first: tuple[Floats, Floats],
    last: tuple[Floats, Floats],
    longest: tuple[Floats, Floats],
    sizes: tuple[Floats, Floats, Floats, Floats, Floats],
    edge_s: Floats,
    least_edge_s: Floats,
    other_s: Floats,
    leaves: int,
    waits: bool,
    ramps: float,
    returns: float,
) -> tuple[Floats, Floats, Floats]:
    """Of the longest path of every pipeline: work of the stage that paces, what it spends beside it, the stage [n].

    The first and the last stage of every class may pace, of equals the first; or one micro batch runs through every
    chunk and back and waits at the slowest chunk for all the others: in the forward or in the backward pass, in both
    where all forwards come before all backwards. Down a class of equal stages a path of 1f1b gains most at its ends or
    where the stage that it left runs out of micro batches.

    Parameters
    ----------
    counts : stages of each class, in the order of the pipeline; 0 where it has none [k, n].
    work : of the first and of the last stage of each class, in a step [k, n].
    whole, first, last, longest : forward and backward of a stage, its first, its last and its slowest chunk [k, n].
    sizes : pp, vpp, micro batches, `orders.group_size` and `orders.forwards_ahead` of stage 0 [n]; of every next stage
        two fewer.
    edge_s, least_edge_s : an edge between stages, and the least that one out of a pair takes [n].
    other_s : another path at the pace of the last stage where paths stay on their stage [n].
    leaves : STAYS, ONE_CHUNK or SEVERAL. waits : all forwards come first with M <= P and several chunks.
    ramps, returns : 1 where a path comes down to its stage; where it goes back through the stages before; else 0.
    """
    pp, vpp, micro_batches, size, ahead = sizes
    classes, n = counts.shape
    best_work, best_beside, best_stage = np.empty(n), np.empty(n), np.empty(n)
    # All in one function: handing arrays on would cost as much as what is done with them.
    count_of, behind = np.empty(classes), np.empty(classes)
    for row in range(n):
        edge, least, m = edge_s[row], least_edge_s[row], micro_batches[row]
        through = forward = backward = 0.0
        for each in range(classes):
            count_of[each] = counts[each, row]
            behind[each] = last[0][each, row] + last[1][each, row] + (edge + least)
            if leaves != STAYS and count_of[each] > 0.0:
                through += count_of[each] * (whole[0][each, row] + whole[1][each, row])
                forward, backward = max(forward, longest[0][each, row]), max(backward, longest[1][each, row])
        total, paced, stage, begin, ramp = -np.inf, 0.0, 0.0, 0.0, 0.0
        for own in range(classes):
            count = count_of[own]
            if count == 0.0:
                continue
            before = ramps * (first[0][own, row] + returns * first[1][own, row] + (1.0 + returns) * edge)
            for end in range(2 if count > 1.0 else 1):
                past = count - 1.0 if end else 0.0
                stage = begin + past
                paced = work[1][own, row] if end else work[0][own, row]
                beside = ramp + past * before
                if leaves == ONE_CHUNK:
                    behind_it, depth, reach, most, drained = pp[row] - stage, 0.0, 0.0, 0.0, 0.0
                    forward_s, backward_s = whole[0][own, row], whole[1][own, row]
                    for later in range(own, classes):
                        stages = count_of[later] if later > own else count - 1.0 - past
                        free = max(behind_it - m - depth, 0.0)
                        if 0.0 < free < stages:
                            missed, seconds = _missed(m, behind_it, depth + free), reach + free * behind[later]
                            most = max(most, seconds - missed * forward_s)
                            drained = max(drained, seconds - missed * backward_s)
                        depth += stages
                        reach += stages * behind[later]
                        missed = _missed(m, behind_it, depth)
                        most = max(most, reach - missed * forward_s)
                        drained = max(drained, reach - missed * backward_s)
                    # With M <= P - p all forwards come before all backwards: there is one way down, not two.
                    beside += most + drained if m > behind_it else max(most, drained)
                elif leaves == SEVERAL:
                    way, here = (count - 1.0 - past) * behind[own], ahead[row] - 2.0 * stage
                    for later in range(own + 1, classes):
                        way += count_of[later] * behind[later]
                    chunks = first[0][own, row], last[0][own, row]
                    beside += max(way - _lost_s(here, m, pp[row], vpp[row], size[row], waits, *chunks), 0.0)
                if paced + beside > total:
                    total = paced + beside
                    best_work[row], best_beside[row], best_stage[row] = paced, beside, stage
            begin += count
            ramp += count * before
        other = other_s[row]
        if leaves != STAYS:
            if pp[row] > 1.0:
                through += 2.0 * (pp[row] * vpp[row] - 1.0) * least
            both = waits and vpp[row] > 1.0 and m <= pp[row]
            other = through + (m - 1.0) * (forward + backward if both else max(forward, backward))
        if other > total:
            best_work[row], best_beside[row], best_stage[row] = paced, other - paced, stage
    return best_work, best_beside, best_stage
