"""The closed forms for a sweep: a candidate is described by its first, a middle and its last stage, whatever pp is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.schedule.closed_forms import ClosedForm, PathTerms, _excursions, _Own, waiting
from cost_models.schedule.orders import forwards_ahead

if TYPE_CHECKING:
    from cost_models.schedule.orders import ScheduleKind

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FIRST, MIDDLE, LAST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class StageClasses:
    """Times of one micro batch on the first, each middle and the last stage [n, 3].

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


def closed_form_classes_s(
    kind: ScheduleKind,
    stages: StageClasses,
    pp: Ints,
    vpp: Ints,
    micro_batches: Ints,
    p2p_s: Floats | float = 0.0,
    covered_p2p_s: Floats | float | None = None,
) -> ClosedForm:
    """`closed_form_s` for candidates of any pp, vpp and micro batches [n]: equal to it when M > P, else no greater.

    A middle stage is a candidate for the pace at both ends of the run of middle stages: with M > P its path is linear
    in its place between them. Chunks between a stage's first and last are not seen one by one. covered_p2p_s: the
    least latency of an edge out of a pair (None: the same as any other).
    """
    n = len(stages.forward_s)
    pp, vpp, micro_batches = (np.broadcast_to(np.asarray(a, dtype=np.int64), (n,)) for a in (pp, vpp, micro_batches))
    edge = np.broadcast_to(np.asarray(p2p_s, dtype=np.float64), (n,))
    least = edge if covered_p2p_s is None else np.broadcast_to(np.asarray(covered_p2p_s, dtype=np.float64), (n,))
    if kind in ("dualpipev", "dualpipe"):
        if kind == "dualpipe":
            pp, micro_batches = pp // 2, micro_batches // 2
        return _dual_classes(stages, pp, micro_batches, edge)
    work = np.empty((n, 4))
    bubble = np.full((n, 4), -np.inf)
    place = np.stack([np.zeros(n, dtype=np.int64), np.minimum(1, pp - 1), np.maximum(pp - 2, 0), pp - 1], axis=1)
    exists = (pp > 1, pp > 2, pp > 2, pp > 0)
    for column, stage_class in enumerate((FIRST, MIDDLE, MIDDLE, LAST)):
        stage = place[:, column]
        pairs = fused_pairs(kind, stage, pp, vpp, micro_batches)
        work[:, column] = (
            micro_batches * (stages.forward_s[:, stage_class] + stages.backward_s[:, stage_class])
            - pairs * stages.hidden_pair_s[:, stage_class]
        )
        spent = _ramp(stages, stage, edge) + _filling(
            kind, stages, stage_class, stage, pp, vpp, micro_batches, edge + least
        )
        bubble[:, column] = np.where(exists[column], spent, -np.inf)
    work = np.where(np.isfinite(bubble), work, 0.0)
    beside = _through(kind, stages, pp, vpp, micro_batches, least) - work[:, -1]
    return PathTerms(
        np.append(work, work[:, -1:], axis=1),
        np.append(bubble, beside[:, None], axis=1),
        np.append(place, place[:, -1:], 1),
    ).longest()


def _through(
    kind: ScheduleKind, stages: StageClasses, pp: Ints, vpp: Ints, micro_batches: Ints, edge: Floats
) -> Floats:
    """One micro batch through every chunk and back, waiting for all the others at the slowest first or last chunk."""
    x = stages.forward_s + stages.backward_s
    whole = x[:, LAST] + np.where(pp > 1, x[:, FIRST] + (pp - 2) * x[:, MIDDLE] + 2 * (pp * vpp - 1) * edge, 0.0)
    slowest = []
    for first, last in (
        (stages.first_forward_s, stages.last_forward_s),
        (stages.first_backward_s, stages.last_backward_s),
    ):
        chunk = np.maximum(first, last)
        middle = np.where(pp > 2, chunk[:, MIDDLE], 0.0)
        slowest.append(np.maximum(np.maximum(np.where(pp > 1, chunk[:, FIRST], 0.0), middle), chunk[:, LAST]))
    return whole + waiting(kind, vpp, pp, micro_batches, slowest[0], slowest[1])


def _ramp(stages: StageClasses, stage: Ints, edge: Floats) -> Floats:
    """Stages before this one: the first forward comes through their chunk 0, the last backward goes."""
    x = stages.first_forward_s + stages.first_backward_s + 2 * edge[:, None]
    return np.asarray(np.where(stage > 0, x[:, FIRST] + (stage - 1) * x[:, MIDDLE], 0.0))


def _filling(
    kind: ScheduleKind,
    stages: StageClasses,
    stage_class: int,
    stage: Ints,
    pp: Ints,
    vpp: Ints,
    micro_batches: Ints,
    edges: Floats,
) -> Floats:
    """The way down to the last stage and back; `edges` are the two between neighbours."""
    x = stages.last_forward_s + stages.last_backward_s + edges[:, None]
    middles = np.maximum(pp - 2 - stage, 0)
    whole = pp - 1 - stage
    # 1f1b: a path loses nothing by going down while micro batches are short of stages.
    kink = np.clip(pp - stage - micro_batches, 0, middles)
    depth = np.stack([np.zeros_like(whole), kink, middles, whole], axis=1)
    reach = np.stack(
        [
            np.zeros(len(edges)),
            kink * x[:, MIDDLE],
            middles * x[:, MIDDLE],
            np.where(whole > 0, middles * x[:, MIDDLE] + x[:, LAST], 0.0),
        ],
        axis=1,
    )
    own = _Own(
        stages.first_forward_s[:, stage_class], stages.last_forward_s[:, stage_class], stages.backward_s[:, stage_class]
    )
    return _excursions(kind, stage, pp, vpp, micro_batches, depth, reach, own)


def in_step_s(kind: ScheduleKind, stages: StageClasses, pp: Ints, vpp: Ints, micro_batches: Ints) -> Floats:
    """What interleaved chunks take that keep step with each other [n]: an estimate beside the bound, not a bound.

    A group of micro batches runs through chunk after chunk on all stages at once, so a chunk that is longer on one
    stage than on its neighbours (a head, an embedding) holds all of them up, whatever the stage's other chunks save:

        M (x + excess) + (P - 1) x / V    x: F + B of a stage that is as long as its neighbours

    On the first and on the last stage the forward and the backward of such a chunk meet in the same slots. Own
    derivation; without excess it is interleaving's M (F + B) + (P - 1)(F + B) / V (arXiv 2104.04473, section 2.2).
    """
    reference = np.where(pp > 2, MIDDLE, FIRST)[:, None]

    def of_reference(values: Floats) -> Floats:
        return np.asarray(np.take_along_axis(values, reference, 1)[:, 0])

    first, last = stages.first_forward_s + stages.first_backward_s, stages.last_forward_s + stages.last_backward_s
    excess = np.maximum(last[:, LAST] - of_reference(last), 0.0) + np.maximum(
        first[:, FIRST] - of_reference(first), 0.0
    )
    whole = of_reference(stages.forward_s + stages.backward_s)
    stage = np.minimum(1, pp - 1)
    hidden = fused_pairs(kind, stage, pp, vpp, micro_batches) * of_reference(stages.hidden_pair_s)
    time = micro_batches * (whole + excess) - hidden + (pp - 1) * whole / vpp
    interleaved = (vpp > 1) & (pp > 1) & (kind in ("interleaved", "adaptive_pipe"))
    return np.asarray(np.where(interleaved, np.maximum(time, 0.0), 0.0))


def fused_pairs(kind: ScheduleKind, stage: Ints, pp: Ints, vpp: Ints, micro_batches: Ints) -> Ints:
    """Slots of a stage [n] that run a forward against a backward: `pair_counts` over all its chunks, by formula.

    dualpipe: as dualpipev on half of the devices with half of the micro batches, counted from the nearer end.
    """
    if kind == "adaptive_pipe":
        return np.asarray(np.maximum(micro_batches * vpp - forwards_ahead(stage, pp, vpp, micro_batches), 0))
    if kind not in ("dualpipev", "dualpipe"):
        return np.zeros_like(stage)
    if kind == "dualpipe":
        stage, pp, micro_batches = np.minimum(stage, pp - 1 - stage), pp // 2, micro_batches // 2
    main = 2 * np.maximum(micro_batches - 2 * pp + stage + 1, 0)
    return np.asarray(main - (stage == pp - 1) * (main > 0) + (pp - stage - 1))


def _dual_classes(stages: StageClasses, ranks: Ints, m: Ints, edge: Floats) -> ClosedForm:
    own = stages.forward_s + stages.backward_s
    place = np.stack([np.zeros_like(ranks), np.maximum(ranks - 2, 0), ranks - 1, ranks - 1], axis=1)
    classes = [FIRST, MIDDLE, LAST, LAST]
    fused = fused_pairs("dualpipev", place, ranks[:, None], np.array(2), m[:, None])
    work = m[:, None] * own[:, classes] - fused * stages.hidden_pair_s[:, classes]
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
    absent = -np.inf
    bubble = np.stack(
        [
            np.where(ranks > 1, 0.0, absent),
            np.where(ranks > 2, _ramp(stages, place[:, 1], edge), absent),
            _ramp(stages, place[:, 2], edge),
            np.where(ranks > 1, turn, absent),
        ],
        axis=1,
    )
    return PathTerms(np.where(np.isfinite(bubble), work, 0.0), bubble, place).longest()
