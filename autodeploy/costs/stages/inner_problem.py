"""The inner problem of one outer candidate: where layers go and what each stage recomputes or swaps.

Its coefficients come from the same formulas as the sweep. The solver decides two integer arrays; the functions here
turn them into chunk times and stage memory, for one layout or for a batch of them:

- `layout[n, stage, chunk, layer_class]`: transformer layers of each class in each chunk (a chunk is one virtual
  stage of one pipeline stage; `cost_models.schedule.model_parts` says which part of the model it runs).
- `applied[n, stage, option]`: layers of the stage that use a memory option. Chunks are filled in order: chunk 0 has
  the most micro batches in flight, so a byte saved there counts most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

import numpy as np

from autodeploy.costs.stages.chunk_loops import (
    ChunkCosts,
    add_options,
    beside_swaps,
    covering_sends,
    held_bytes,
    layer_totals,
    pair_chunks,
    pass_times,
    peaks,
    stage_totals,
)
from cost_models.arrays import Floats, Ints, product
from cost_models.compiled import compiled, row_major
from cost_models.schedule import (
    OperationOrder,
    Schedule,
    Sends,
    chunk_micro_batches,
    kinds,
    model_parts,
    operation_order,
    pair_counts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cost_models.schedule.placement import Places


class LayerClass(NamedTuple):
    """Cost of one transformer layer (or of a fixed piece) for one micro batch on one rank.

    forward_s, backward_s include every exposed cost inside a micro batch (communication, host, imbalance). covering_s:
    weight gradients beside the sends of a pair; split_s: weight gradients that a split backward runs after its output
    has left. static_bytes: weights, gradients and optimizer states; activation_bytes: kept for the backward pass by one
    micro batch; tail_s: its share of what follows the pipeline (gradient reduction that is not overlapped, optimizer,
    parameter gathering).
    """

    name: str
    forward_s: float
    backward_s: float
    static_bytes: float
    activation_bytes: float
    tail_s: float = 0.0
    covering_s: float = 0.0
    split_s: float = 0.0


NUMBERS_OF_CLASS: Final = tuple(name for name in LayerClass._fields if name != "name")
"""Names of a class's numbers."""


@dataclass(frozen=True, eq=False)
class LayerPairs:
    """Seconds hidden by a forward of class i beside a backward of class j [i, j]; see `pair_windows.PairCost`.

    hidden_s: a layer after another one, of that exchange_s expert communication; first_s: how much less the first one.
    """

    hidden_s: Floats
    exchange_s: Floats
    first_s: Floats


class MemoryOption(NamedTuple):
    """A choice that frees activation memory of one layer class: recompute it or swap it to the host.

    saved_bytes: freed per layer and micro batch in flight; extra_backward_s: time added to the layer's backward
    pass: the replay, or what a swap takes from device memory; host_s: the part of it that waits for the host;
    swap_bytes: moved out in the forward and in again in the backward pass. Options that share a name in `excludes`
    compete for the same tensors: their counts together can't exceed the layers of the class in a chunk.
    """

    name: str
    kind: Literal["recompute", "swap"]
    layer_class: int
    saved_bytes: float
    extra_backward_s: float = 0.0
    swap_bytes: float = 0.0
    excludes: tuple[str, ...] = ()
    host_s: float = 0.0


class FixedPiece(NamedTuple):
    """Embedding, head or multi-token prediction: always in this stage and chunk."""

    cost: LayerClass
    stage: int
    chunk: int


@dataclass(frozen=True, eq=False)
class StartBytes:
    """Bytes of the allocator before the first step.

    layers [2, classes], pieces [2, pieces] : of a layer and of a piece, once dense parameters have moved into buffers
    and once experts have. tried_out : of functions tried out, on every stage.
    """

    layers: Floats
    pieces: Floats
    tried_out: float = 0.0


@dataclass(frozen=True)
class InnerProblem:
    """Everything the inner search needs to know about one candidate."""

    schedule: str
    pp: int
    vpp: int
    micro_batches: int
    classes: tuple[LayerClass, ...]
    layers: tuple[int, ...]  # how many layers of each class, in model order: all of class 0, then all of class 1, ...
    options: tuple[MemoryOption, ...]
    pieces: tuple[FixedPiece, ...]
    in_flight: (
        Floats  # [pp, vpp] or [pp, moments, vpp] micro batches that a chunk holds; the stage's worst moment counts
    )
    limit_bytes: float
    fixed_bytes: Floats  # [pp] runtime, communication buffers, workspace of each stage
    host_link_bytes_per_s: float
    host_bytes_per_device: float = float("inf")
    p2p_s: float = 0.0  # latency of the edge to the next stage where sends overlap computation
    blocking_p2p_s: float = 0.0  # or: sending blocks the stage, once a forward and once a backward pass
    tail_s: float = 0.0  # what follows the pipeline on every rank whatever the layout
    uniform_options: bool = False  # the target can launch only all-or-nothing options, the same on every stage
    equal_chunks: bool = False  # the target can launch only layer counts that differ by a declared pattern
    min_layers_per_chunk: int = 0
    chunk_starts: tuple[int, ...] = ()  # layers (from 0) with which a chunk may begin; none: with any
    pairs_of: LayerPairs | None = None  # None: nothing hides
    start: StartBytes | None = None  # None: it takes nothing

    @property
    def kind(self) -> Schedule:
        """Record of the schedule."""
        return kinds.schedule(self.schedule)

    @property
    def parts(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Places (stage, chunk) of every part of the model, in its order."""
        return model_parts(self.schedule, self.pp, self.vpp)

    @property
    def order(self) -> OperationOrder:
        """The operations of every stage."""
        return operation_order(self.schedule, self.pp, self.vpp, self.micro_batches)

    @property
    def fused(self) -> Ints:
        """Times that each device fuses a forward of chunk f with a backward of chunk b [pp, f, b]."""
        return pair_counts(self.schedule, self.pp, self.vpp, self.micro_batches)

    @property
    def chunk_micro_batches(self) -> int:
        """Micro batches that one chunk runs."""
        return chunk_micro_batches(self.schedule, self.micro_batches)

    @property
    def moments(self) -> Floats:
        """Micro batches that each chunk holds at the moments at which its stage may hold most [pp, moments, vpp]."""
        counts = self.in_flight if self.in_flight.ndim == 3 else self.in_flight[:, None, :]
        return np.asarray(counts, dtype=np.float64)

    @property
    def pairs(self) -> bool:
        """Whether the schedule runs a forward against a backward."""
        return self.kind.pairs

    @property
    def total_layers(self) -> int:
        """Transformer layers of all classes."""
        return sum(self.layers)

    @cached_property
    def costs(self) -> ChunkCosts:
        """Sums of its chunks."""

        def row(values: Iterable[float]) -> Floats:
            return np.array([list(values)], dtype=np.float64)

        pairs = layer_pairs(self)
        return ChunkCosts(
            layers={name: row(getattr(each, name) for each in self.classes) for name in NUMBERS_OF_CLASS},
            pieces={name: row(getattr(each.cost, name) for each in self.pieces) for name in NUMBERS_OF_CLASS},
            hidden_s=row_major(pairs.hidden_s[..., None]),
            exchange_s=row_major(pairs.exchange_s[..., None]),
            first_s=row_major(pairs.first_s[..., None]),
            extra_backward_s=row(option.extra_backward_s for option in self.options),
            swap_bytes=row(option.swap_bytes for option in self.options),
            host_link_bytes_per_s=np.array([self.host_link_bytes_per_s]),
            p2p_s=np.array([self.p2p_s]),
            blocking_p2p_s=np.array([self.blocking_p2p_s]),
        )

    @cached_property
    def starting(self) -> StartBytes | None:
        """Of the start what may take more than a step; None where a step takes more on any layout."""
        start = self.start
        if start is None:
            return None
        costs, rows = self.costs, []
        for row in range(len(start.layers)):
            of_layers = (start.layers[row] > costs.layers["static_bytes"][0]).any()
            if of_layers or (start.pieces[row] > costs.pieces["static_bytes"][0]).any():
                rows.append(row)
        return replace(start, layers=start.layers[rows], pieces=start.pieces[rows]) if rows or start.tried_out else None

    @cached_property
    def places(self) -> Ints:
        """Stage and chunk of every piece [pieces, 2]."""
        return np.array([(each.stage, each.chunk) for each in self.pieces], dtype=np.int64).reshape(-1, 2)

    @cached_property
    def classes_of_options(self) -> Ints:
        """The class of layers of every option [options]."""
        return np.array([option.layer_class for option in self.options], dtype=np.int64)

    @cached_property
    def saved_bytes(self) -> Floats:
        """Bytes that every option frees of a layer [1, options]."""
        return np.array([[option.saved_bytes for option in self.options]], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """Times of one micro batch in every chunk [n, pp, vpp], and what a fused pair hides [n, pp, vpp, vpp].

    swap_out_s, swap_in_s: what swaps add to the forward and to the backward pass. hidden_exchange_s: the part of
    hidden_pair_s that is expert communication; the rest is the host or its link.
    """

    forward_s: Floats
    backward_s: Floats
    swap_out_s: Floats
    swap_in_s: Floats
    hidden_pair_s: Floats
    hidden_exchange_s: Floats
    sends: Sends

    @property
    def exposed_swap_s(self) -> Floats:
        """Seconds that swaps add to both passes."""
        return self.swap_out_s + self.swap_in_s


def fill_chunks(applied: Ints, layers: Ints) -> Ints:
    """Spread a stage's option counts over its chunks, first chunks first.

    applied [n, pp], layers [n, pp, vpp] of the option's class -> [n, pp, vpp].
    """
    before = np.cumsum(layers, axis=-1) - layers
    return np.clip(applied[..., None] - before, 0, layers)


def _add(problem: InnerProblem, applied: Ints, layout: Ints, amount: Floats, total: Floats) -> None:
    """Add to every chunk [n, pp, vpp] an amount [n or 1, options] for each layer that uses an option."""
    if applied.any():
        add_options(row_major(applied), row_major(layout), problem.classes_of_options, amount, total)


def chunk_totals(
    problem: InnerProblem,
    name: str,
    layout: Ints | Floats,
    each: Floats | float = 0.0,
    costs: ChunkCosts | None = None,
) -> Floats:
    """Sum over the layers and the pieces of every chunk of a number of theirs, and what each chunk has [n, pp, vpp]."""
    costs = costs or problem.costs
    total = layer_totals(row_major(layout), costs.layers[name]) + each
    for number, piece in enumerate(problem.pieces):
        total[:, piece.stage, piece.chunk] += costs.pieces[name][:, number]
    return total


Numbers = TypeVar("Numbers", Ints, Floats)


def over_chunks(each: Numbers) -> Numbers:
    """Sum over the chunks of each stage [n, pp, vpp, ...]: numpy takes five times as long on so short an axis."""
    total = each[:, :, 0].copy()
    for chunk in range(1, each.shape[2]):
        total += each[:, :, chunk]
    return total


def chunk_times(problem: InnerProblem, layout: Ints, applied: Ints, costs: ChunkCosts | None = None) -> ChunkTimes:
    """Forward and backward seconds of every chunk under a layout and its memory options.

    costs : in place of the problem's own, on one machine a layout.
    """
    costs = costs or problem.costs
    forward, backward, out, back, moved = pass_times(
        row_major(layout),
        row_major(applied),
        problem.classes_of_options,
        (costs.layers["forward_s"], costs.layers["backward_s"]),
        (costs.pieces["forward_s"], costs.pieces["backward_s"]),
        problem.places,
        (costs.extra_backward_s, costs.swap_bytes),
        costs.blocking_p2p_s,
        costs.host_link_bytes_per_s,
    )
    p2p_s = np.broadcast_to(costs.p2p_s, (len(layout),))
    if not problem.pairs:
        hidden = np.broadcast_to(np.zeros(1), (*forward.shape, problem.vpp))
        return ChunkTimes(forward + out, backward + back, out, back, hidden, hidden, Sends(p2p_s))
    parts = row_major(np.asarray(layout, dtype=np.float64))  # as the sweep has them: compiled once
    hidden, exchange = pair_chunks(parts, costs.hidden_s, costs.exchange_s, costs.first_s)
    beside_swaps(hidden, forward, backward, out, back, moved)
    covering = covering_sends(row_major(layout), costs.layers["covering_s"])
    sends = Sends(p2p_s, covering, chunk_totals(problem, "split_s", layout, costs=costs))
    return ChunkTimes(forward + out, backward + back, out, back, hidden, exchange, sends)


def passes_s(problem: InnerProblem, layout: Ints) -> Floats:
    """Seconds of the passes of one micro batch through all chunks of every stage without options [n, pp]."""
    layers, pieces = (of["forward_s"] + of["backward_s"] for of in (problem.costs.layers, problem.costs.pieces))
    return stage_totals(row_major(layout), layers, pieces, problem.places)


def layer_pairs(problem: InnerProblem) -> LayerPairs:
    """Seconds that pairs of layers hide; none without a table."""
    none = np.zeros((len(problem.classes),) * 2)
    return problem.pairs_of or LayerPairs(none, none, none)


def stage_bytes(problem: InnerProblem, layout: Ints, applied: Ints) -> Floats:
    """Bytes of the allocator on every stage [n, pp] at its peak: in a step, or before the first."""
    step = step_bytes(problem, layout, applied)
    return step if problem.starting is None else np.maximum(step, start_bytes(problem, layout, problem.starting))


def step_bytes(problem: InnerProblem, layout: Ints, applied: Ints) -> Floats:
    """Bytes of the allocator on every stage [n, pp] at its peak in a step."""
    return problem.fixed_bytes + static_bytes(problem, layout) + activation_bytes(problem, layout, applied)


def start_bytes(problem: InnerProblem, layout: Ints, start: StartBytes | None = None) -> Floats:
    """Bytes of the allocator on every stage [n, pp] before the first step; start : in place of the problem's."""
    start = start or problem.start
    if start is None:
        return np.zeros(layout.shape[:2])
    most = np.full(layout.shape[:2], start.tried_out)
    for row in range(len(start.layers)):
        of_row = slice(row, row + 1)
        built = stage_totals(row_major(layout), start.layers[of_row], start.pieces[of_row], problem.places)
        most = np.maximum(most, built)
    return most


def least_start_bytes(problem: InnerProblem) -> float:
    """Bytes below which no layout brings the start of its fullest stage: those of the mean stage."""
    start = problem.starting
    if start is None:
        return 0.0
    built = product(start.layers, np.asarray(problem.layers) * problem.kind.copies) + start.pieces.sum(axis=1)
    return max(start.tried_out, float(built.max(initial=0.0)) / problem.pp)


def static_bytes(problem: InnerProblem, layout: Ints) -> Floats:
    """Weights, gradients and optimizer states [n, pp]."""
    costs = problem.costs
    return stage_totals(row_major(layout), costs.layers["static_bytes"], costs.pieces["static_bytes"], problem.places)


def activation_bytes(problem: InnerProblem, layout: Ints, applied: Ints, moments: Floats | None = None) -> Floats:
    """Activations of all micro batches in flight [n, pp]; moments : in place of the problem's."""
    moments = problem.moments if moments is None else moments
    costs, options = problem.costs, (row_major(applied), problem.classes_of_options)
    of_layer, of_piece = costs.layers["activation_bytes"], costs.pieces["activation_bytes"]
    return held_bytes(
        row_major(layout), *options, of_layer, of_piece, problem.places, problem.saved_bytes, row_major(moments)
    )


def worst_moment(problem: InnerProblem, chunk_bytes: Floats) -> Floats:
    """Peak bytes [n, pp] of what chunks hold per micro batch in flight [n, pp, vpp]."""
    return peaks(row_major(chunk_bytes), row_major(problem.moments))


def host_bytes(problem: InnerProblem, layout: Ints, applied: Ints) -> Floats:
    """Bytes that every stage keeps on the host [n, pp] at its peak: what it swaps, for all micro batches in flight."""
    chunk = np.zeros(layout.shape[:-1])
    _add(problem, applied, layout, problem.costs.swap_bytes, chunk)
    return worst_moment(problem, chunk)


def tail_s(problem: InnerProblem, layout: Ints, costs: ChunkCosts | None = None) -> Floats:
    """Seconds after the pipeline has drained [n]: the slowest stage's reduction, optimizer and gathering.

    costs : as of `chunk_times`.
    """
    costs = costs or problem.costs
    total = stage_totals(row_major(layout), costs.layers["tail_s"], costs.pieces["tail_s"], problem.places)
    return np.asarray(problem.tail_s + total.max(axis=-1))


def by_class(starts: Numbers, ends: Numbers, layers: Sequence[int]) -> Numbers:
    """Layers of each class [..., classes] between two places in the model: classes follow each other in model order."""
    counts: Numbers = _between(row_major(starts).ravel(), row_major(ends).ravel(), np.cumsum(layers))
    return counts.reshape(*starts.shape, len(layers))


@compiled
def _between(starts: Numbers, ends: Numbers, until: Ints) -> Numbers:
    """The same [n, classes]; until : the end of each class."""
    counts = np.empty((len(starts), len(until)), dtype=starts.dtype)
    for row in range(len(starts)):
        before = 0
        for number in range(len(until)):
            start, end = max(starts[row], before), min(ends[row], until[number])
            counts[row, number] = max(end - start, 0)
            before = until[number]
    return counts


def placed_layers(schedule: str, pp: int, vpp: int, layers: Sequence[int], sizes: Ints) -> Ints:
    """Layers of every part of the model [n, parts] -> of each class in each chunk [n, pp, vpp, classes]."""
    ends = np.cumsum(sizes, axis=1)
    parts = _parts_of_chunks(model_parts(schedule, pp, vpp))
    of_chunks = by_class((ends - sizes).take(parts, axis=1), ends.take(parts, axis=1), layers)
    return of_chunks.reshape(len(sizes), pp, vpp, len(layers))


@lru_cache(maxsize=256)
def _parts_of_chunks(parts: tuple[Places, ...]) -> Ints:
    """The part that each chunk of each stage runs, stage after stage [pp x vpp]."""
    return np.array([part for _, part in sorted((place, part) for part, where in enumerate(parts) for place in where)])
