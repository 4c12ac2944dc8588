"""Prediction of one strategy: the schedule's graph simulated with the costs that the sweep and the solver read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.entries import at
from autodeploy.evaluation.layers.layer_cost import PhaseCost
from autodeploy.evaluation.stages.build_problem import build_problem, chunk_sums, held_pieces
from autodeploy.evaluation.stages.inner_problem import (
    ChunkTimes,
    InnerProblem,
    activation_bytes,
    chunk_times,
    fill_chunks,
    static_bytes,
    tail_s,
    worst_moment,
)
from autodeploy.evaluation.stages.stage_memory import StageBuffers, stage_buffers
from autodeploy.evaluation.stages.step_parts import TAIL_PARTS, take_hidden
from autodeploy.evaluation.steps.hidden_shares import hidden_shares
from autodeploy.evaluation.steps.overlapping_choices import without_overlaps
from autodeploy.evaluation.steps.update_copy import update_copy_bytes
from autodeploy.specs.choice_key import ChoiceKey
from cost_models.hbm import first_step_peak_bytes
from cost_models.schedule import Sends, model_parts, operation_order, pair_counts, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.step_classes import StepClass, StepClasses
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Floats, Ints

PHASE_PARTS = tuple(field.name for field in fields(PhaseCost))


@dataclass(frozen=True)
class Layout:
    """Where layers are and what they recompute or swap.

    layers [pp, vpp, class]; applied: choice -> layers of each stage that use it [pp]. One that names no class counts
    layers of all classes, the first of the stage first.
    """

    layers: Ints
    applied: dict[ChoiceKey, Ints]

    @property
    def chosen(self) -> frozenset[str]:
        """The choices that any layer uses."""
        return frozenset(key.name for key, counts in self.applied.items() if int(np.sum(counts)))


@dataclass(frozen=True)
class Estimate:
    """Everything predicted about one strategy. Bytes and seconds on one rank of each stage."""

    step_time_s: float
    makespan_s: float
    breakdown: dict[str, float]
    forward_s: Floats  # [pp, vpp] one micro batch
    backward_s: Floats
    memory: dict[str, Floats]  # kind -> bytes [pp]
    allocator_bytes: Floats  # [pp]
    first_step_bytes: Floats  # [pp] before Adam's moments exist
    card_bytes: Floats  # [pp]
    in_flight: Floats  # [pp] micro batches times the share of the stage's layers
    hidden: dict[str, float]
    pacing_stage: int
    holds: tuple[tuple[str, ...], ...]  # embedding, head and prediction modules of each stage
    oom_imbalance: float | None


def estimate_layout(
    classes: StepClasses,
    candidates: Candidates,
    context: Context,
    index: int,
    layout: Layout,
    *,
    forward_only: bool = False,
) -> Estimate:
    """Predict candidate `index` under a layout: simulate its schedule, account for its parts and its memory.

    The pacing stage is the one with the most work; the breakdown is what its rank does in a step. Its gaps in the
    simulated schedule are the pipeline's bubble, each measured as a gap.

    forward_only : the pass ends with its outputs: nothing is kept for a backward pass, recomputed, swapped, reduced or
        updated. States stay where they are.
    """
    if forward_only:
        layout = Layout(layout.layers, {})
    problem = build_problem(classes, candidates, context, index, choices=layout.chosen, menu=False)
    applied = applied_array(problem, layout)
    layers = layout.layers[None]
    problem = without_overlaps(problem, layers, applied, candidates, context, index)
    times = chunk_times(problem, layers, applied)
    if forward_only:
        times = _without_backward(times)
    placed = _Placed(classes, candidates, context, index, problem, layers, applied, times, forward_only)
    order = operation_order(problem.schedule, problem.pp, problem.vpp, problem.micro_batches)
    timeline = simulate(order, times.forward_s, times.backward_s, times.hidden_pair_s, times.sends)
    makespan, busy, pairs = float(timeline.makespan_s[0]), timeline.busy_s[0], pair_counts(order)
    pacing = int(np.argmax(busy))
    tail = 0.0 if forward_only else float(tail_s(problem, layers)[0])
    breakdown = placed.breakdown(pacing)
    hidden = float(timeline.paired_hidden_s[0, pacing])
    exchange = float((times.hidden_exchange_s[0, pacing] * pairs[pacing]).sum())
    take_hidden(breakdown, hidden, min(exchange, hidden))
    breakdown["pipeline_bubble_s"] = float(timeline.idle_s[0, pacing])
    for name, seconds in ({} if forward_only else placed.tail_parts()).items():
        breakdown[name] += seconds
    memory, allocator, first_step, buffers = placed.memory()
    hides = (problem, classes, index, layers[0], times, pairs, pacing, breakdown)
    return Estimate(
        step_time_s=makespan + tail,
        makespan_s=makespan,
        breakdown=breakdown,
        forward_s=times.forward_s[0],
        backward_s=times.backward_s[0],
        memory=memory,
        allocator_bytes=allocator,
        first_step_bytes=first_step,
        card_bytes=buffers.card_bytes(allocator),
        in_flight=_mean_in_flight(problem, layout),
        hidden={} if forward_only else hidden_shares(*hides),
        pacing_stage=pacing,
        holds=_holds(problem),
        oom_imbalance=placed.oom_imbalance(buffers.limit_bytes - allocator),
    )


def _without_backward(times: ChunkTimes) -> ChunkTimes:
    """The same chunks where no backward pass follows, so that none is paired and nothing hides."""
    nothing = np.zeros_like(times.hidden_pair_s)
    zero = np.zeros_like(times.backward_s)
    return ChunkTimes(times.forward_s, zero, zero, zero, nothing, nothing, Sends(times.sends.p2p_s))


def _holds(problem: InnerProblem) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(dict.fromkeys(piece.cost.name for piece in problem.pieces if piece.stage == stage))
        for stage in range(problem.pp)
    )


def applied_array(problem: InnerProblem, layout: Layout) -> Ints:
    """The layout's counts as the problem's [1, pp, option] array; a choice holds for all classes, first ones first."""
    applied = np.zeros((1, problem.pp, len(problem.options)), dtype=np.int64)
    left = {key: np.asarray(count, dtype=np.int64).copy() for key, count in layout.applied.items()}
    nothing = np.zeros(problem.pp, dtype=np.int64)
    for number, option in enumerate(problem.options):
        room = layout.layers[..., option.layer_class].sum(axis=1)
        for key in (ChoiceKey(option.name, problem.classes[option.layer_class].name), ChoiceKey(option.name)):
            taken = np.minimum(left.get(key, nothing), room)
            applied[0, :, number] += taken
            room = room - taken
            if key in left:
                left[key] = left[key] - taken
    return applied


@dataclass(frozen=True)
class _Placed:
    """Candidate `index` under a layout: layers [1, pp, vpp, class], applied [1, pp, option], and what chunks take."""

    classes: StepClasses
    candidates: Candidates
    context: Context
    index: int
    problem: InnerProblem
    layers: Ints
    applied: Ints
    times: ChunkTimes
    forward_only: bool

    def breakdown(self, stage: int) -> dict[str, float]:
        """Seconds of a step by part on the pacing stage, what pairing hides still included."""
        problem, index, slow = self.problem, self.index, self.context.slowest_device_factor - 1.0
        micro_batches = problem.chunk_micro_batches
        passes = ("forward",) if self.forward_only else ("forward", "backward")
        parts = dict.fromkeys((*PHASE_PARTS, "exposed_pp_s", "pipeline_bubble_s", "recompute_s", "exposed_swap_s"), 0.0)
        parts["optimizer_s"] = 0.0
        held = [(step, int(self.layers[0, stage, :, n].sum())) for n, step in enumerate(self.classes.layers)]
        held += [(step, 1) for step, piece in held_pieces(problem, self.classes) if piece.stage == stage]
        for step, count in held:
            for phase in (getattr(step.cost, name) for name in passes):
                for part in PHASE_PARTS:
                    parts[part] += micro_batches * count * at(getattr(phase, part), index)
                parts["imbalance_s"] += micro_batches * count * slow * at(phase.compute_s, index)
        for number, option in enumerate(problem.options):
            part = "recompute_s" if option.kind == "recompute" else "exposed_swap_s"
            times_run = micro_batches * int(self.applied[0, stage, number])
            parts[part] += times_run * (option.extra_backward_s - option.host_s)
            parts["host_bound_s"] += times_run * option.host_s
        parts["exposed_swap_s"] += micro_batches * float(self.times.exposed_swap_s[0, stage].sum())
        parts["exposed_pp_s"] += micro_batches * problem.vpp * len(passes) * problem.blocking_p2p_s
        return parts

    def stage_sums(self, of: Callable[[StepClass], object]) -> Floats:
        """Sum of what layers and pieces have over every stage [pp]."""
        return np.asarray(chunk_sums(self.problem, self.classes, self.index, self.layers[0], of).sum(axis=1))

    def tail_parts(self) -> dict[str, float]:
        """What follows the pipeline on the stage where it takes longest."""
        slowest = int(np.argmax(self.stage_sums(attrgetter("tail.total_s"))))
        each = {part: self.stage_sums(attrgetter(f"tail.{part}")) for part in TAIL_PARTS}
        return {part: float(seconds[slowest]) for part, seconds in each.items()}

    def memory(self) -> tuple[dict[str, Floats], Floats, Floats, StageBuffers]:
        """Bytes of every stage by kind, the allocator's peak, and its peak in a run's first step.

        A forward pass alone holds a whole layer at a time, as one that is recomputed does.
        """
        problem, given = self.problem, (self.classes, self.candidates, self.context, self.index)
        recomputes = self.forward_only or any(o.name == "full" for o in problem.options)
        buffers = stage_buffers(*given, recomputes_layers=recomputes)

        def static(part: str) -> Floats:
            return self.stage_sums(attrgetter(f"static.{part}"))

        ends = np.array([float(any(p.stage == stage for p in problem.pieces)) for stage in range(problem.pp)])
        dense, expert = (self.stage_sums(attrgetter(f"cost.{kind}_params")) for kind in ("dense", "expert"))
        update = update_copy_bytes(*given, dense, expert, ends)
        activations = np.zeros(problem.pp)
        if self.forward_only:
            update = np.zeros_like(update)
        else:
            activations = activation_bytes(problem, self.layers, self.applied)[0]
        kept = activations + buffers.workspace_bytes
        allocator = static_bytes(problem, self.layers)[0] + np.maximum(kept, update)
        memory = {
            "weights": static("weights"),
            "gradients": static("gradients"),
            "optimizer": static("optimizer"),
            "activations": activations,
            "workspace": buffers.workspace_bytes + buffers.fragmentation * allocator,
            "communication_buffers": np.full(problem.pp, buffers.communication_bytes),
            "runtime": np.full(problem.pp, buffers.runtime_bytes),
        }
        return memory, allocator, first_step_peak_bytes(static("total"), static("adam"), kept, update), buffers

    def oom_imbalance(self, room_bytes: Floats) -> float | None:
        """Routing imbalance at which the fullest stage would run out of memory; None where no imbalance fills it.

        Expert activations grow in proportion to the imbalance, all else stays: `held` is what a stage's layers have
        together, which a layer's own is above by so much as `over_layers` says. The busiest of `ep` ranks can't have
        more than the tokens of all, which is an imbalance of `ep`. room_bytes : left on every stage [pp].
        """
        problem, classes, index, layers = self.problem, self.classes, self.index, self.layers
        uneven, held, share = np.zeros((1, problem.pp, problem.vpp)), 1.0, 1.0
        for number, step in enumerate(classes.layers):
            balanced = at(step.cost.balanced_activation_bytes, index)
            extra = at(step.cost.activation_bytes, index) - balanced
            per_unit = at(step.cost.expert_activation_bytes, index)
            if extra > 0.0:
                held = max(held, 1.0 + extra / per_unit)
                share = extra / (at(step.cost.worst_activation_bytes, index) - balanced)
                kept = np.ones((problem.pp, problem.vpp))
                for position, option in enumerate(problem.options):
                    if option.layer_class == number:
                        count = fill_chunks(self.applied[:, :, position], layers[..., number])[0]
                        freed = option.saved_bytes / max(at(step.cost.activation_bytes, index), 1.0)
                        kept -= freed * count / np.maximum(layers[0, :, :, number], 1)
                uneven[0] += layers[0, :, :, number] * per_unit * np.maximum(kept, 0.0)
        growth = worst_moment(problem, uneven)[0]
        if not np.any(growth > 0.0):
            return None
        at_limit = held + np.where(growth > 0.0, room_bytes / np.maximum(growth, 1.0), np.inf)
        fills = max(0.0, 1.0 + (float(np.min(at_limit)) - 1.0) / share)
        return fills if fills <= int(self.candidates.ep[index]) else None


def _mean_in_flight(problem: InnerProblem, layout: Layout) -> Floats:
    """Micro batches in flight, weighted by the layers of the chunks that hold them [pp]."""
    layers = layout.layers.sum(axis=-1)
    total = layers.sum(axis=1)
    weighted = worst_moment(problem, layers[None].astype(np.float64))[0] / np.maximum(total, 1)
    chunks = worst_moment(problem, np.full((1, problem.pp, problem.vpp), 1.0 / problem.vpp))[0]
    return np.asarray(np.where(total > 0, weighted, chunks))


def template_layers(
    problem_layers: tuple[int, ...],
    pp: int,
    vpp: int,
    per_chunk: Ints | None = None,
    kind: str = "interleaved",
) -> Ints:
    """Layers of each class per chunk [pp, vpp, class], in model order, for given or even chunk sizes.

    Even: every part of the model has the same number, and the first ones one more where they don't divide.
    """
    total, parts = sum(problem_layers), model_parts(kind, pp, vpp)
    if per_chunk is None:
        base, rest = divmod(total, len(parts))
        order = np.full(len(parts), base, dtype=np.int64)
        order[:rest] += 1
    else:
        order = np.array([per_chunk[places[0]] for places in parts], dtype=np.int64)
    ends = np.cumsum(order)
    bounds = np.cumsum((0, *problem_layers))
    layers = np.zeros((pp, vpp, len(problem_layers)), dtype=np.int64)
    for number in range(len(problem_layers)):
        low, high = bounds[number], bounds[number + 1]
        filled = np.clip(np.minimum(ends, high) - np.maximum(ends - order, low), 0, None)
        for part, places in enumerate(parts):
            for place in places:
                layers[(*place, number)] = filled[part]
    return layers
