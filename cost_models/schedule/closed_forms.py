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

from cost_models.compiled import row_major
from cost_models.schedule.graph_counts import fused_pairs, idle_stages, of_stages
from cost_models.schedule.kinds import Schedule, schedule
from cost_models.schedule.orders import forwards_ahead, group_size, operation_order
from cost_models.schedule.paths import ONE_CHUNK, SEVERAL, STAYS, longest_paths, stage_times
from cost_models.schedule.sends import Sends, as_sends
from cost_models.schedule.simulation import pair_counts

if TYPE_CHECKING:
    from cost_models.arrays import Counts, Floats

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
            _by_class(*self.work),
            _by_class(stages.forward_s, stages.backward_s),
            _by_class(stages.first_forward_s, stages.first_backward_s),
            _by_class(stages.last_forward_s, stages.last_backward_s),
            _by_class(*self.longest),
            (pp, vpp, micro_batches, size, ahead),
            self._column(self.edge_s),
            self._column(self.least_edge_s),
            other,
            leaves,
            how.gathers,
            float(self.ramps),
            float(self.returns),
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


def _by_class(*values: Floats) -> tuple[Any, ...]:
    """Arrays [n, k] as [k, n]."""
    return tuple(_in_order(each.T) for each in values)


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
    how, order, sends = schedule(kind), operation_order(kind, pp, vpp, micro_batches), as_sends(p2p_s)
    hides = np.zeros((*forward_s.shape, vpp)) if hidden_pair_s is None else hidden_pair_s
    edge = np.array(np.broadcast_to(np.asarray(sends.p2p_s, dtype=np.float64), (n,)))
    split = np.zeros_like(backward_s) if sends.split_s is None else np.broadcast_to(sends.split_s, backward_s.shape)
    forward, backward, hidden, late = map(_in_order, (forward_s, backward_s, hides, split))
    pairs = row_major(pair_counts(order))

    def of_side(ranks: int, runs: int, step: int) -> ClosedForm:
        """Of devices that follow each other one way, from the first on or from the last."""
        times = stage_times(forward, backward, hidden, pairs, late, runs, ranks, step)
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
            ramps=how.copies == 1 or not how.own_order,
            returns=not (how.own_order and order.splits.any()),
        ).closed_form()

    if how.own_order or how.copies == 1:
        return of_side(pp, micro_batches // how.copies, 1)
    # DualPipe is two pipelines that meet in the middle, with half of the micro batches each.
    one, other = (of_side(pp // 2, micro_batches // 2, step) for step in (1, -1))
    longer = other.makespan_s > one.makespan_s
    of_other = other.makespan_s, other.work_s, other.bubble_s, pp - 1 - other.pacing_stage
    of_one = one.makespan_s, one.work_s, one.bubble_s, one.pacing_stage
    return ClosedForm(*(np.where(longer, second, first) for first, second in zip(of_one, of_other, strict=True)))


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
    """What interleaved chunks take that keep step with each other [n]: an estimate beside the bound, not a bound.

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
