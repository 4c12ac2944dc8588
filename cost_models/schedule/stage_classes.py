"""The closed forms for a sweep: a candidate is described by its first, a middle and its last stage, whatever pp is."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from cost_models.schedule.closed_forms import ClosedForm
from cost_models.schedule.graph_counts import idle_stages, of_stages, paired_slots
from cost_models.schedule.kinds import schedule
from cost_models.schedule.orders import Counts, forwards_ahead, group_size
from cost_models.schedule.paths import FIRST, LAST, MIDDLE, longest_paths

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StageClasses:
    """Times of one micro batch on the first, each middle and the last stage [n, 3], fastest in column order.

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


class _Longest:
    """The longest path so far of every candidate; of equals the first.

    Which path it is is kept as a number, and what it takes looked up at the end: a choice entry by entry costs several
    times as much where it is hard to predict.
    """

    def __init__(self, n: int) -> None:
        self._total_s, self._best = np.full(n, -np.inf), np.zeros(n, dtype=np.int64)
        self._paths: list[tuple[Floats, Floats, Counts]] = []

    def offer(self, work_s: Floats, bubble_s: Floats, stage: Counts, exists: npt.NDArray[np.bool_] | None) -> None:
        """A path [n] where it exists (None: everywhere): work of the pacing stage, what it spends beside it, stage."""
        total = work_s + bubble_s
        if exists is not None:
            total = np.where(exists, total, -np.inf)
        np.maximum(self._best, (total > self._total_s) * len(self._paths), out=self._best)
        np.maximum(self._total_s, total, out=self._total_s)
        self._paths.append((work_s, bubble_s, stage))

    def closed_form(self) -> ClosedForm:
        """What it takes."""
        n = len(self._best)
        at = self._best * n
        at += np.arange(n)
        work, bubble, stage = (np.concatenate(each).take(at) for each in zip(*self._paths, strict=True))
        # The longest path is no shorter than the pacing stage's own work, so only rounding can make this negative.
        bubble = np.maximum(bubble, 0.0)
        return ClosedForm(work + bubble, work, bubble, stage)


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
    least latency of an edge out of a pair (None: the same as any other). size: `group_size`, where they are known.
    """
    n = len(stages.forward_s)
    edge = np.asarray(p2p_s, dtype=np.float64)
    least = edge if covered_p2p_s is None else np.asarray(covered_p2p_s, dtype=np.float64)
    how = schedule(kind)
    if how.own_order:
        return _own_classes(kind, stages, pp, vpp, micro_batches, edge)
    if how.ends_meet:
        if how.copies > 1:
            pp, micro_batches = pp // 2, micro_batches // 2
        return _dual_classes(stages, pp, micro_batches, edge)
    if size is None:
        size = group_size(pp, micro_batches)
    names = (field.name for field in fields(stages) if field.name != "split_s")
    work, beside, stage = longest_paths(
        tuple(np.asfortranarray(getattr(stages, name)) for name in names),
        _column(pp, n),
        _column(vpp, n),
        _column(micro_batches, n),
        _column(size, n),
        _column(forwards_ahead(kind, 0, pp, vpp, micro_batches, size), n),
        _column(edge, n),
        _column(least, n),
        how.alternates,
        how.gathers,
        how.pairs,
    )
    # The longest path is no shorter than the pacing stage's own work, so only rounding can make this negative.
    beside = np.maximum(beside, 0.0)
    return ClosedForm(work + beside, work, beside, stage)


def _column(values: Counts | Floats, n: int) -> Floats:
    """As floats [n], one after the other in memory."""
    return np.ascontiguousarray(np.broadcast_to(values, (n,)), dtype=np.float64)


def _ramp(before: Floats, stage: Counts) -> Floats:
    """Stages before this one: the first forward comes through their chunk 0, the last backward goes."""
    return np.asarray(np.where(stage > 0, before[:, FIRST] + (stage - 1) * before[:, MIDDLE], 0.0))


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


def fused_pairs(
    kind: str, stage: Counts, pp: Counts, vpp: Counts, micro_batches: Counts, size: Counts | None = None
) -> Counts:
    """Slots of a stage [n] that run a forward against a backward: `pair_counts` over all its chunks, by formula.

    With two copies: as folded on half of the devices with half of the micro batches, counted from the nearer end.
    size: `group_size`, where they are known already.
    """
    how = schedule(kind)
    if not how.pairs:
        return np.zeros_like(stage)
    if how.own_order:
        return of_stages(paired_slots, kind, stage, pp, vpp, micro_batches)
    if not how.ends_meet:
        pairs = np.maximum(micro_batches * vpp - forwards_ahead(kind, stage, pp, vpp, micro_batches, size), 0)
        if how.gathers:
            pairs = np.where((micro_batches <= pp) & (vpp > 1), 0, pairs)
        return np.asarray(pairs)
    if how.copies > 1:
        stage, pp, micro_batches = np.minimum(stage, pp - 1 - stage), pp // 2, micro_batches // 2
    return _dual_pairs(stage, pp, micro_batches)


def _dual_pairs(stage: Counts, pp: Counts, micro_batches: Counts) -> Counts:
    """Of a folded pipeline."""
    main = 2 * np.maximum(micro_batches - 2 * pp + stage + 1, 0)
    return np.asarray(main - (stage == pp - 1) * (main > 0) + (pp - stage - 1))


def _own_classes(
    kind: str, stages: StageClasses, pp: Counts, vpp: Counts, micro_batches: Counts, edge: Floats
) -> ClosedForm:
    """Work and ramp of stages 0, 1, P - 2 and P - 1, with the pairs of the graph, whatever the order.

    Estimates add its idling. The way back counts nothing: weight gradients may run after it.
    """
    own = stages.forward_s + stages.backward_s
    before = stages.first_forward_s + np.reshape(edge, (-1, 1))
    longest, n = _Longest(len(own)), len(own)
    last = np.broadcast_to(pp - 1, (n,))
    second, nearest = np.minimum(last, 1), np.maximum(last - 1, 0)
    for stage, stage_class, exists in (
        (np.zeros_like(last), FIRST, last > 0),
        (second, MIDDLE, last > 1),
        (nearest, MIDDLE, last > 1),
        (last, LAST, None),
    ):
        pairs = fused_pairs(kind, stage, pp, vpp, micro_batches)
        work = micro_batches * own[:, stage_class] - pairs * stages.hidden_pair_s[:, stage_class]
        longest.offer(work, _ramp(before, stage), stage, exists)
    return longest.closed_form()


def _dual_classes(stages: StageClasses, ranks: Counts, m: Counts, edge: Floats) -> ClosedForm:
    own = stages.forward_s + stages.backward_s
    outer = stages.last_forward_s + 2 * stages.backward_s - stages.hidden_pair_s - stages.split_s
    turn = (
        (2 * ranks - 1) * stages.first_forward_s[:, FIRST]
        + stages.last_forward_s[:, FIRST]
        + outer[:, FIRST]
        + (ranks - 2) * outer[:, MIDDLE]
        - (ranks + 1) * stages.first_forward_s[:, LAST]
        - ranks * stages.last_forward_s[:, LAST]
        - (ranks - 1) * stages.backward_s[:, LAST]
    )
    before = stages.first_forward_s + stages.first_backward_s + 2 * np.reshape(edge, (-1, 1))
    longest = _Longest(len(own))
    some = np.broadcast_to(ranks > 1, len(own))
    nearest, last = np.maximum(ranks - 2, 0), ranks - 1
    for stage, stage_class, exists, bubble in (
        (np.zeros_like(ranks), FIRST, some, np.zeros(len(own))),
        (nearest, MIDDLE, np.broadcast_to(ranks > 2, len(own)), _ramp(before, nearest)),
        (last, LAST, None, _ramp(before, last)),
        (last, LAST, some, turn),
    ):
        pairs = _dual_pairs(stage, ranks, m)
        work = m * own[:, stage_class] - pairs * stages.hidden_pair_s[:, stage_class]
        longest.offer(work, bubble, stage, exists)
    return longest.closed_form()
