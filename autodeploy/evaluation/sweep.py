"""The sweep: time, breakdown and worst-stage memory of every candidate under the template layout.

The template gives each middle stage k layers, the first stage fewer by the embedding's share, the last by the head's:
k is the smallest count for which all layers fit. Times are the closed forms of the schedules; costs are the ones that
estimates and the solver read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.stage_classes import StepClass, StepClasses, step_classes
from autodeploy.evaluation.stage_memory import GRADIENT_SHARE, communicator_counts
from autodeploy.evaluation.unit_costs import distinct_cuts, unit_costs
from autodeploy.strategies.candidates import PAIRED, SCHEDULES, Candidates, Ints
from cost_models.collectives import point_to_point_s
from cost_models.schedule import ScheduleKind, StageClasses, closed_form_classes_s, fused_pairs, in_flight_closed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.evaluation.context import Context
    from autodeploy.workload.operators import Floats

UNLIKELY = 1e3  # factor on the estimate of candidates that are solved last
BLOCK = 16_384  # candidates whose columns stay in the cache together


@dataclass(frozen=True)
class Sweep:
    """One entry per candidate. `parts` adds up to step_time_s; `bound_s` holds for every layout of the candidate."""

    step_time_s: Floats
    bound_s: Floats
    memory_bytes: Floats  # worst stage of the template, nothing recomputed or swapped
    least_bytes: Floats  # no layout and no choice brings the fullest stage below this
    recomputed_bytes: Floats  # on the card of the template's fullest stage when every layer is recomputed
    repaired_s: Floats  # step time with enough recomputed to fit; infinite where nothing fits
    parts: dict[str, Floats]


def sweep(candidates: Candidates, context: Context) -> Sweep:
    """Evaluate all candidates, in blocks."""
    blocks = [_sweep_block(candidates.take(block), context) for block in _blocks(len(candidates))]
    if not blocks:
        empty = np.zeros(0)
        return Sweep(empty, empty, empty, empty, empty, empty, {})
    joined = {
        name: np.concatenate([getattr(b, name) for b in blocks])
        for name in ("step_time_s", "bound_s", "memory_bytes", "least_bytes", "recomputed_bytes", "repaired_s")
    }
    parts = {name: np.concatenate([b.parts[name] for b in blocks]) for name in blocks[0].parts}
    return Sweep(**joined, parts=parts)


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, start + BLOCK)


@dataclass(frozen=True)
class _Template:
    """Layers of every class on the first, a middle and the last stage [n, 3]."""

    layers: list[Floats]


def _sweep_block(candidates: Candidates, context: Context) -> Sweep:
    cuts, inverse = distinct_cuts(candidates)
    costs = unit_costs(context, cuts).take(inverse)
    classes = step_classes(costs, candidates, context)
    n = len(candidates)
    template = _template(classes, candidates, n)
    forward, backward = (_stage_s(classes, template, candidates, phase, context) for phase in ("forward", "backward"))
    blocking, edge = _p2p(candidates, context)
    forward, backward = forward + blocking[:, None], backward + blocking[:, None]
    closed_work, bubble, pacing, paired = _closed_forms(classes, template, candidates, forward, backward, edge)
    tail = _tail(classes, template, candidates, n)
    parts = _parts(classes, template, candidates, context, paired, pacing, blocking)
    parts["pipeline_bubble_s"] = bubble
    slowest = np.argmax(tail["total_s"], axis=1)
    for name in ("exposed_dp_s", "optimizer_s", "exposed_swap_s"):
        parts[name] = parts.get(name, 0.0) + tail[name][np.arange(n), slowest]
    step = closed_work + bubble + tail["total_s"].max(axis=1)
    memory, least, room, in_flight, recomputed = _memory(classes, template, candidates, context, n)
    repaired = _repaired(classes, template, candidates, context, step, memory - room, in_flight)
    # A template that does not fit with everything recomputed leaves little hope for other layouts: they come last.
    repaired = np.where(recomputed > room, UNLIKELY * repaired, repaired)
    repaired = np.where(least > room, np.inf, repaired)
    bound = _bound(classes, candidates, context, n)
    on_card = recomputed * (1.0 + context.machine.fragmentation) + _beside_allocator(candidates, context)
    return Sweep(step, bound, memory, least, on_card, repaired, parts)


def _each(classes: StepClasses, candidates: Candidates) -> list[tuple[StepClass, Floats]]:
    """Pieces, and how many of each a stage class holds [n, 3].

    The embedding sits on the first stage, head and prediction modules on the last: dualpipev folds that onto the first.
    """
    first = np.broadcast_to(np.array([1.0, 0.0, 0.0]), (len(candidates), 3))
    folded = (candidates.schedule == SCHEDULES.index("dualpipev")) & (candidates.pp > 1)
    last = np.where(folded[:, None], first, np.array([0.0, 0.0, 1.0]))
    return [(classes.embedding, first), *((piece, last) for piece in classes.pieces[1:])]


def _template(classes: StepClasses, candidates: Candidates, n: int) -> _Template:
    """Layers per stage class; where pp is 1 the last stage holds everything."""
    total = float(sum(c.count for c in classes.layers))
    layer_s = sum(c.count * (c.cost.forward.total_s + c.cost.backward.total_s) for c in classes.layers) / total
    ends = np.zeros((n, 3))
    for piece, where in _each(classes, candidates):
        ends += where * _column((piece.cost.forward.total_s + piece.cost.backward.total_s) / layer_s, n)[:, None]
    pp = candidates.pp.astype(np.float64)
    first_less, last_less = np.round(ends[:, 0]), np.round(ends[:, 2])
    middle = np.ceil((total + np.minimum(first_less + last_less, total)) / pp)
    middle = np.where(pp == 1, total, np.minimum(middle, total))
    last = np.where(pp == 1, total, np.clip(total - (pp - 1) * middle, 0.0, np.maximum(middle - last_less, 0.0)))
    first = np.where(pp == 1, 0.0, np.clip(total - last - (pp - 2) * middle, 0.0, middle))
    sizes = np.stack([first, middle, last], axis=1)
    # Model order: leading classes fill the first stages; the middle stage that counts is the one before the last.
    starts = np.stack([np.zeros(n), np.maximum(first, total - last - middle), total - last], axis=1)
    layers, before = [], 0.0
    for step in classes.layers:
        low, high = before, before + step.count
        inside = np.clip(np.minimum(starts + sizes, high) - np.maximum(starts, low), 0.0, None)
        layers.append(inside)
        before = high
    return _Template(layers)


def _column(values: Floats, n: int) -> Floats:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (n,))


def _stage_s(classes: StepClasses, template: _Template, candidates: Candidates, phase: str, context: Context) -> Floats:
    """Seconds of one micro batch on the three stage classes [n, 3]."""
    n, slow = len(candidates), context.slowest_device_factor - 1.0

    def seconds(step: StepClass) -> Floats:
        cost = getattr(step.cost, phase)
        return _column(cost.total_s + slow * cost.compute_s, n)

    total = np.zeros((n, 3))
    for step, layers in zip(classes.layers, template.layers, strict=True):
        total += layers * seconds(step)[:, None]
    for piece, where in _each(classes, candidates):
        total += where * seconds(piece)[:, None]
    return total


def _p2p(candidates: Candidates, context: Context) -> tuple[Floats, Floats]:
    """Seconds to the next stage: blocking under 1f1b, an edge's latency where sends overlap [n]."""
    tokens = candidates.micro_batch_size * (context.seq_length / candidates.cp)
    sent = (
        2.0
        * tokens
        * context.model.hidden_size
        / np.where(candidates.sequence_parallel | context.cuts_sends, candidates.tp, 1)
    )
    stride = context.world // candidates.pp
    seconds = np.zeros(len(candidates))
    outermost = context.machine.topology.place(stride, np.full(len(candidates), 2)).outermost_tier
    for number, tier in enumerate(context.machine.tiers):
        here = outermost == number
        seconds = np.where(here, point_to_point_s(sent, tier, context.machine.comm_op_s), seconds)
    seconds = np.where(candidates.pp > 1, seconds, 0.0)
    blocks = candidates.schedule == SCHEDULES.index("1f1b")
    return np.where(blocks, seconds, 0.0), np.where(blocks, 0.0, seconds)


def _closed_forms(
    classes: StepClasses, template: _Template, candidates: Candidates, forward: Floats, backward: Floats, edge: Floats
) -> tuple[Floats, Floats, Ints, Floats]:
    """Work of the pacing stage, bubble, which stage class paces, and what its fused pairs hide [n]."""
    n = len(candidates)
    one = candidates.pp == 1
    if one.any():
        # A single stage holds the first stage's pieces too.
        forward[one, 2] += forward[one, 0]
        backward[one, 2] += backward[one, 0]
        forward[one, 0], backward[one, 0] = 0.0, 0.0
    vpp = candidates.vpp.astype(np.float64)[:, None]
    hidden = np.zeros((n, 3))
    for step, layers in zip(classes.layers, template.layers, strict=True):
        hidden += layers / vpp * _column(step.cost.pair.hidden_s, n)[:, None]
    work, bubble, paired, stage = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
    for code, name in enumerate(SCHEDULES):
        here = candidates.schedule == code
        if not here.any():
            continue
        kind: ScheduleKind = name  # type: ignore[assignment]
        chunk = vpp[here]
        stages = StageClasses(
            forward[here],
            backward[here],
            forward[here] / chunk,
            backward[here] / chunk,
            forward[here] / chunk,
            backward[here] / chunk,
            np.minimum(hidden[here], np.minimum(forward[here], backward[here]) / chunk),
        )
        closed = closed_form_classes_s(
            kind, stages, candidates.pp[here], candidates.vpp[here], candidates.micro_batches[here], edge[here]
        )
        work[here], bubble[here] = closed.work_s, closed.bubble_s
        pace = np.asarray(closed.pacing_stage)
        stage[here] = np.where(pace >= candidates.pp[here] - 1, 2, np.where(pace == 0, 0, 1))
        pairs = fused_pairs(kind, pace, candidates.pp[here], candidates.vpp[here], candidates.micro_batches[here])
        paired[here] = pairs * stages.hidden_pair_s[np.arange(len(pace)), stage[here]]
    return work, bubble, stage, paired


def _tail(classes: StepClasses, template: _Template, candidates: Candidates, n: int) -> dict[str, Floats]:
    """What follows the pipeline, on each stage class [n, 3], by part."""
    found, one = {}, candidates.pp == 1
    for part in ("total_s", "exposed_dp_s", "optimizer_s", "exposed_swap_s"):
        total = np.zeros((n, 3))
        for step, layers in zip(classes.layers, template.layers, strict=True):
            total += layers * _column(getattr(step.tail, part), n)[:, None]
        for piece, where in _each(classes, candidates):
            total += where * _column(getattr(piece.tail, part), n)[:, None]
        total[one, 2] += total[one, 0]
        total[one, 0] = 0.0
        found[part] = total
    return found


def _parts(
    classes: StepClasses,
    template: _Template,
    candidates: Candidates,
    context: Context,
    hidden: Floats,
    pacing: Ints,
    blocking: Floats,
) -> dict[str, Floats]:
    """Work of the pacing stage by part; what pairing hides comes off exposed expert communication."""
    n, rows = len(candidates), np.arange(len(candidates))
    micro_batches = candidates.micro_batches.astype(np.float64)
    names = ("compute_s", "imbalance_s", "exposed_tp_s", "exposed_ep_s", "exposed_cp_s", "host_bound_s")
    parts = {name: np.zeros(n) for name in names}
    one = candidates.pp == 1
    held = [(step, layers[rows, pacing]) for step, layers in zip(classes.layers, template.layers, strict=True)]
    held += [(piece, np.where(one, 1.0, where[rows, pacing])) for piece, where in _each(classes, candidates)]
    slow = context.slowest_device_factor - 1.0
    for step, count in held:
        for phase in (step.cost.forward, step.cost.backward):
            for name in names:
                parts[name] += micro_batches * count * _column(getattr(phase, name), n)
            parts["imbalance_s"] += micro_batches * count * slow * _column(phase.compute_s, n)
    parts["exposed_pp_s"] = 2.0 * micro_batches * blocking
    off_even = np.minimum(parts["exposed_ep_s"], hidden)
    parts["exposed_ep_s"] = parts["exposed_ep_s"] - off_even
    parts["imbalance_s"] = np.maximum(0.0, parts["imbalance_s"] - (hidden - off_even))
    parts["recompute_s"] = np.zeros(n)
    return parts


def _beside_allocator(candidates: Candidates, context: Context) -> Floats:
    """Bytes on the card outside the framework's allocator [n]: communication buffers and runtime."""
    machine = context.machine
    return communicator_counts(candidates) * machine.communicator_bytes + machine.runtime_bytes


def _memory(
    classes: StepClasses, template: _Template, candidates: Candidates, context: Context, n: int
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Allocator bytes of the fullest stage, the least of any layout, the room on the card, in-flight counts, and the
    fullest stage's bytes when every layer is recomputed.
    """
    static, kept, freed, ends = (np.zeros((n, 3)) for _ in range(4))
    everything = np.zeros(n)
    for step, layers in zip(classes.layers, template.layers, strict=True):
        each = _column(step.static.total, n)
        static += layers * each[:, None]
        kept += layers * _column(step.cost.activation_bytes, n)[:, None]
        freed += layers * _column(step.cost.choices["full"].saved_bytes, n)[:, None]
        everything += step.count * each
    for piece, where in _each(classes, candidates):
        static += where * _column(piece.static.total, n)[:, None]
        ends += where * _column(piece.cost.activation_bytes, n)[:, None]
        everything += _column(piece.static.total, n)
    one = candidates.pp == 1
    static[one, 2] += static[one, 0]
    kept[one, 2] += kept[one, 0]
    freed[one, 2] += freed[one, 0]
    ends[one, 2] += ends[one, 0]
    in_flight = np.zeros((n, 3))
    places = (np.zeros_like(candidates.pp), np.minimum(1, candidates.pp - 1), candidates.pp - 1)
    for code, name in enumerate(SCHEDULES):
        here = candidates.schedule == code
        if here.any():
            kind: ScheduleKind = name  # type: ignore[assignment]
            for column, place in enumerate(places):
                args = (place[here], candidates.pp[here], candidates.vpp[here], candidates.micro_batches[here])
                in_flight[here, column] = in_flight_closed(kind, *args) / candidates.vpp[here]
    widest = np.max([_column(step.cost.activation_bytes, n) for step in classes.layers], axis=0)
    workspace = GRADIENT_SHARE * widest
    # The last chunk of the model is held by one micro batch at a time; its pieces do not pile up.
    pieces = ends * np.where((np.arange(3) == 2) & ~one[:, None], 1.0, in_flight)
    stage = static + kept * in_flight + pieces + workspace[:, None]
    least_stage = static + (kept - freed) * in_flight + pieces + workspace[:, None] + widest[:, None]
    for bytes_ in (stage, least_stage):
        bytes_[candidates.pp <= 2, 1] = 0.0
        bytes_[one, 0] = 0.0
    room = (context.limit_bytes - _beside_allocator(candidates, context)) / (1.0 + context.machine.fragmentation)
    return stage.max(axis=1), everything / candidates.pp + workspace, room, in_flight, least_stage.max(axis=1)


def _repaired(
    classes: StepClasses,
    template: _Template,
    candidates: Candidates,
    context: Context,
    step_s: Floats,
    missing: Floats,
    in_flight: Floats,
) -> Floats:
    """Step time when the first stage recomputes just enough to fit: the order in which candidates are solved.

    Choices are taken from the cheapest second a byte on; where they do not free enough, whole layers are recomputed.
    """
    n = len(candidates)
    missing = np.maximum(missing, 0.0)
    need, extra = missing, np.zeros(n)
    micro_batches = candidates.micro_batches.astype(np.float64)
    held = np.maximum(in_flight[:, 0], in_flight[:, 2])
    whole = context.target != "any"  # a framework's flag holds for every stage

    def total(name: str) -> tuple[Floats, Floats]:
        saved, cost = np.zeros(n), np.zeros(n)
        for step, layers in zip(classes.layers, template.layers, strict=True):
            if name in step.cost.choices:
                choice, count = step.cost.choices[name], layers.max(axis=1)
                saved += count * _column(choice.saved_bytes, n) * held
                cost += count * _column(choice.recompute_s, n) * micro_batches
        return saved, cost

    for name in ("norm", "activation", "mla_up_proj"):
        saved, cost = total(name)
        used = np.clip(need / np.maximum(saved, 1.0), 0.0, 1.0)
        used = np.ceil(used) if whole else used
        extra += used * cost
        need = np.maximum(0.0, need - used * saved)
    saved, cost = total("full")
    share = np.clip(missing / np.maximum(saved, 1.0), 0.0, 1.0)
    return np.where(need > 0.0, step_s + cost * share, step_s + extra)


def _bound(classes: StepClasses, candidates: Candidates, context: Context, n: int) -> Floats:
    """A step time that no layout and no memory choice of the candidate can beat.

    With W seconds of work of one micro batch over all stages, some device works at least W / P a micro batch. Under
    1f1b with M > P micro batches an even split is the best of all splits and takes (M + P - 1) W / P (the average of
    the stages' paths with weights that make it stationary); other schedules fill and drain in no less than one layer a
    stage. Pairing can hide at most what a pair of whole layers hides.
    """
    work = np.zeros(n)
    hidden = np.zeros(n)
    smallest = np.full(n, np.inf)
    for step in classes.layers:
        each = _column(step.cost.forward.total_s + step.cost.backward.total_s, n)
        work += step.count * each
        hidden += step.count * _column(step.cost.pair.hidden_s, n)
        smallest = np.minimum(smallest, each)
    heaviest = np.zeros(n)
    for piece in classes.pieces:
        each = _column(piece.cost.forward.total_s + piece.cost.backward.total_s, n)
        work += each
        heaviest = np.maximum(heaviest, each)
    pp, m = candidates.pp.astype(np.float64), candidates.micro_batches.astype(np.float64)
    plain = candidates.schedule == SCHEDULES.index("1f1b")
    paired = np.isin(candidates.schedule, PAIRED)
    work_paired = np.where(paired, work - hidden, work)
    even = np.where(plain & (m > pp), (m + pp - 1.0) / pp * work, m / pp * work_paired)
    tail = np.asarray(sum(c.count * _column(c.tail.total_s, n) for c in classes.layers)) / pp
    return np.asarray(np.maximum(even, m * heaviest) + tail)
