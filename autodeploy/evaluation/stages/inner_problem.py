"""The inner problem of one outer candidate: where layers go and what each stage recomputes or swaps.

Its coefficients come from the same formulas as the sweep. The solver decides two integer arrays; the functions here
turn them into chunk times and stage memory, for one layout or for a batch of them:

- `layout[n, stage, chunk, layer_class]`: transformer layers of each class in each chunk (a chunk is one virtual
  stage of one pipeline stage; `cost_models.schedule.model_parts` says which part of the model it runs).
- `applied[n, stage, option]`: layers of the stage that use a memory option. Chunks are filled in order: chunk 0 has
  the most micro batches in flight, so a byte saved there counts most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from autodeploy.evaluation.stages.chunk_loops import add_options, beside_swaps, pair_chunks
from cost_models.arrays import Floats as Floats  # noqa: TC001  others take it from here
from cost_models.arrays import Ints as Ints  # noqa: TC001
from cost_models.schedule import Schedule, Sends, chunk_micro_batches, kinds
from cost_models.swap import exposed_swap_s, transfer_s


@dataclass(frozen=True, slots=True)
class LayerClass:
    """Cost of one transformer layer (or of a fixed piece) for one micro batch on one rank.

    forward_s, backward_s include every exposed cost inside a micro batch (communication, host, imbalance);
    hidden_pair_s is what its forward and its backward hide when each is in a pair, at most (0 unless the schedule
    pairs them); half of it counts for each pass. covering_s: weight gradients beside the sends of a pair; split_s:
    weight gradients that a split backward runs after its output has left. static_bytes: weights, gradients and
    optimizer states; activation_bytes: kept for the backward pass by one micro batch; tail_s: its share of what follows
    the pipeline (gradient reduction that is not overlapped, optimizer, parameter gathering).
    """

    name: str
    forward_s: float
    backward_s: float
    static_bytes: float
    activation_bytes: float
    tail_s: float = 0.0
    hidden_pair_s: float = 0.0
    covering_s: float = 0.0
    split_s: float = 0.0


@dataclass(frozen=True, eq=False)
class LayerPairs:
    """What a forward of class i beside a backward of class j hides [i, j]; see `pair_windows.PairCost`.

    hidden_s: a layer after another one, of that exchange_s expert communication; first_s: how much less the first one.
    """

    hidden_s: Floats
    exchange_s: Floats
    first_s: Floats


@dataclass(frozen=True, slots=True)
class MemoryOption:
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


@dataclass(frozen=True, slots=True)
class FixedPiece:
    """Embedding, head or multi-token prediction: always in this stage and chunk."""

    cost: LayerClass
    stage: int
    chunk: int


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
    pairs_of: LayerPairs | None = None  # None: a layer hides beside its own class only, what its class says

    @property
    def kind(self) -> Schedule:
        """What the schedule is."""
        return kinds.schedule(self.schedule)

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
        """What swaps add to both passes."""
        return self.swap_out_s + self.swap_in_s


def fill_chunks(applied: Ints, layers: Ints) -> Ints:
    """Spread a stage's option counts over its chunks, first chunks first.

    applied [n, pp], layers [n, pp, vpp] of the option's class -> [n, pp, vpp].
    """
    before = np.cumsum(layers, axis=-1) - layers
    return np.clip(applied[..., None] - before, 0, layers)


def _add(problem: InnerProblem, applied: Ints, layout: Ints, amount: list[float], total: Floats) -> None:
    """Add to every chunk [n, pp, vpp] an amount for each layer that uses an option."""
    if not applied.any():
        return
    classes = np.array([option.layer_class for option in problem.options])
    add_options(np.array(applied, order="C"), np.array(layout, order="C"), classes, np.array(amount), total)


def chunk_times(problem: InnerProblem, layout: Ints, applied: Ints) -> ChunkTimes:
    """Forward and backward seconds of every chunk under a layout and its memory options."""
    forward = layout @ np.array([c.forward_s for c in problem.classes]) + problem.blocking_p2p_s
    backward = layout @ np.array([c.backward_s for c in problem.classes]) + problem.blocking_p2p_s
    for piece in problem.pieces:
        forward[:, piece.stage, piece.chunk] += piece.cost.forward_s
        backward[:, piece.stage, piece.chunk] += piece.cost.backward_s
    swapped = np.zeros_like(forward)
    _add(problem, applied, layout, [option.extra_backward_s for option in problem.options], backward)
    _add(problem, applied, layout, [option.swap_bytes for option in problem.options], swapped)
    out = exposed_swap_s(swapped, problem.host_link_bytes_per_s, forward)
    back = exposed_swap_s(swapped, problem.host_link_bytes_per_s, backward)
    hidden = np.zeros((*forward.shape, problem.vpp))
    if not problem.pairs:
        return ChunkTimes(forward + out, backward + back, out, back, hidden, hidden, Sends(problem.p2p_s))
    pairs = layer_pairs(problem)
    tables = (each[..., None] for each in (pairs.hidden_s, pairs.exchange_s, pairs.first_s))
    hidden, exchange = pair_chunks(np.array(layout, order="C"), *tables)
    beside_swaps(hidden, forward, backward, out, back, transfer_s(swapped, problem.host_link_bytes_per_s))
    return ChunkTimes(forward + out, backward + back, out, back, hidden, exchange, _sends(problem, layout))


def layer_pairs(problem: InnerProblem) -> LayerPairs:
    """What pairs of layers hide; without a table a layer hides beside its own class only."""
    if problem.pairs_of is not None:
        return problem.pairs_of
    own = np.diag([layer.hidden_pair_s for layer in problem.classes])
    return LayerPairs(own, own, np.zeros_like(own))


def _same_length(layout: Ints) -> npt.NDArray[np.bool_]:
    total = layout.sum(axis=-1)
    return np.asarray(total[..., :, None] == total[..., None, :])


def _sends(problem: InnerProblem, layout: Ints) -> Sends:
    """Sends of a pair of equally long chunks run beside the dW of the backward's last layer, the first of its chunk."""
    covering = np.zeros(layout.shape[:-1])
    for index in reversed(range(len(problem.classes))):
        covering = np.where(layout[..., index] > 0, problem.classes[index].covering_s, covering)
    covering = np.where(_same_length(layout), covering[..., None, :], 0.0)
    split = layout @ np.array([c.split_s for c in problem.classes])
    for piece in problem.pieces:
        split[:, piece.stage, piece.chunk] += piece.cost.split_s
    return Sends(problem.p2p_s, covering, np.asarray(split))


def stage_bytes(problem: InnerProblem, layout: Ints, applied: Ints) -> Floats:
    """Bytes on the card of every stage [n, pp] at its peak."""
    return problem.fixed_bytes + static_bytes(problem, layout) + activation_bytes(problem, layout, applied)


def static_bytes(problem: InnerProblem, layout: Ints) -> Floats:
    """Weights, gradients and optimizer states [n, pp]."""
    total = (layout @ np.array([c.static_bytes for c in problem.classes])).sum(axis=-1)
    for piece in problem.pieces:
        total[:, piece.stage] += piece.cost.static_bytes
    return np.asarray(total)


def activation_bytes(problem: InnerProblem, layout: Ints, applied: Ints) -> Floats:
    """Activations of all micro batches in flight [n, pp]."""
    chunk = layout @ np.array([c.activation_bytes for c in problem.classes])
    for piece in problem.pieces:
        chunk[:, piece.stage, piece.chunk] += piece.cost.activation_bytes
    _add(problem, applied, layout, [-option.saved_bytes for option in problem.options], chunk)
    return worst_moment(problem, chunk)


def worst_moment(problem: InnerProblem, chunk_bytes: Floats) -> Floats:
    """Peak bytes [n, pp] of what chunks hold per micro batch in flight [n, pp, vpp]."""
    return np.asarray(np.einsum("npc,pkc->npk", chunk_bytes, problem.moments).max(axis=-1))


def host_bytes(problem: InnerProblem, layout: Ints, applied: Ints) -> Floats:
    """Bytes that every stage keeps on the host [n, pp] at its peak: what it swaps, for all micro batches in flight."""
    chunk = np.zeros(layout.shape[:-1])
    _add(problem, applied, layout, [option.swap_bytes for option in problem.options], chunk)
    return worst_moment(problem, chunk)


def tail_s(problem: InnerProblem, layout: Ints) -> Floats:
    """Seconds after the pipeline has drained [n]: the slowest stage's reduction, optimizer and gathering."""
    stage = (layout @ np.array([c.tail_s for c in problem.classes])).sum(axis=-1)
    for piece in problem.pieces:
        stage[:, piece.stage] += piece.cost.tail_s
    return np.asarray(problem.tail_s + stage.max(axis=-1))
