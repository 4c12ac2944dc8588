"""Runs: placements under one schedule with one number of chunks. Everything but what a mode of the optimizer adds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import attrgetter, iadd
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.layers.layer_cost import PHASE_PARTS
from autodeploy.costs.stages.chunk_loops import pair_chunks
from autodeploy.costs.stages.inner_problem import by_class
from autodeploy.costs.stages.stage_memory import LossBytes, workspace_bytes
from autodeploy.costs.stages.step_parts import take_hidden
from autodeploy.costs.sweep.columns import RECOMPUTED_MODULES
from autodeploy.space.tree import distinct
from cost_models.schedule import (
    FIRST,
    LAST,
    MIDDLE,
    Schedule,
    StageClasses,
    closed_form_classes_s,
    fused_pairs,
    in_flight_closed,
    in_step_s,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.sweep.columns import PlacedCosts, UnitColumns
    from cost_models.arrays import Bools, Floats, Ints


# The template layout of the sweep.
@dataclass(frozen=True)
class Template:
    """Layers of every class on the first, a middle and the last stage [t, 3]; of its layers, those of two chunks.

    A batch has few distinct templates, t, and `which` [n] is the one of each row. embedding_chunk, head_chunk [t, 3]:
    layers of all classes in the chunk that is a stage's first and its last.
    """

    layers: list[Floats]
    embedding_chunk: Floats
    head_chunk: Floats
    which: Ints

    def rows(self, values: Floats) -> Floats:
        """Values [t] or [t, 3] of the templates, for every row."""
        return values.T.take(self.which, axis=-1).T

    @cached_property
    def held(self) -> list[list[Floats | None]]:
        """Layers [n] of each class on each class of stages; None where no template has any."""
        return [[self.rows(on) if on.any() else None for on in layers.T] for layers in self.layers]

    def sum_over(self, each: Sequence[Floats]) -> Floats:
        """Sum over classes of layers times a quantity of one layer [n]: [n, 3]."""
        total = np.empty((3, len(self.which)))
        for stage_class, into in enumerate(total):
            started = False
            for counts_of_class, quantity in zip(self.held, each, strict=True):
                count = counts_of_class[stage_class]
                if count is None or (len(quantity) == 1 and not quantity[0]):
                    continue
                if started:
                    into += count * quantity
                else:
                    np.multiply(count, quantity, out=into)
                started = True
            if not started:
                into[:] = 0.0
        return total.T


@dataclass(frozen=True)
class ChunkSeconds:
    """Seconds of one micro batch on each stage class [n, 3]: whole stage, its first chunk, its last chunk."""

    stage: Floats
    first: Floats
    last: Floats


def of_class(values: Floats, stage_class: Ints) -> Floats:
    """Of an array [n, 3] the entry of each row's class of stages [n].

    Looked up, for a choice entry by entry costs several times as much where it is hard to predict.
    """
    n = len(stage_class)
    return values.T.ravel().take(stage_class * n + np.arange(n))


def template_of(
    counts: Sequence[int], first_ends: Floats, last_ends: Floats, pp: Ints | Floats, vpp: int, *, balanced: bool = True
) -> Template:
    """Layers per stage class; where pp is 1 the last stage holds everything.

    counts : layers of each class, in model order.
    first_ends, last_ends : time of the pieces on the first and on the last stage, in layers [n].
    balanced : False where pieces take no room.
    """
    total = float(sum(counts))
    # What tells templates apart: pieces longer than the model take all of its room.
    pieces = (np.minimum(np.round(each), total) for each in (first_ends, last_ends))
    rows, which = distinct([each.astype(np.int64) for each in (pp, *pieces)])
    stage_count, first_ends, last_ends = pp[rows].astype(np.float64), first_ends[rows], last_ends[rows]
    # A piece takes the room of its own chunk, and every chunk of the template keeps a layer.
    room = np.zeros(len(rows))
    if balanced:
        chunks = stage_count * vpp
        least = np.where(total >= chunks, 1.0, 0.0)
        room = np.maximum(np.floor(total / chunks) - least, 0.0) if vpp > 1 else np.full(len(chunks), total)
    first_less, last_less = np.minimum(np.round(first_ends), room), np.minimum(np.round(last_ends), room)
    middle = np.minimum(np.ceil((total + np.minimum(first_less + last_less, total)) / stage_count), total)
    last = _between(total - (stage_count - 1) * middle, np.maximum(middle - last_less, 0.0))
    first = _between(total - last - (stage_count - 2) * middle, middle)
    one = stage_count == 1.0
    if one.any():
        first, middle, last = np.where(one, 0.0, first), np.where(one, total, middle), np.where(one, total, last)
    sizes = np.stack([first, middle, last]).T
    # Model order: leading classes fill the first stages; the middle stage that counts is the one before the last.
    starts = np.stack([np.zeros_like(first), np.maximum(first, total - last - middle), total - last]).T
    layers = [*np.moveaxis(by_class(starts, starts + sizes, counts), -1, 0)]
    if vpp == 1:
        return Template(layers, sizes, sizes, which)
    share = sizes / vpp
    embedding_chunk, head_chunk = share.copy(order="K"), share.copy(order="K")
    embedding_chunk[:, FIRST] = _between(share[:, FIRST] - first_less, sizes[:, FIRST])
    with_less = _between(share[:, MIDDLE] - last_less, sizes[:, LAST])
    head_chunk[:, LAST] = np.where(last_less > 0, with_less, share[:, LAST])
    return Template(layers, embedding_chunk, head_chunk, which)


def _between(values: Floats, most: Floats) -> Floats:
    return np.minimum(np.maximum(values, 0.0), most)


@dataclass(frozen=True)
class Shapes:
    """Sizes of the pipelines of placements [n]: stages, micro batches, `group_size` of both; a send's seconds.

    Whole numbers as floats: formulas mix them with seconds, and would convert them again and again. distinct : stages,
    micro batches and group size of every pipeline that there is; which : the one of each placement.
    """

    pp: Floats
    micro_batches: Floats
    group_size: Floats
    send_s: Floats
    distinct: tuple[Floats, Floats, Floats]
    which: Ints

    def take(self, rows: Ints) -> Shapes:
        """Of some placements."""
        each = self.pp, self.micro_batches, self.group_size, self.send_s
        pp, micro_batches, sizes, send_s = (values.take(rows) for values in each)
        return Shapes(pp, micro_batches, sizes, send_s, self.distinct, self.which.take(rows))


@dataclass(frozen=True)
class Runs:
    """A batch of runs [n].

    makespan_s : of the pipeline; parts: what it is made of. stages : of the first, a middle and the last one [3, n], 0
    where there is none: seconds of synchronising, moving and updating parameters, dense and expert parameters,
    allocator bytes beside their states with nothing and with everything recomputed. workspace_bytes : of any stage.
    floor_s : a time that no layout beats before what follows the pipeline. saved_bytes, recompute_s [modules, n] :
    bytes of the fullest stage that each choice frees, and the seconds it costs.
    """

    makespan_s: Floats
    parts: dict[str, Floats]
    stages: tuple[Floats, ...]
    workspace_bytes: Floats
    floor_s: Floats
    saved_bytes: Floats
    recompute_s: Floats


def runs_of(
    kind: Schedule, vpp: int, shapes: Shapes, costs: PlacedCosts, context: Context, *, parts: bool = True
) -> Runs:
    """Evaluate runs of one schedule with so many chunks; `costs` has an entry for each of them."""
    first_ends, last_ends = costs.model.first_layers, costs.model.last_layers
    if kind.folded:
        first_ends, last_ends = first_ends + last_ends, np.zeros_like(last_ends)
    balanced = "virtual_pipeline_balance" in context.mechanisms
    template = template_of(costs.counts, first_ends, last_ends, shapes.pp, vpp, balanced=balanced)
    one = shapes.pp == 1
    return _Batch(kind, vpp, shapes, costs, template, one if one.any() else None).runs(parts=parts)


@dataclass(frozen=True)
class _Paced:
    """Work of the pacing stage, bubble, and which class of stages paces [n]."""

    work_s: Floats
    bubble_s: Floats
    stage: Ints
    stage_class: Ints


@dataclass(frozen=True)
class _Batch:
    """Runs of one schedule [n] under the template; single : where a pipeline has one stage, None where none has."""

    kind: Schedule
    vpp: int
    shapes: Shapes
    costs: PlacedCosts
    template: Template
    single: Bools | None

    def runs(self, *, parts: bool) -> Runs:
        """Time and memory of the runs."""
        send_s, nothing = self.shapes.send_s, np.zeros_like(self.shapes.send_s)
        blocking, edge = (send_s, nothing) if self.kind.blocking_sends else (nothing, send_s)
        hidden = exchange = np.zeros((len(edge), 3))
        if self.kind.pairs:
            hidden, exchange = self._hidden()
        paced, hidden = self._paced(blocking, edge, hidden)
        parts_s = self._parts(paced, blocking, hidden, exchange) if parts else {}
        return self._with_parameters(paced, parts_s, self._floor_s(send_s))

    def _onto_one(self, values: Floats) -> Floats:
        """A single stage holds the first stage's pieces too: onto the last column, in place."""
        if self.single is not None:
            values[:, LAST] += np.where(self.single, values[:, FIRST], 0.0)
            values[:, FIRST] *= ~self.single
        return values

    def _sum_over(self, of: Callable[[UnitColumns], Floats]) -> Floats:
        """A quantity of layers summed over those of each class of stages [n, 3]."""
        return self.template.sum_over([of(layer) for layer in self.costs.layers])

    @property
    def _pieces_at(self) -> int:
        """The class of stages with head and prediction modules."""
        return FIRST if self.kind.folded else LAST

    def _seconds(self, of: Callable[[UnitColumns], Floats], blocking: Floats) -> ChunkSeconds:
        """Of one micro batch in one pass; blocking : what a stage spends on sending [n]."""
        template, total = self.template, self._sum_over(of)
        first_piece_s, last_pieces_s = of(self.costs.first), of(self.costs.last)
        stage = total + blocking[:, None]
        stage[:, FIRST] += first_piece_s
        stage[:, self._pieces_at] += last_pieces_s
        self._onto_one(stage)
        if self.vpp == 1:
            return ChunkSeconds(stage, stage, stage)
        total /= template.rows(np.maximum(sum(template.layers), 1.0))
        first, last = total * template.rows(template.embedding_chunk), total * template.rows(template.head_chunk)
        first[:, FIRST] += first_piece_s
        last[:, self._pieces_at] += last_pieces_s
        return ChunkSeconds(stage, self._onto_one(first), self._onto_one(last))

    def _paced(self, blocking: Floats, edge: Floats, hidden: Floats) -> tuple[_Paced, Floats]:
        """The pace, and the part of `hidden` [n, 3] in its fused pairs: no more than the shorter pass of a chunk."""
        kind, shapes, vpp = self.kind, self.shapes, np.array(self.vpp)
        forward = self._seconds(lambda unit: unit.forward_s, blocking)
        backward = self._seconds(lambda unit: unit.backward_s, blocking)
        split, covered = np.zeros((len(edge), 3)), edge
        if self.costs.pairs is not None and kind.pairs:
            # Of an even chunk: dW after a split backward, and dW beside a pair's sends.
            split = self.template.sum_over(self.costs.pairs.split_s) / self.vpp
            covered = np.maximum(edge - self.costs.pairs.covering_s, 0.0)
            shortest = np.minimum(np.minimum(forward.first, forward.last), np.minimum(backward.first, backward.last))
            if self.single is not None:
                shortest = np.where(self.single[:, None], np.minimum(forward.stage, backward.stage), shortest)
            hidden = np.minimum(hidden, shortest)
        classes = StageClasses(
            forward.stage, backward.stage, forward.first, backward.first, forward.last, backward.last, hidden, split
        )
        sizes = shapes.pp, vpp, shapes.micro_batches
        closed = closed_form_classes_s(kind.name, classes, *sizes, edge, covered, shapes.group_size)
        bubble = closed.bubble_s
        if self.vpp > 1 or kind.own_order:
            bubble = np.maximum(bubble, in_step_s(kind.name, classes, *sizes, shapes.group_size) - closed.work_s)
        stage = np.asarray(closed.pacing_stage)
        last = stage >= shapes.pp - 1
        first = (stage == 0) & ~last
        return _Paced(closed.work_s, bubble, stage, MIDDLE + last - first.astype(np.int64)), hidden

    def _hidden(self) -> tuple[Floats, Floats]:
        """Seconds that a pair of even chunks hides, and the part of it that is expert communication [n, 3]."""
        pairs = self.costs.pairs
        assert pairs is not None
        layers = np.stack([self.template.rows(layers) for layers in self.template.layers], axis=-1) / self.vpp
        tables = (np.moveaxis(each, 0, -1) for each in vars(pairs.tables).values())
        of_pairs = pair_chunks(np.ascontiguousarray(layers[:, :, None]), *map(np.ascontiguousarray, tables))
        hidden, exchange = (np.asfortranarray(each[:, :, 0, 0]) for each in of_pairs)
        return np.maximum(hidden, 0.0), exchange

    def _parts(self, paced: _Paced, blocking: Floats, hidden: Floats, exchange: Floats) -> dict[str, Floats]:
        """Work of the pacing stage by part; what pairing hides comes off exposed expert communication."""
        template, shapes, costs = self.template, self.shapes, self.costs
        micro_batches, stage_class = shapes.micro_batches, paced.stage_class
        at = stage_class * len(template.layers[0]) + template.which
        with_first, with_last = stage_class == FIRST, stage_class == self._pieces_at
        if self.single is not None:
            with_first, with_last = with_first | self.single, with_last | self.single
        counts = [
            (with_first * micro_batches, costs.first),
            (with_last * micro_batches, costs.last),
            *((n.T.ravel().take(at) * micro_batches, of) for n, of in zip(template.layers, costs.layers, strict=True)),
        ]
        parts = {"exposed_pp_s": 2.0 * micro_batches * blocking, "recompute_s": np.zeros(1)}
        for name in PHASE_PARTS:
            seconds = [count * unit.parts[name] for count, unit in counts if name in unit.parts]
            parts[name] = reduce(iadd, seconds) if seconds else np.zeros(len(at))
        if self.kind.pairs:
            sizes = shapes.pp, np.array(self.vpp), micro_batches, shapes.group_size
            count = fused_pairs(self.kind.name, paced.stage, *sizes)
            all_s, exchange_s = (count * of_class(each, stage_class) for each in (hidden, exchange))
            take_hidden(parts, all_s, np.minimum(all_s, exchange_s))
        return parts | {"pipeline_bubble_s": paced.bubble_s}

    def _with_parameters(self, paced: _Paced, parts: dict[str, Floats], floor_s: Floats) -> Runs:
        """Bytes of stages: parameters, activations and workspace, and those that choices of memory would free."""
        shapes, costs, single, pieces_at = self.shapes, self.costs, self.single, self._pieces_at
        last = costs.folded if self.kind.folded else costs.last
        short = shapes.pp <= 2
        absent = short if short.any() else None

        def held(of: Callable[[UnitColumns], Floats]) -> Floats:
            total = self._sum_over(of)
            total[:, FIRST] += of(costs.first)
            total[:, pieces_at] += of(last)
            return existing(self._onto_one(total))

        def existing(values: Floats) -> Floats:
            if absent is not None:
                values[:, MIDDLE] *= ~absent
            return values

        def of_pieces(first: Floats | float, last: Floats) -> Floats:
            total = np.zeros((len(shapes.pp), 3))
            total[:, FIRST] += first
            total[:, pieces_at] += last
            return self._onto_one(total)

        in_flight = self._in_flight()
        kept = self._onto_one(self._sum_over(lambda unit: unit.activation_bytes))
        freed = self._onto_one(self._sum_over(lambda unit: unit.choices["full"][0]))
        pieces = of_pieces(costs.first.activation_bytes, costs.last.activation_bytes)
        # The last chunk of the model is held by one micro batch at a time; its pieces do not pile up.
        pieces[:, FIRST] *= in_flight[:, FIRST]
        pieces[:, LAST] *= 1.0 if single is None else np.where(single, in_flight[:, LAST], 1.0)
        widest, gathered = costs.model.widest_bytes, costs.model.gathered_bytes
        kept *= in_flight
        freed *= in_flight
        kept += pieces
        loss = LossBytes(of_pieces(0.0, costs.last.workspace_bytes), of_pieces(0.0, costs.last.passing_bytes))
        beside = partial(workspace_bytes, widest[:, None], gathered[:, None], pairs=self.kind.pairs, loss=loss)
        bare, lean = kept + beside(recomputes_layers=False), kept - freed + beside(recomputes_layers=True)
        frozen = held(lambda unit: unit.frozen_bytes)
        for bytes_ in (bare, lean):
            bytes_ += frozen
            existing(bytes_)
            if single is not None:
                bytes_[:, FIRST] *= ~single
        names = ("exposed_dp_s", "migration_s", "update_s", "dense_params", "expert_params")
        of_params = [held(attrgetter(name)) for name in names]
        saved, cost = self._recompute_choices(np.maximum(in_flight[:, FIRST], in_flight[:, LAST]))
        return Runs(
            makespan_s=paced.work_s + paced.bubble_s,
            parts=parts,
            stages=tuple(np.ascontiguousarray(each.T) for each in (*of_params, bare, lean)),
            workspace_bytes=workspace_bytes(widest, gathered, recomputes_layers=False, pairs=self.kind.pairs),
            floor_s=floor_s,
            saved_bytes=saved,
            recompute_s=cost,
        )

    def _in_flight(self) -> Floats:
        """Micro batches that each class of stages holds at its peak [n, 3]."""
        (pp, m, size), vpp = self.shapes.distinct, self.vpp
        places = np.zeros_like(pp), np.minimum(1, pp - 1), pp - 1
        in_flight = (in_flight_closed(self.kind.name, place, pp, np.array(vpp), m, size) for place in places)
        return np.stack([count / vpp for count in in_flight]).take(self.shapes.which, axis=1).T

    def _recompute_choices(self, in_flight: Floats) -> tuple[Floats, Floats]:
        """Bytes that RECOMPUTED_MODULES free where most micro batches are held, and seconds they cost [modules, n]."""
        most = [self.template.rows(layers.max(axis=1)) for layers in self.template.layers]
        saved, cost = np.zeros((2, len(RECOMPUTED_MODULES), len(in_flight)))
        for number, name in enumerate(RECOMPUTED_MODULES):
            for count, layer in zip(most, self.costs.layers, strict=True):
                saved[number] += count * layer.choices[name][0]
                cost[number] += count * layer.choices[name][1]
        return saved * in_flight, cost * self.shapes.micro_batches

    def _floor_s(self, edge: Floats) -> Floats:
        """Seconds of a pipeline that no layout and no memory choice can beat [n].

        With W seconds of work of one micro batch over all stages, some device works at least W / P a micro batch. Under
        1F1B with M > P micro batches an even split is the best of all splits and takes (M + P - 1) W / P (the average
        of the stages' paths with weights that make it stationary). Under other schedules stage p works for M micro
        batches after the first forward has come down to it and before the last backward goes up, through the first
        chunks of the stages before, which have a layer each: the mean of these paths over the stages takes M W / P and
        half of that ramp. Pairing can hide at most what a pair of whole layers hides. An order of its own has its work
        alone.
        """
        pp, m, model = self.shapes.pp, self.shapes.micro_batches, self.costs.model
        paired = model.work_s - model.hidden_s if self.kind.pairs else model.work_s
        # A folded pipeline has its head on stage 0 too, but in the other chunk.
        chunks = np.where(sum(self.costs.counts) >= pp * self.vpp, model.smallest_s, 0.0) + 2.0 * edge
        ramp = (pp - 1.0) * (chunks / 2.0 + model.embedding_s / pp)
        even = m / pp * paired + (0.0 if self.kind.own_order else ramp)
        if self.kind.alternates:
            even = np.where(m > pp, (m + pp - 1.0) / pp * model.work_s, even)
        return np.asarray(np.maximum(even, m * model.heaviest_s))
