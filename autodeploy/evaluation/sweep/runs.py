"""Runs: placements under one schedule with one number of chunks. Everything but what a mode of the optimizer adds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layers.layer_cost import PHASE_PARTS
from autodeploy.evaluation.stages.inner_problem import pair_chunks
from autodeploy.evaluation.stages.stage_memory import LossBytes, workspace_bytes
from autodeploy.evaluation.stages.step_parts import take_hidden
from autodeploy.evaluation.sweep.columns import FIRST_PIECE, LAST_PIECES, REPAIRS, Columns
from autodeploy.evaluation.sweep.template import ChunkSeconds, Template, of_class, template_of
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
    schedules,
)

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from cost_models.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class Way:
    """How the runs of a batch are scheduled."""

    schedule: int
    vpp: int

    @property
    def how(self) -> Schedule:
        """The schedule of this place in the registry."""
        return schedules()[self.schedule]

    @property
    def kind(self) -> str:
        """The schedule's name."""
        return self.how.name

    @property
    def paired(self) -> bool:
        """Whether a forward runs against a backward."""
        return self.how.pairs

    @property
    def folded(self) -> bool:
        """Whether the model ends on the first stage."""
        return self.how.folded


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
    """A batch of runs [n]; arrays [n, 3] are of the first, a middle and the last stage, 0 where there is none.

    makespan_s : of the pipeline; parts: what it is made of. tail_s, moving_s [n, 3] : synchronising and moving
    parameters. dense_params, expert_params [n, 3]. bare_bytes, lean_bytes [n, 3] : allocator bytes beside the states of
    parameters, with nothing and with everything recomputed. workspace_bytes : of any stage. floor_s : a time that no
    layout beats before what follows the pipeline. repairs : of each choice, the bytes of the fullest stage that it
    frees and the seconds it costs.
    """

    makespan_s: Floats
    parts: dict[str, Floats]
    tail_s: Floats
    moving_s: Floats | None
    dense_params: Floats
    expert_params: Floats
    bare_bytes: Floats
    lean_bytes: Floats
    workspace_bytes: Floats
    floor_s: Floats
    repairs: dict[str, tuple[Floats, Floats]]


def runs_of(
    way: Way, shapes: Shapes, costs: Columns, pairs: Columns, counts: tuple[int, ...], context: Context
) -> Runs:
    """Evaluate runs of one way; `costs` and, where it pairs passes, `pairs` have an entry for each of them."""
    first_ends, last_ends = costs["layers", FIRST_PIECE], costs["layers", LAST_PIECES]
    if way.folded:
        first_ends, last_ends = first_ends + last_ends, np.zeros_like(last_ends)
    balanced = "virtual_pipeline_balance" in context.mechanisms
    template = template_of(counts, first_ends, last_ends, shapes.pp, way.vpp, balanced=balanced)
    one = shapes.pp == 1
    return _Batch(way, shapes, costs, pairs, template, one if one.any() else None).runs(sum(counts))


@dataclass(frozen=True)
class _Paced:
    """Work of the pacing stage, bubble, which class of stages paces, and what its fused pairs hide [n]."""

    work_s: Floats
    bubble_s: Floats
    first: Bools
    last: Bools
    stage_class: Ints
    hidden_s: Floats | None = None
    hidden_exchange_s: Floats | None = None


@dataclass(frozen=True)
class _Batch:
    """Runs of one way [n] under the template; single : where a pipeline has one stage, None where none has."""

    way: Way
    shapes: Shapes
    costs: Columns
    pairs: Columns
    template: Template
    single: Bools | None

    def runs(self, total_layers: int) -> Runs:
        """What the runs take and hold."""
        send_s, nothing = self.shapes.send_s, np.zeros_like(self.shapes.send_s)
        blocking, edge = (send_s, nothing) if self.way.how.blocking_sends else (nothing, send_s)
        paced = self._paced(blocking, edge)
        return self._with_parameters(paced, self._parts(paced, blocking), self._floor_s(send_s, total_layers))

    def _onto_one(self, values: Floats) -> Floats:
        """A single stage holds the first stage's pieces too: onto the last column, in place."""
        if self.single is not None:
            values[:, LAST] += np.where(self.single, values[:, FIRST], 0.0)
            values[:, FIRST] *= ~self.single
        return values

    def _sum_over(self, name: str, columns: Columns) -> Floats:
        """A quantity of layers summed over those of each class of stages [n, 3]."""
        return self.template.sum_over([columns[name, number] for number in range(len(self.template.layers))])

    @property
    def _pieces_at(self) -> int:
        """The class of stages with head and prediction modules."""
        return FIRST if self.way.folded else LAST

    def _seconds(self, name: str, blocking: Floats) -> ChunkSeconds:
        """Of one micro batch in one pass; blocking : what a stage spends on sending [n]."""
        template, held = self.template, self._sum_over(name, self.costs)
        first_piece_s, last_pieces_s = self.costs[name, FIRST_PIECE], self.costs[name, LAST_PIECES]
        stage = held + blocking[:, None]
        stage[:, FIRST] += first_piece_s
        stage[:, self._pieces_at] += last_pieces_s
        self._onto_one(stage)
        if self.way.vpp == 1:
            return ChunkSeconds(stage, stage, stage)
        held /= template.rows(np.maximum(sum(template.layers), 1.0))
        first, last = held * template.rows(template.embedding_chunk), held * template.rows(template.head_chunk)
        first[:, FIRST] += first_piece_s
        last[:, self._pieces_at] += last_pieces_s
        return ChunkSeconds(stage, self._onto_one(first), self._onto_one(last))

    def _paced(self, blocking: Floats, edge: Floats) -> _Paced:
        way, shapes, vpp = self.way, self.shapes, np.array(self.way.vpp)
        forward, backward = (self._seconds(name, blocking) for name in ("forward_s", "backward_s"))
        hidden = exchange = split = np.zeros((len(edge), 3))
        covered = edge
        if way.paired:
            hidden, exchange = self._hidden()
            # Of an even chunk: dW after a split backward, and dW beside a pair's sends.
            split = self._sum_over("split_s", self.pairs) / way.vpp
            covering = [self.pairs["covering_s", number] for number in range(len(self.template.layers))]
            covered = np.maximum(edge - np.max(covering, axis=0), 0.0)
            shortest = np.minimum(np.minimum(forward.first, forward.last), np.minimum(backward.first, backward.last))
            if self.single is not None:
                shortest = np.where(self.single[:, None], np.minimum(forward.stage, backward.stage), shortest)
            hidden = np.minimum(hidden, shortest)
        classes = StageClasses(
            forward.stage, backward.stage, forward.first, backward.first, forward.last, backward.last, hidden, split
        )
        sizes = shapes.pp, vpp, shapes.micro_batches
        closed = closed_form_classes_s(way.kind, classes, *sizes, edge, covered, shapes.group_size)
        bubble = closed.bubble_s
        if way.vpp > 1 or way.how.own_order:
            bubble = np.maximum(bubble, in_step_s(way.kind, classes, *sizes, shapes.group_size) - closed.work_s)
        pace = np.asarray(closed.pacing_stage)
        last = pace >= shapes.pp - 1
        first = (pace == 0) & ~last
        paced = _Paced(closed.work_s, bubble, first, last, MIDDLE + last - first.astype(np.int64))
        if not way.paired:
            return paced
        count = fused_pairs(way.kind, pace, *sizes, shapes.group_size)
        all_s, exchange_s = (count * of_class(each, paced.stage_class) for each in (hidden, exchange))
        return replace(paced, hidden_s=all_s, hidden_exchange_s=np.minimum(all_s, exchange_s))

    def _hidden(self) -> tuple[Floats, Floats]:
        """What a pair of even chunks hides, and the part of it that is expert communication [n, 3]."""
        layers = np.stack([self.template.rows(layers) for layers in self.template.layers], axis=-1) / self.way.vpp
        classes = range(layers.shape[-1])
        tables = (
            np.array([[self.pairs[f"{name}_{i}", j] for j in classes] for i in classes])
            for name in ("hidden_s", "hidden_exchange_s", "first_s")
        )
        found = pair_chunks(np.ascontiguousarray(layers[:, :, None]), *tables)
        hidden, exchange = (np.asfortranarray(each[:, :, 0, 0]) for each in found)
        return np.maximum(hidden, 0.0), exchange

    def _parts(self, paced: _Paced, blocking: Floats) -> dict[str, Floats]:
        """Work of the pacing stage by part; what pairing hides comes off exposed expert communication."""
        template, micro_batches = self.template, self.shapes.micro_batches
        at = paced.stage_class * len(template.layers[0])
        at += template.which
        counts = [layers.T.ravel().take(at) * micro_batches for layers in template.layers]
        with_first, with_last = paced.first, paced.first if self.way.folded else paced.last
        if self.single is not None:
            with_first, with_last = with_first | self.single, with_last | self.single
        first, last = with_first * micro_batches, with_last * micro_batches
        parts = {}
        held: dict[int | str, Floats] = {FIRST_PIECE: first, LAST_PIECES: last, **dict(enumerate(counts))}
        for name in PHASE_PARTS:
            total: Floats | None = None
            for holder, count in held.items():
                if (name, holder) in self.costs:
                    seconds = count * self.costs[name, holder]
                    total = seconds if total is None else np.add(total, seconds, out=total)
            parts[name] = np.zeros(len(first)) if total is None else total
        parts["exposed_pp_s"] = 2.0 * micro_batches * blocking
        parts["recompute_s"] = np.zeros(1)
        if paced.hidden_s is not None and paced.hidden_exchange_s is not None:
            take_hidden(parts, paced.hidden_s, paced.hidden_exchange_s)
        parts["pipeline_bubble_s"] = paced.bubble_s
        return parts

    def _with_parameters(self, paced: _Paced, parts: dict[str, Floats], floor_s: Floats) -> Runs:
        """What stages hold: parameters, activations and workspace, and what choices of memory would free."""
        shapes, costs, single = self.shapes, self.costs, self.single
        pieces_at, suffix = self._pieces_at, "_folded" if self.way.folded else ""
        short = shapes.pp <= 2
        absent = short if short.any() else None

        def held(name: str, folded: str = "") -> Floats:
            total = self._sum_over(name, costs)
            total[:, FIRST] += costs[name, FIRST_PIECE]
            total[:, pieces_at] += costs[f"{name}{folded}", LAST_PIECES]
            return existing(self._onto_one(total))

        def existing(values: Floats) -> Floats:
            if absent is not None:
                values[:, MIDDLE] *= ~absent
            return values

        def of_loss(name: str) -> Floats:
            total = np.zeros((len(shapes.pp), 3))
            total[:, pieces_at] = costs[name, LAST_PIECES]
            return self._onto_one(total)

        in_flight = self._in_flight()
        kept, freed = (self._onto_one(self._sum_over(name, costs)) for name in ("activation_bytes", "full_saved_bytes"))
        pieces = np.zeros_like(kept)
        pieces[:, FIRST] += costs["activation_bytes", FIRST_PIECE]
        pieces[:, pieces_at] += costs["activation_bytes", LAST_PIECES]
        self._onto_one(pieces)
        # The last chunk of the model is held by one micro batch at a time; its pieces do not pile up.
        pieces[:, FIRST] *= in_flight[:, FIRST]
        pieces[:, LAST] *= 1.0 if single is None else np.where(single, in_flight[:, LAST], 1.0)
        widest, gathered = costs["widest_bytes", "all"], costs["gathered_bytes", "all"]
        kept *= in_flight
        freed *= in_flight
        kept += pieces
        loss = LossBytes(*(of_loss(f"{name}_bytes") for name in ("workspace", "passing")))
        beside = partial(workspace_bytes, widest[:, None], gathered[:, None], pairs=self.way.paired, loss=loss)
        bare, lean = kept + beside(recomputes_layers=False), kept - freed + beside(recomputes_layers=True)
        frozen = held("frozen_bytes", suffix)
        for bytes_ in (bare, lean):
            bytes_ += frozen
            existing(bytes_)
            if single is not None:
                bytes_[:, FIRST] *= ~single
        return Runs(
            makespan_s=paced.work_s + paced.bubble_s,
            parts=parts,
            tail_s=held("tail_dp_s", suffix),
            moving_s=held("migration_s", suffix) if ("migration_s", 0) in costs else None,
            dense_params=held("dense_params", suffix),
            expert_params=held("expert_params"),
            bare_bytes=bare,
            lean_bytes=lean,
            workspace_bytes=workspace_bytes(widest, gathered, recomputes_layers=False, pairs=self.way.paired),
            floor_s=floor_s,
            repairs=self._repairs(np.maximum(in_flight[:, FIRST], in_flight[:, LAST])),
        )

    def _in_flight(self) -> Floats:
        """Micro batches that each class of stages holds at its peak [n, 3]."""
        (pp, m, size), vpp = self.shapes.distinct, self.way.vpp
        places = np.zeros_like(pp), np.minimum(1, pp - 1), pp - 1
        held = (in_flight_closed(self.way.kind, place, pp, np.array(vpp), m, size) for place in places)
        return np.stack([count / vpp for count in held]).take(self.shapes.which, axis=1).T

    def _repairs(self, held: Floats) -> dict[str, tuple[Floats, Floats]]:
        """Bytes that each choice of memory frees where most micro batches are held, and seconds it costs [n]."""
        most = [self.template.rows(layers.max(axis=1)) for layers in self.template.layers]
        found = {}
        for name in REPAIRS:
            saved, cost = (
                np.asarray(sum(count * self.costs[f"{name}_{what}", n] for n, count in enumerate(most)))
                for what in ("saved_bytes", "recompute_s")
            )
            found[name] = saved * held, np.asarray(cost * self.shapes.micro_batches)
        return found

    def _floor_s(self, edge: Floats, total_layers: int) -> Floats:
        """Seconds of a pipeline that no layout and no memory choice can beat [n].

        With W seconds of work of one micro batch over all stages, some device works at least W / P a micro batch. Under
        1F1B with M > P micro batches an even split is the best of all splits and takes (M + P - 1) W / P (the average
        of the stages' paths with weights that make it stationary). Under other schedules stage p works for M micro
        batches after the first forward has come down to it and before the last backward goes up, through the first
        chunks of the stages before, which have a layer each: the mean of these paths over the stages takes M W / P and
        half of that ramp. Pairing can hide at most what a pair of whole layers hides. An order of its own has its work
        alone.
        """
        pp, m, costs = self.shapes.pp, self.shapes.micro_batches, self.costs
        work = costs["work_s", "all"]
        paired = work - self.pairs["hidden_s", "all"] if self.way.paired else work
        # A folded pipeline has its head on stage 0 too, but in the other chunk.
        chunks = np.where(total_layers >= pp * self.way.vpp, costs["smallest_s", "all"], 0.0) + 2.0 * edge
        ramp = (pp - 1.0) * (chunks / 2.0 + costs["alone_s", FIRST_PIECE] / pp)
        even = m / pp * paired + (0.0 if self.way.how.own_order else ramp)
        if self.way.how.alternates:
            even = np.where(m > pp, (m + pp - 1.0) / pp * work, even)
        return np.asarray(np.maximum(even, m * costs["heaviest_s", "all"]))
