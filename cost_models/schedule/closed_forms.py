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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.schedule.kinds import schedule
from cost_models.schedule.orders import Counts, OperationOrder, forwards_ahead, group_size, operation_order
from cost_models.schedule.paths import interleaved_excursions_s, one_chunk_excursions_s, waiting_s
from cost_models.schedule.sends import Sends, as_sends
from cost_models.schedule.simulation import pair_counts

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """makespan_s = work_s + bubble_s [n], both >= 0; pacing_stage [n] is the stage whose work is counted."""

    makespan_s: Floats
    work_s: Floats
    bubble_s: Floats
    pacing_stage: Counts


@dataclass(frozen=True, eq=False)
class PathTerms:
    """Candidate paths [n, paths]: the work of the pacing stage, what the path spends beside it, and the stage."""

    work_s: Floats
    bubble_s: Floats
    stage: Counts

    def longest(self) -> ClosedForm:
        """The longest path of every candidate."""
        total = self.work_s + self.bubble_s
        best = np.argmax(total, axis=1)[:, None]
        work = np.take_along_axis(self.work_s, best, 1)[:, 0]
        # The best path is no shorter than the pacing stage's own work, so only rounding can make this negative.
        bubble = np.maximum(np.take_along_axis(self.bubble_s, best, 1)[:, 0], 0.0)
        stage = np.take_along_axis(np.broadcast_to(self.stage, total.shape), best, 1)[:, 0]
        return ClosedForm(work + bubble, work, bubble, stage)


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
    forward and the last backward of a stage are never in a pair: what covers sends in pairs does not cover theirs.
    """
    _, pp, vpp = forward_s.shape
    how, order = schedule(kind), operation_order(kind, pp, vpp, micro_batches)
    counts = pair_counts(order)
    hidden = np.zeros(forward_s.shape[:2])
    if hidden_pair_s is not None:
        hidden = np.einsum("npfb,pfb->np", hidden_pair_s, counts.astype(np.float64))
    sends = as_sends(p2p_s)
    edge = np.broadcast_to(np.asarray(sends.p2p_s, dtype=np.float64), (len(forward_s),))[:, None]
    if how.own_order:
        chunk_m = micro_batches // how.copies
        return _own_terms(order, chunk_m, hidden, forward_s, backward_s, edge, one_way=how.copies == 1).longest()
    if how.ends_meet:
        split = np.zeros_like(backward_s) if sends.split_s is None else np.broadcast_to(sends.split_s, backward_s.shape)
        return _dual_terms(
            how.copies, forward_s, backward_s, split, micro_batches, hidden_pair_s, hidden, edge
        ).longest()
    least = sends.least_s(len(forward_s))[:, None]
    work = micro_batches * (forward_s + backward_s).sum(axis=2) - hidden
    ramp = forward_s[..., 0] + backward_s[..., 0] + 2 * edge
    ramp = np.cumsum(ramp, axis=1) - ramp
    below = forward_s[..., -1] + backward_s[..., -1] + edge + least
    # Compiled functions take numbers of one type: each other type would be compiled for itself.
    grouped, waits = group_size(pp, micro_batches), how.gathers
    m, stages, chunks, size = float(micro_batches), float(pp), float(vpp), float(grouped)
    terms = []
    for stage in range(pp):
        reach = np.concatenate([np.zeros_like(edge), np.cumsum(below[:, stage + 1 :], axis=1)], axis=1)
        own = forward_s[:, stage, 0], forward_s[:, stage, -1], backward_s[:, stage, 0]
        first, last, backward = (np.ascontiguousarray(seconds) for seconds in own)
        if how.alternates:
            down = np.arange(stages - stage)
            terms.append(one_chunk_excursions_s(m, stages - stage, down, reach, first, backward))
        else:
            ahead = float(forwards_ahead(kind, stage, pp, vpp, micro_batches, grouped))
            way = np.ascontiguousarray(reach[:, -1])
            terms.append(interleaved_excursions_s(way, ahead, m, stages, chunks, size, waits, first, last))
    through = (forward_s + backward_s).sum(axis=(1, 2)) + 2 * (pp * vpp - 1) * least[:, 0] * (pp > 1)
    through += waiting_s(m, stages, chunks, waits, forward_s.max(axis=(1, 2)), backward_s.max(axis=(1, 2)))
    return PathTerms(
        np.append(work, work[:, -1:], axis=1),
        np.append(ramp + np.stack(terms, axis=1), (through - work[:, -1])[:, None], axis=1),
        np.append(np.arange(pp), pp - 1)[None, :],
    ).longest()


def _own_terms(
    order: OperationOrder,
    chunk_micro_batches: int,
    hidden: Floats,
    forward_s: Floats,
    backward_s: Floats,
    edge: Floats,
    *,
    one_way: bool,
) -> PathTerms:
    """Work and ramp, whatever the order: part p is the first of device p, where all micro batches come from one end.

    Neither a device's first forward nor its last backward can be in a pair. A backward that sends before its weight
    gradients run may be done with before they are: then the way back counts for nothing.
    """
    work = chunk_micro_batches * (forward_s + backward_s).sum(axis=2) - hidden
    ramp = np.zeros_like(work)
    if one_way:
        passes = forward_s[..., 0] + edge
        if not order.splits.any():
            passes = passes + backward_s[..., 0] + edge
        ramp = np.cumsum(passes, axis=1) - passes
    return PathTerms(work, ramp, np.arange(work.shape[1])[None, :])


def _dual_terms(
    copies: int,
    forward_s: Floats,
    backward_s: Floats,
    split_s: Floats,
    micro_batches: int,
    hidden_pair_s: Floats | None,
    hidden: Floats,
    edge: Floats,
) -> PathTerms:
    """Paths of DualPipeV; DualPipe is two of them that meet in the middle, with half of the micro batches each."""
    if copies > 1:
        half, m = forward_s.shape[1] // 2, micro_batches // 2
        sides = [
            _dual_side(
                forward_s[:, order, chunks][:, :half],
                backward_s[:, order, chunks][:, :half],
                split_s[:, order, chunks][:, :half],
                None if hidden_pair_s is None else hidden_pair_s[:, order, chunks, chunks][:, :half],
                hidden[:, order][:, :half],
                m,
                edge,
            )
            for order, chunks in ((slice(None), slice(None)), (slice(None, None, -1), slice(None, None, -1)))
        ]
        mirrored = forward_s.shape[1] - 1 - sides[1].stage
        return PathTerms(
            np.concatenate([sides[0].work_s, sides[1].work_s], axis=1),
            np.concatenate([sides[0].bubble_s, sides[1].bubble_s], axis=1),
            np.concatenate([sides[0].stage, mirrored], axis=1),
        )
    return _dual_side(forward_s, backward_s, split_s, hidden_pair_s, hidden, micro_batches, edge)


def _dual_side(
    forward_s: Floats,
    backward_s: Floats,
    split_s: Floats,
    hidden_pair_s: Floats | None,
    hidden: Floats,
    m: int,
    edge: Floats,
) -> PathTerms:
    ranks = forward_s.shape[1]
    own = m * (forward_s + backward_s).sum(axis=2)
    work = own - hidden
    ramp = forward_s[..., 0] + backward_s[..., 0] + 2 * edge
    ramp = np.cumsum(ramp, axis=1) - ramp
    stages = np.arange(ranks)[None, :]
    if ranks == 1:
        return PathTerms(work, ramp, stages)
    pair = np.zeros(forward_s.shape[:2]) if hidden_pair_s is None else hidden_pair_s[:, :, 1, 0]
    both = backward_s.sum(axis=2)
    outer = forward_s[:, :-1, 1] + 2 * both[:, :-1] - pair[:, :-1] - split_s[:, :-1, 1]
    turn = (
        (2 * ranks - 1) * forward_s[:, 0, 0]
        + forward_s[:, 0, 1]
        + outer.sum(axis=1)
        - (ranks + 1) * forward_s[:, -1, 0]
        - ranks * forward_s[:, -1, 1]
        - (ranks - 1) * both[:, -1]
    )
    return PathTerms(
        np.concatenate([work, work[:, -1:]], axis=1),
        np.concatenate([ramp, turn[:, None]], axis=1),
        np.append(stages, [[ranks - 1]], axis=1),
    )
