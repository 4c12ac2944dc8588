"""The sweep: time, breakdown and worst-stage memory of every candidate under the template layout.

Times are the closed forms of the schedules; costs are the ones that estimates and the solver read. dualpipe is not
swept: it is evaluated for comparison only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layer_cost import PhaseCost
from autodeploy.evaluation.stage_classes import StepClasses, step_classes
from autodeploy.evaluation.stage_memory import (
    allocator_limit_bytes,
    communication_bytes,
    on_card_bytes,
    workspace_bytes,
)
from autodeploy.evaluation.stage_sends import p2p_s
from autodeploy.evaluation.step_parts import TAIL_PARTS
from autodeploy.evaluation.sweep_template import (
    FIRST,
    LAST,
    MIDDLE,
    ChunkSeconds,
    Template,
    chunk_seconds,
    column,
    each_piece,
    template_of,
)
from autodeploy.evaluation.unit_costs import distinct_cuts, unit_costs
from autodeploy.strategies.candidates import PAIRED, SCHEDULES, Candidates, Ints
from cost_models.schedule import (
    ScheduleKind,
    StageClasses,
    closed_form_classes_s,
    fused_pairs,
    in_flight_closed,
    in_step_s,
)

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


def _sweep_block(candidates: Candidates, context: Context) -> Sweep:
    cuts, inverse = distinct_cuts(candidates, by_replicas=context.packs is not None or context.fsdp)
    costs = unit_costs(context, cuts).take(inverse)
    classes = step_classes(costs, candidates, context)
    n = len(candidates)
    if (candidates.schedule == SCHEDULES.index("dualpipe")).any():
        raise ValueError("dualpipe is estimated, not swept")
    template = template_of(classes, candidates, balanced="virtual_pipeline_balance" in context.features)
    blocking, edge = _p2p(candidates, context)
    forward, backward = (
        chunk_seconds(classes, template, candidates, phase, context, blocking) for phase in ("forward", "backward")
    )
    closed_work, bubble, pacing, hidden = _closed_forms(classes, template, candidates, forward, backward, edge)
    tail = _tail(classes, template, candidates, n)
    parts = _parts(classes, template, candidates, context, hidden, pacing, blocking)
    parts["pipeline_bubble_s"] = bubble
    slowest = np.argmax(tail["total_s"], axis=1)
    for name in TAIL_PARTS:
        parts[name] = parts.get(name, 0.0) + tail[name][np.arange(n), slowest]
    step = closed_work + bubble + tail["total_s"].max(axis=1)
    memory, least, room, in_flight, recomputed = _memory(classes, template, candidates, context, n)
    repaired = _repaired(classes, template, candidates, context, step, memory - room, in_flight)
    # A template that does not fit with everything recomputed leaves little hope for other layouts: they come last.
    repaired = np.where(recomputed > room, UNLIKELY * repaired, repaired)
    repaired = np.where(least > room, np.inf, repaired)
    bound = _bound(classes, candidates, edge + blocking)
    on_card = on_card_bytes(recomputed, _beside_allocator(candidates, context), context.machine.fragmentation)
    return Sweep(step, bound, memory, least, on_card, repaired, parts)


def _p2p(candidates: Candidates, context: Context) -> tuple[Floats, Floats]:
    """Seconds to the next stage: blocking under 1f1b, an edge's latency where sends overlap [n]."""
    seconds = p2p_s(candidates, context)
    blocks = candidates.schedule == SCHEDULES.index("1f1b")
    return np.where(blocks, seconds, 0.0), np.where(blocks, 0.0, seconds)


@dataclass(frozen=True)
class _Hidden:
    """What fused pairs hide on the pacing stage [n], and how much of it is expert communication."""

    all_s: Floats
    exchange_s: Floats


def _closed_forms(
    classes: StepClasses,
    template: Template,
    candidates: Candidates,
    forward: ChunkSeconds,
    backward: ChunkSeconds,
    edge: Floats,
) -> tuple[Floats, Floats, Ints, _Hidden]:
    """Work of the pacing stage, bubble, which stage class paces, and what its fused pairs hide [n]."""
    n = len(candidates)
    one = candidates.pp == 1
    for values in (forward.stage, forward.first, forward.last, backward.stage, backward.first, backward.last):
        # A single stage holds the first stage's pieces too.
        values[one, LAST] += values[one, FIRST]
        values[one, FIRST] = 0.0
    hidden, exchange, split, covering = _pairs(classes, template, candidates)
    shortest = np.minimum(np.minimum(forward.first, forward.last), np.minimum(backward.first, backward.last))
    hidden = np.minimum(hidden, np.where(one[:, None], np.minimum(forward.stage, backward.stage), shortest))
    work, bubble, stage = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
    found = _Hidden(np.zeros(n), np.zeros(n))
    for code, name in enumerate(SCHEDULES):
        here = candidates.schedule == code
        if not here.any():
            continue
        kind: ScheduleKind = name  # type: ignore[assignment]
        stages = StageClasses(
            forward.stage[here],
            backward.stage[here],
            forward.first[here],
            backward.first[here],
            forward.last[here],
            backward.last[here],
            hidden[here],
            split[here],
        )
        sizes = candidates.pp[here], candidates.vpp[here], candidates.micro_batches[here]
        covered = np.maximum(edge[here] - covering[here], 0.0)
        closed = closed_form_classes_s(kind, stages, *sizes, edge[here], covered)
        work[here] = closed.work_s
        bubble[here] = np.maximum(closed.bubble_s, in_step_s(kind, stages, *sizes) - closed.work_s)
        pace = np.asarray(closed.pacing_stage)
        stage[here] = np.where(pace >= candidates.pp[here] - 1, LAST, np.where(pace == 0, FIRST, MIDDLE))
        pairs, rows = fused_pairs(kind, pace, *sizes), np.arange(len(pace))
        found.all_s[here] = pairs * stages.hidden_pair_s[rows, stage[here]]
        found.exchange_s[here] = np.minimum(found.all_s[here], pairs * exchange[here][rows, stage[here]])
    return work, bubble, stage, found


def _pairs(classes: StepClasses, template: Template, candidates: Candidates) -> tuple[Floats, Floats, Floats, Floats]:
    """Of an even chunk [n, 3]: hidden in a pair, of that communication, dW after a split backward; and dW beside a
    pair's sends [n].
    """
    n = len(candidates)
    vpp = candidates.vpp.astype(np.float64)[:, None]
    hidden, exchange, split, first = (np.zeros((n, 3)) for _ in range(4))
    covering = np.zeros(n)
    chunk = [layers / vpp for layers in template.layers]
    ends, ends_back = np.cumsum(chunk, axis=0), np.cumsum(chunk[::-1], axis=0)[::-1]
    for i, row in enumerate(classes.pairs):
        for j, pair in enumerate(row):
            # Layers first to last beside layers last to first.
            low = np.maximum(ends[i] - chunk[i], ends_back[j] - chunk[j])
            both = np.maximum(np.minimum(ends[i], ends_back[j]) - low, 0.0)
            hidden += both * column(pair.hidden_s, n)[:, None]
            exchange += both * column(pair.hidden_exchange_s, n)[:, None]
            first += np.where(low == 0.0, np.minimum(both, 1.0), 0.0) * column(pair.first_s, n)[:, None]
    for step, layers in zip(classes.layers, chunk, strict=True):
        split += layers * column(step.cost.split_s, n)[:, None]
        covering = np.maximum(covering, column(step.cost.covering_s, n))
    return np.maximum(hidden - first, 0.0), np.maximum(exchange - first, 0.0), split, covering


def _tail(classes: StepClasses, template: Template, candidates: Candidates, n: int) -> dict[str, Floats]:
    """What follows the pipeline, on each stage class [n, 3], by part."""
    found, one = {}, candidates.pp == 1
    for part in ("total_s", *TAIL_PARTS):
        total = np.zeros((n, 3))
        for step, layers in zip(classes.layers, template.layers, strict=True):
            total += layers * column(getattr(step.tail, part), n)[:, None]
        for piece, where in each_piece(classes, candidates):
            total += where * column(getattr(piece.tail, part), n)[:, None]
        total[one, 2] += total[one, 0]
        total[one, 0] = 0.0
        found[part] = total
    return found


def _parts(
    classes: StepClasses,
    template: Template,
    candidates: Candidates,
    context: Context,
    hidden: _Hidden,
    pacing: Ints,
    blocking: Floats,
) -> dict[str, Floats]:
    """Work of the pacing stage by part; what pairing hides comes off exposed expert communication."""
    n, rows = len(candidates), np.arange(len(candidates))
    micro_batches = candidates.micro_batches.astype(np.float64)
    names = tuple(field.name for field in fields(PhaseCost))
    parts = {name: np.zeros(n) for name in names}
    one = candidates.pp == 1
    held = [(step, layers[rows, pacing]) for step, layers in zip(classes.layers, template.layers, strict=True)]
    held += [(piece, np.where(one, 1.0, where[rows, pacing])) for piece, where in each_piece(classes, candidates)]
    slow = context.slowest_device_factor - 1.0
    for step, count in held:
        for phase in (step.cost.forward, step.cost.backward):
            for name in names:
                parts[name] += micro_batches * count * column(getattr(phase, name), n)
            parts["imbalance_s"] += micro_batches * count * slow * column(phase.compute_s, n)
    parts["exposed_pp_s"] = 2.0 * micro_batches * blocking
    for names_hidden, seconds in (
        (("exposed_ep_s", "imbalance_s"), hidden.exchange_s),
        (("host_bound_s",), hidden.all_s - hidden.exchange_s),
    ):
        left = seconds
        for name in names_hidden:
            taken = np.minimum(parts[name], left)
            parts[name] = parts[name] - taken
            left = left - taken
    parts["recompute_s"] = np.zeros(n)
    return parts


def _beside_allocator(candidates: Candidates, context: Context) -> Floats:
    """Bytes on the card outside the framework's allocator [n]: communication buffers and runtime."""
    return communication_bytes(candidates, context) + context.machine.runtime_bytes


def _memory(
    classes: StepClasses, template: Template, candidates: Candidates, context: Context, n: int
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Allocator bytes of the fullest stage, the least of any layout, the room on the card, in-flight counts, and the
    fullest stage's bytes when every layer is recomputed.
    """
    static, kept, freed, ends = (np.zeros((n, 3)) for _ in range(4))
    everything = np.zeros(n)
    for step, layers in zip(classes.layers, template.layers, strict=True):
        each = column(step.static.total, n)
        static += layers * each[:, None]
        kept += layers * column(step.cost.activation_bytes, n)[:, None]
        freed += layers * column(step.cost.choices["full"].saved_bytes, n)[:, None]
        everything += step.count * each
    for piece, where in each_piece(classes, candidates):
        static += where * column(piece.static.total, n)[:, None]
        ends += where * column(piece.cost.activation_bytes, n)[:, None]
        everything += column(piece.static.total, n)
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
            for stage_class, place in enumerate(places):
                args = (place[here], candidates.pp[here], candidates.vpp[here], candidates.micro_batches[here])
                in_flight[here, stage_class] = in_flight_closed(kind, *args) / candidates.vpp[here]
    workspace, recomputing = (workspace_bytes(classes, context, n, recomputes_layers=again) for again in (False, True))
    # The last chunk of the model is held by one micro batch at a time; its pieces do not pile up.
    pieces = ends * np.where((np.arange(3) == 2) & ~one[:, None], 1.0, in_flight)
    stage = static + kept * in_flight + pieces + workspace[:, None]
    least_stage = static + (kept - freed) * in_flight + pieces + recomputing[:, None]
    for bytes_ in (stage, least_stage):
        bytes_[candidates.pp <= 2, 1] = 0.0
        bytes_[one, 0] = 0.0
    outside, fragmentation = _beside_allocator(candidates, context), context.machine.fragmentation
    room = allocator_limit_bytes(context.limit_bytes, outside, fragmentation)
    return stage.max(axis=1), everything / candidates.pp + workspace, room, in_flight, least_stage.max(axis=1)


def _repaired(
    classes: StepClasses,
    template: Template,
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
                saved += count * column(choice.saved_bytes, n) * held
                cost += count * column(choice.recompute_s, n) * micro_batches
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


def _bound(classes: StepClasses, candidates: Candidates, edge: Floats) -> Floats:
    """A step time that no layout and no memory choice of the candidate can beat.

    With W seconds of work of one micro batch over all stages, some device works at least W / P a micro batch. Under
    1f1b with M > P micro batches an even split is the best of all splits and takes (M + P - 1) W / P (the average of
    the stages' paths with weights that make it stationary). Under other schedules stage p works for M micro batches
    after the first forward has come down to it and before the last backward goes up, through the first chunks of the
    stages before, which have a layer each: the mean of these paths over the stages takes M W / P and half of that ramp.
    Pairing can hide at most what a pair of whole layers hides.
    """
    n = len(candidates)
    work = np.zeros(n)
    hidden = np.zeros(n)
    total_layers = sum(step.count for step in classes.layers)
    smallest = np.full(n, np.inf)
    for step, most in zip(classes.layers, classes.most_hidden, strict=True):
        each = column(step.cost.forward.total_s + step.cost.backward.total_s, n)
        work += step.count * each
        hidden += step.count * column(most, n)
        smallest = np.minimum(smallest, each)
    heaviest = np.zeros(n)
    for piece in classes.pieces:
        each = column(piece.cost.forward.total_s + piece.cost.backward.total_s, n)
        work += each
        heaviest = np.maximum(heaviest, each)
    pp, m = candidates.pp.astype(np.float64), candidates.micro_batches.astype(np.float64)
    plain = candidates.schedule == SCHEDULES.index("1f1b")
    paired = np.isin(candidates.schedule, PAIRED)
    work_paired = np.where(paired, work - hidden, work)
    # dualpipev has its head on stage 0 too, but in the other chunk.
    chunks = np.where(total_layers >= pp * candidates.vpp, smallest, 0.0) + 2.0 * edge
    first = column(classes.embedding.cost.forward.total_s + classes.embedding.cost.backward.total_s, n)
    ramp = (pp - 1.0) / 2.0 * chunks + (pp - 1.0) / pp * first
    even = np.where(plain & (m > pp), (m + pp - 1.0) / pp * work, m / pp * work_paired + ramp)
    tail = np.asarray(sum(c.count * column(c.tail.total_s, n) for c in classes.layers)) / pp
    return np.asarray(np.maximum(even, m * heaviest) + tail)
