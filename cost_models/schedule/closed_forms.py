"""Makespans without a graph: lower bounds made of real paths, exact for equal stages.

Every term is the length of a path through the schedule's graph (or less than one), so their maximum never exceeds the
simulated makespan. A path that paces on stage p has this shape:

    makespan >= M W_p - hidden_p                                       work: everything that stage p does
              + sum_{q<p} (F + B)(q, first chunk)            ramp: the first forward comes, the last backward goes
              + max_k [sum_{q=p+1..p+k} (F + B)(q, last chunk) - forwards that p runs meanwhile]       filling
              + max_k [sum_{q=p+1..p+k} (F + B)(q, last chunk) - backwards that p runs meanwhile]      draining (1f1b)

With few micro batches another path is longer: one micro batch through every chunk and back, waiting at the slowest
chunk for all the others: sum of all F + B, and (M - 1) max(F, B).

Equal stages: 1f1b (M + P - 1)(F + B); interleaved M (F + B) + (P - 1)(F + B) / V (arXiv 2104.04473, section 2.2);
dualpipev (P - 1)(F&B + B - W) - F over the work of the stage at the turn, F, B and W (dW alone) of one chunk
(MindSpeed's dualpipev document). A pair must hide no more than the smaller of its two halves. A schedule with an order
of its own has work and ramp alone, with the pairs that its graph has.

A pipeline is given stage by stage, or for a sweep by its first, a middle and its last stage: the same paths, of classes
of stages with the number of stages in each.

Parameters
----------
work_s, bubble_s : work of the pacing stage; what it waits: the makespan is their sum.
pacing_stage : the stage on the longest path.
first_forward_s, first_backward_s : of a stage's first chunk.
last_forward_s, last_backward_s : of a stage's last chunk.
stages : `StageClasses`, times of classes of equal stages.
covered_p2p_s : least latency of an edge out of a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.bounded_cache import kept
from cost_models.compiled import compiled, row_major
from cost_models.schedule.graph_counts import fused_pairs, idle_stages, of_stages
from cost_models.schedule.kinds import Schedule, schedule
from cost_models.schedule.orders import forwards_ahead, group_size, operation_order
from cost_models.schedule.sends import Sends, as_sends
from cost_models.schedule.simulation import pair_counts

if TYPE_CHECKING:
    from cost_models.arrays import Counts, Floats, Ints


# Lengths of paths through pipelines, compiled.
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
    paired = pairs.any()
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
                for other in range(vpp if paired else 0):
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
    stages: tuple[tuple[Floats, Floats], ...],
    sizes: tuple[Floats, Floats, Floats, Floats, Floats],
    edges: tuple[Floats, Floats],
    other_s: Floats,
    leaves: int,
    waits: bool,
    turns: tuple[float, float],
) -> tuple[Floats, Floats, Floats]:
    """Of the longest path of every pipeline: work of the stage that paces, what it spends beside it, the stage [n].

    The first and the last stage of every class may pace, of equals the first; or one micro batch runs through every
    chunk and back and waits at the slowest chunk for all the others: in the forward or in the backward pass, in both
    where all forwards come before all backwards. Down a class of equal stages a path of 1f1b gains most at its ends or
    where the stage that it left runs out of micro batches.

        longest := none
        for each class, its first and its last stage p:                       candidates for the critical path
            length := work of p                                               it is never idle in the steady phase
                    + sum over stages before p: edges, first chunks           ramp: down to p, and back (`returns`)
                    + max over depths d below p: sum of last chunks and edges to p + d
                          - what p runs meanwhile, forward (fill) and backward (drain)      1f1b: ONE_CHUNK
                          - its forwards between its first one and its first backward       interleaved: SEVERAL
            longest := max(longest, length)
        longest := max(longest, one micro batch through all chunks and back + (M - 1) slowest chunk)

    Parameters
    ----------
    counts : stages of each class, in the order of the pipeline; 0 where it has none [k, n].
    stages : of each class [k, n] work in a step of its first and of its last stage; and forward and backward of a
        stage, of its first, its last and its slowest chunk.
    sizes : pp, vpp, micro batches, `orders.group_size` and `orders.forwards_ahead` of stage 0 [n]; of every next stage
        two fewer.
    edges : seconds between stages, and the least that those out of a pair take [n].
    other_s : another path at the pace of the last stage where paths stay on their stage [n].
    leaves : STAYS, ONE_CHUNK or SEVERAL. waits : all forwards come first with M <= P and several chunks.
    turns : 1 where a path comes down to its stage; 1 where it goes back through the stages before; else 0.
    """
    work, whole, first, last, longest = stages
    pp, vpp, micro_batches, size, ahead = sizes
    ramps, returns = turns
    classes, n = counts.shape
    best_work, best_beside, best_stage = np.empty(n), np.empty(n), np.empty(n)
    # All in one function: handing arrays on would cost as much as what is done with them.
    count_of, behind = np.empty(classes), np.empty(classes)
    for row in range(n):
        edge, least, m = edges[0][row], edges[1][row], micro_batches[row]
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
                        members = count_of[later] if later > own else count - 1.0 - past
                        free = max(behind_it - m - depth, 0.0)
                        if 0.0 < free < members:
                            missed, seconds = _missed(m, behind_it, depth + free), reach + free * behind[later]
                            most = max(most, seconds - missed * forward_s)
                            drained = max(drained, seconds - missed * backward_s)
                        depth += members
                        reach += members * behind[later]
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


FIRST, MIDDLE, LAST = 0, 1, 2
"""Places of the classes of a sweep's pipelines."""


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """makespan_s = work_s + bubble_s [n], both >= 0; pacing_stage [n] is the stage whose work is counted."""

    makespan_s: Floats
    work_s: Floats
    bubble_s: Floats
    pacing_stage: Counts


@dataclass(frozen=True, eq=False)
class StageClasses:
    """Times of one micro batch on classes of stages [n, k], for a sweep the first, each middle and the last stage
    [n, 3], fastest in column order.

    forward_s, backward_s: whole stage, all its chunks. first_*: its chunk 0; last_*: its chunk vpp - 1 (with vpp = 1
    both are the whole stage). hidden_pair_s: what one fused pair hides. split_s: weight gradients of its chunk vpp - 1
    (read for DualPipe kinds only). With pp = 2 the middle is not read; with pp = 1 the last stage is the only one.
    DualPipe kinds: "first" is the outermost device (dualpipev: embedding and head; dualpipe: both ends of the
    pipeline), "last" the device at the turn (dualpipe: at the centre).
    """

    forward_s: Floats
    backward_s: Floats
    first_forward_s: Floats
    first_backward_s: Floats
    last_forward_s: Floats
    last_backward_s: Floats
    hidden_pair_s: Floats
    split_s: Floats | float = 0.0


@dataclass(frozen=True, eq=False)
class _Pipelines:
    """Pipelines of one schedule.

    counts : stages of each class [n, k]. work : of the first and of the last stage of each class, in a step [n, k].
    longest : forward and backward of a stage's slowest chunk [n, k]. pp, vpp, micro_batches, size [n] : of a pipeline;
    `orders.group_size` None where it is to be found. edge_s, least_edge_s [n] : an edge between stages, and the least
    that one out of a pair takes. ramps : whether all micro batches come from one end. returns : whether a stage's last
    backward is over when its output leaves.
    """

    how: Schedule
    stages: StageClasses
    counts: Floats
    work: tuple[Floats, Floats]
    longest: tuple[Floats, Floats]
    pp: Counts | int
    vpp: Counts | int
    micro_batches: Counts | int
    size: Counts | None
    edge_s: Floats
    least_edge_s: Floats
    ramps: bool = True
    returns: bool = True

    def closed_form(self) -> ClosedForm:
        """Work and pipeline bubble on the longest path of every pipeline."""
        how, stages = self.how, self.stages
        pp, vpp, micro_batches = map(self._column, (self.pp, self.vpp, self.micro_batches))
        leaves, other, size, ahead = STAYS, np.full(len(pp), -np.inf), pp, pp
        if how.ends_meet and not how.own_order:
            other = np.where(pp > 1, self.work[1][:, -1] + self._turn_s(pp), other)
        elif not how.own_order:
            leaves = ONE_CHUNK if how.alternates else SEVERAL
            size = self._column(group_size(self.pp, self.micro_batches) if self.size is None else self.size)
            ahead = self._column(forwards_ahead(how.name, 0, pp, vpp, micro_batches, size))
        work, beside, stage = longest_paths(
            _in_order(self.counts.T),
            (
                _by_class(*self.work),
                _by_class(stages.forward_s, stages.backward_s),
                _by_class(stages.first_forward_s, stages.first_backward_s),
                _by_class(stages.last_forward_s, stages.last_backward_s),
                _by_class(*self.longest),
            ),
            (pp, vpp, micro_batches, size, ahead),
            (self._column(self.edge_s), self._column(self.least_edge_s)),
            other,
            leaves,
            how.gathers,
            (float(self.ramps), float(self.returns)),
        )
        # The longest path is no shorter than the pacing stage's own work, so only rounding can make this negative.
        beside = np.maximum(beside, 0.0)
        return ClosedForm(work + beside, work, beside, stage)

    def _column(self, values: Counts | int) -> Floats:
        """As floats [n]."""
        return np.full(len(self.counts), values, dtype=np.float64)

    def _turn_s(self, ranks: Floats) -> Floats:
        """DualPipeV: what the device at the turn waits for beside its work [n]."""
        stages, backward = self.stages, self.stages.backward_s
        outer = stages.last_forward_s + 2 * backward - stages.hidden_pair_s - stages.split_s
        return np.asarray(
            (2 * ranks - 1) * stages.first_forward_s[:, 0]
            + stages.last_forward_s[:, 0]
            + (self.counts * outer)[:, :-1].sum(axis=1)
            - (ranks + 1) * stages.first_forward_s[:, -1]
            - ranks * stages.last_forward_s[:, -1]
            - (ranks - 1) * backward[:, -1]
        )


def _by_class(one: Floats, other: Floats) -> tuple[Any, Any]:
    """Arrays [n, k] as [k, n]."""
    return _in_order(one.T), _in_order(other.T)


def _in_order(values: Floats | Counts) -> Floats:
    """As floats, as compiled loops take them."""
    ordered: Floats = row_major(np.asarray(values, dtype=np.float64))
    return ordered


def closed_form_s(
    kind: str,
    forward_s: Floats,
    backward_s: Floats,
    micro_batches: int,
    hidden_pair_s: Floats | None = None,
    p2p_s: Sends | Floats | float = 0.0,
) -> ClosedForm:
    """Lower bound on the makespan of candidates that share a schedule; parameters as `simulation.makespan_s`.

    Sends count where a path crosses devices in ramp and filling; in the steady phase a path may hide them. The first
    forward and the last backward of a stage are never in a pair: what covers sends in pairs does not cover theirs. Of
    an order of its own the way back counts for nothing where a backward sends before its weight gradients run.
    """
    n, pp, vpp = forward_s.shape
    how, sends = schedule(kind), as_sends(p2p_s)
    splits = how.own_order and operation_order(kind, pp, vpp, micro_batches).has_splits
    hides = np.zeros((*forward_s.shape, vpp)) if hidden_pair_s is None else hidden_pair_s
    edge = np.array(np.broadcast_to(np.asarray(sends.p2p_s, dtype=np.float64), (n,)))
    split = np.zeros_like(backward_s) if sends.split_s is None else np.broadcast_to(sends.split_s, backward_s.shape)
    forward, backward, hidden, late = map(_in_order, (forward_s, backward_s, hides, split))
    pairs = row_major(pair_counts(kind, pp, vpp, micro_batches))

    def of_side(ranks: int, runs: int, step: int) -> ClosedForm:
        """Of devices that follow each other one way, from the first on or from the last."""
        times = stage_times(forward, backward, hidden, pairs, late, runs, ranks, step)
        if not how.ends_meet or how.own_order:
            way = _way(how, ranks, vpp, runs)
            stages, chunks, batches, size, ahead = (np.full(n, each) for each in way.sizes)
            work, beside, stage = longest_paths(
                np.ones((ranks, n)),
                tuple((times[one], times[other]) for one, other in ((8, 8), (0, 1), (2, 3), (4, 5), (9, 10))),
                (stages, chunks, batches, size, ahead),
                (edge, row_major(sends.least_s(n))),
                np.full(n, -np.inf),
                way.leaves,
                how.gathers,
                (float(how.copies == 1 or not how.own_order), float(not splits)),
            )
            beside = np.maximum(beside, 0.0)  # as in `_Pipelines.closed_form`
            return ClosedForm(work + beside, work, beside, stage)
        *seconds, work, slowest_forward_s, slowest_backward_s = (each.T for each in times)
        return _Pipelines(
            how,
            StageClasses(*seconds),
            np.ones((n, ranks)),
            (work, work),
            (slowest_forward_s, slowest_backward_s),
            *(ranks, vpp, runs, None),
            edge,
            sends.least_s(n),
        ).closed_form()

    if how.own_order or how.copies == 1:
        return of_side(pp, micro_batches // how.copies, 1)
    # DualPipe is two pipelines that meet in the middle, with half of the micro batches each.
    one, other = (of_side(pp // 2, micro_batches // 2, step) for step in (1, -1))
    longer = other.makespan_s > one.makespan_s
    of_other = other.makespan_s, other.work_s, other.bubble_s, pp - 1 - other.pacing_stage
    of_one = one.makespan_s, one.work_s, one.bubble_s, one.pacing_stage
    return ClosedForm(*(np.where(longer, second, first) for first, second in zip(of_one, of_other, strict=True)))


@dataclass(frozen=True)
class _Way:
    """The way paths leave stages of one chunk or of several, and what `longest_paths` calls sizes."""

    leaves: int
    sizes: tuple[float, float, float, float, float]


@kept(1024)
def _way(how: Schedule, pp: int, vpp: int, micro_batches: int) -> _Way:
    if how.own_order:
        return _Way(STAYS, (float(pp), float(vpp), float(micro_batches), float(pp), float(pp)))
    size = group_size(pp, micro_batches)
    ahead = forwards_ahead(how.name, 0, pp, vpp, micro_batches, size)
    sizes = float(pp), float(vpp), float(micro_batches), float(size.item()), float(ahead.item())
    return _Way(ONE_CHUNK if how.alternates else SEVERAL, sizes)


def closed_form_classes_s(
    kind: str,
    stages: StageClasses,
    pp: Counts,
    vpp: Counts,
    micro_batches: Counts,
    p2p_s: Floats | float = 0.0,
    covered_p2p_s: Floats | float | None = None,
    size: Counts | None = None,
) -> ClosedForm:
    """`closed_form_s` for candidates of any pp, vpp and micro batches [n]: equal to it when M > P, else no greater.

    A middle stage is a candidate for the pace at both ends of the run of middle stages: with M > P its path is linear
    in its place between them. Chunks between a stage's first and last are not seen one by one. covered_p2p_s: the
    least latency of an edge out of a pair (None: the same as any other). size: `group_size`, where they are known. Of
    an order of its own the way back counts for nothing.
    """
    n, how = len(stages.forward_s), schedule(kind)
    edge = np.asarray(p2p_s, dtype=np.float64)
    ranks, runs = np.broadcast_to(pp, (n,)), np.broadcast_to(micro_batches, (n,))
    if how.copies > 1 and not how.own_order:
        ranks, runs = ranks // 2, runs // 2
    counts, second, nearest = np.ones((3, n)), np.minimum(1, ranks - 1), np.maximum(ranks - 2, 0)
    counts[FIRST], counts[MIDDLE] = ranks > 1, nearest
    works = [(stages.forward_s + stages.backward_s).T * runs] * 2
    if how.pairs:

        def paired(stage: Counts, stage_class: int) -> Floats:
            pairs = fused_pairs(kind, stage, pp, vpp, micro_batches, size)
            return np.asarray(works[0][stage_class] - pairs * stages.hidden_pair_s[:, stage_class])

        ends = paired(np.zeros_like(ranks), FIRST), paired(ranks - 1, LAST)
        works = [np.stack([ends[0], paired(stage, MIDDLE), ends[1]]) for stage in (second, nearest)]
    longest = stages.first_forward_s, stages.first_backward_s
    if stages.last_forward_s is not stages.first_forward_s:
        lasts = stages.last_forward_s, stages.last_backward_s
        longest = np.maximum(longest[0], lasts[0]), np.maximum(longest[1], lasts[1])
    return _Pipelines(
        how,
        stages,
        counts.T,
        (works[0].T, works[1].T),
        longest,
        *(ranks, vpp, runs, size),
        edge,
        edge if covered_p2p_s is None else np.asarray(covered_p2p_s, dtype=np.float64),
        returns=not how.own_order,
    ).closed_form()


def in_step_s(
    kind: str, stages: StageClasses, pp: Counts, vpp: Counts, micro_batches: Counts, size: Counts | None = None
) -> Floats:
    """Time of interleaved chunks that keep step with each other [n]: an estimate beside the bound, not a bound.

    A group of micro batches runs through chunk after chunk on all stages at once, so a chunk that is longer on one
    stage than on its neighbours (a head, an embedding) holds all of them up, whatever the stage's other chunks save:

        M (x + excess) + (P - 1) x / V    x: F + B of a stage that is as long as its neighbours

    On the first and on the last stage the forward and the backward of such a chunk meet in the same slots. Own
    derivation; without excess it is interleaving's M (F + B) + (P - 1)(F + B) / V (arXiv 2104.04473, section 2.2).
    size: `group_size`, where they are known already. A schedule with an order of its own idles as its graph does where
    stages are equal.
    """
    how = schedule(kind)
    interleaved = (pp > 1) & ((vpp > 1) | how.own_order) & (not how.ends_meet or how.own_order)
    if not np.any(interleaved):
        return np.zeros(len(stages.forward_s))
    several = pp > 2

    def of_reference(values: Floats) -> Floats:
        return np.asarray(np.where(several, values[:, MIDDLE], values[:, FIRST]))

    first, last = stages.first_forward_s + stages.first_backward_s, stages.last_forward_s + stages.last_backward_s
    excess = np.maximum(last[:, LAST] - of_reference(last), 0.0) + np.maximum(
        first[:, FIRST] - of_reference(first), 0.0
    )
    whole = of_reference(stages.forward_s + stages.backward_s)
    if not how.own_order:
        time = micro_batches * (whole + excess) + (pp - 1) * whole / vpp
    else:
        time = micro_batches * whole + of_stages(idle_stages, kind, np.zeros_like(pp), pp, vpp, micro_batches) * whole
    if how.pairs:
        pairs = fused_pairs(kind, np.minimum(1, pp - 1), pp, vpp, micro_batches, size)
        time = time - pairs * of_reference(stages.hidden_pair_s)
    return np.asarray(np.where(interleaved, np.maximum(time, 0.0), 0.0))
