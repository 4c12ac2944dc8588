"""Prediction of one strategy: the schedule's graph simulated with the costs that the sweep and the solver read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.layers.layer_cost import PHASE_PARTS
from autodeploy.costs.layers.unit_costs import scalar_at, tensor_bytes
from autodeploy.costs.stages.build_problem import build_problem, stage_buffers
from autodeploy.costs.stages.inner_problem import (
    ChunkTimes,
    InnerProblem,
    activation_bytes,
    chunk_times,
    fill_chunks,
    placed_layers,
    start_bytes,
    static_bytes,
    tail_s,
    worst_moment,
)
from autodeploy.costs.stages.step_classes import PASSES
from autodeploy.costs.stages.step_parts import TAIL_PARTS, take_hidden
from autodeploy.costs.workload.memory_choices import CHOICES, compete, freed_by
from autodeploy.specs.strategy import ChoiceKey
from cost_models.arrays import product
from cost_models.hbm import first_step_peak_bytes
from cost_models.schedule import Sends, model_parts, simulate

if TYPE_CHECKING:
    from autodeploy.costs.stages.build_problem import StageBuffers
    from autodeploy.costs.stages.inner_problem import FixedPiece, MemoryOption
    from autodeploy.costs.stages.step_classes import Priced, StepClass
    from cost_models.arrays import Floats, Ints


@dataclass(frozen=True)
class Layout:
    """Placement of layers, and their recomputation and swaps.

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
    start_bytes: Floats  # [pp] of the allocator before the first step
    card_bytes: Floats  # [pp]
    start_card_bytes: Floats  # [pp]
    in_flight: Floats  # [pp] micro batches times the share of the stage's layers
    hidden: dict[str, float]
    pacing_stage: int
    holds: tuple[tuple[str, ...], ...]  # embedding, head and prediction modules of each stage
    oom_imbalance: float | None


def estimate_layout(priced: Priced, layout: Layout, *, forward_only: bool = False) -> Estimate:
    """Predict a candidate under a layout: simulate its schedule, account for its parts and its memory.

    The pacing stage is the one with the most work; the breakdown is what its rank does in a step. Its gaps in the
    simulated schedule are the pipeline's bubble, each measured as a gap.

    forward_only : the pass ends with its outputs: nothing is kept for a backward pass, recomputed, swapped, reduced or
        updated. States stay where they are.
    """
    return estimate_placed(Placed.of(priced, layout, forward_only=forward_only), layout)


def estimate_placed(placed: Placed, layout: Layout) -> Estimate:
    """`estimate_layout` of a candidate that is under its layout already."""
    problem, times, pairs = placed.problem, placed.times, placed.problem.fused
    makespan, pacing, breakdown = placed.simulated()
    tail = 0.0 if placed.forward_only else float(tail_s(problem, placed.layers)[0])
    memory, allocator, first_step, start, buffers = placed.memory()
    return Estimate(
        step_time_s=makespan + tail,
        makespan_s=makespan,
        breakdown=breakdown,
        forward_s=times.forward_s[0],
        backward_s=times.backward_s[0],
        memory=memory,
        allocator_bytes=allocator,
        first_step_bytes=first_step,
        start_bytes=start,
        card_bytes=buffers.card_bytes(allocator),
        start_card_bytes=buffers.card_bytes(start),
        in_flight=_mean_in_flight(problem, layout),
        hidden={} if placed.forward_only else placed.hidden_shares(pairs, pacing, breakdown),
        pacing_stage=pacing,
        holds=tuple(
            tuple(dict.fromkeys(piece.cost.name for piece in problem.pieces if piece.stage == stage))
            for stage in range(problem.pp)
        ),
        oom_imbalance=placed.oom_imbalance(buffers.limit_bytes - allocator),
    )


def _without_backward(times: ChunkTimes) -> ChunkTimes:
    """The same chunks where no backward pass follows, so that none is paired and nothing hides."""
    nothing = np.zeros_like(times.hidden_pair_s)
    zero = np.zeros_like(times.backward_s)
    return ChunkTimes(times.forward_s, zero, zero, zero, nothing, nothing, Sends(times.sends.p2p_s))


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


def under_layout(problem: InnerProblem, layout: Layout, priced: Priced) -> tuple[InnerProblem, Ints, Ints]:
    """The problem with what its options save under a layout, its layers [1, pp, vpp, class] and the layers that use
    each option [1, pp, option].
    """
    layers, applied = layout.layers[None], applied_array(problem, layout)
    return without_overlaps(problem, layers, applied, priced), layers, applied


@dataclass(frozen=True)
class Placed:
    """A candidate under a layout: layers [1, pp, vpp, class], applied [1, pp, option], and what chunks take."""

    priced: Priced
    problem: InnerProblem
    layers: Ints
    applied: Ints
    times: ChunkTimes
    forward_only: bool

    @classmethod
    def of(cls, priced: Priced, layout: Layout, *, forward_only: bool = False) -> Placed:
        """Under a layout, whose memory choices do nothing where passes go forward only."""
        if forward_only:
            layout = Layout(layout.layers, {})
        problem = build_problem(priced, choices=layout.chosen, menu=False)
        problem, layers, applied = under_layout(problem, layout, priced)
        times = chunk_times(problem, layers, applied)
        return cls(priced, problem, layers, applied, _without_backward(times) if forward_only else times, forward_only)

    @cached_property
    def pieces(self) -> list[tuple[StepClass, FixedPiece]]:
        """Every place of every piece, with its costs."""
        steps = {step.name: step for step in self.priced.classes.pieces}
        return [(steps[piece.cost.name], piece) for piece in self.problem.pieces]

    def chunk_sums(self, name: str) -> Floats:
        """Sum over the layers and the pieces of every chunk of a number of theirs [pp, vpp]."""
        of, priced = attrgetter(name), self.priced
        total = product(self.layers[0], [priced.at(of(step)) for step in priced.classes.layers])
        for step, piece in self.pieces:
            total[piece.stage, piece.chunk] += priced.at(of(step))
        return total

    def stage_sums(self, name: str) -> Floats:
        """Sum over the layers and the pieces of every stage of a number of theirs [pp]."""
        return np.asarray(self.chunk_sums(name).sum(axis=1))

    def simulated(self) -> tuple[float, int, dict[str, float]]:
        """Makespan of the schedule, the stage that paces it, and seconds of the whole step by part on that stage."""
        times, order = self.times, self.problem.order
        timeline = simulate(order, times.forward_s, times.backward_s, times.hidden_pair_s, times.sends)
        pacing = int(np.argmax(timeline.busy_s[0]))
        parts = self.breakdown(pacing)
        hidden = float(timeline.paired_hidden_s[0, pacing])
        exchange = float((times.hidden_exchange_s[0, pacing] * self.problem.fused[pacing]).sum())
        take_hidden(parts, hidden, min(exchange, hidden))
        parts["pipeline_bubble_s"] = float(timeline.idle_s[0, pacing])
        parts["uneven_stages_s"] = min(self.beyond_mean_s(pacing, timeline.busy_s[0]), parts["compute_s"])
        parts["compute_s"] -= parts["uneven_stages_s"]
        for name, seconds in ({} if self.forward_only else self.tail_parts()).items():
            parts[name] += seconds
        return float(timeline.makespan_s[0]), pacing, parts

    def beyond_mean_s(self, stage: int, busy_s: Floats) -> float:
        """Compute of a stage beyond that of the mean stage, as far as it is busy for longer than that: of a head, of
        prediction modules, of a layer more.

        busy_s : of every stage in a step [pp].
        """
        passes = PASSES[:1] if self.forward_only else PASSES
        compute_s = self.problem.chunk_micro_batches * sum(self.stage_sums(f"cost.{name}.compute_s") for name in passes)
        compute_s = np.broadcast_to(compute_s, busy_s.shape)
        beyond = (float(each[stage] - each.mean()) for each in (compute_s, busy_s))
        return max(0.0, min(beyond))

    def breakdown(self, stage: int) -> dict[str, float]:
        """Seconds of a step by part on the pacing stage, what pairing hides still included."""
        problem, priced = self.problem, self.priced
        micro_batches = problem.chunk_micro_batches
        passes = PASSES[:1] if self.forward_only else PASSES
        parts = dict.fromkeys((*PHASE_PARTS, "exposed_pp_s", "pipeline_bubble_s", "recompute_s", "exposed_swap_s"), 0.0)
        parts |= {"optimizer_s": 0.0, "uneven_stages_s": 0.0}
        counts = [(step, int(self.layers[0, stage, :, n].sum())) for n, step in enumerate(priced.classes.layers)]
        counts += [(step, 1) for step, piece in self.pieces if piece.stage == stage]
        for step, count in counts:
            for part, seconds in step.parts(passes).items():
                parts[part] += micro_batches * count * priced.at(seconds)
        for number, option in enumerate(problem.options):
            part = "recompute_s" if option.kind == "recompute" else "exposed_swap_s"
            times_run = micro_batches * int(self.applied[0, stage, number])
            parts[part] += times_run * (option.extra_backward_s - option.host_s)
            parts["host_bound_s"] += times_run * option.host_s
        parts["exposed_swap_s"] += micro_batches * float(self.times.exposed_swap_s[0, stage].sum())
        parts["exposed_pp_s"] += micro_batches * problem.vpp * len(passes) * problem.blocking_p2p_s
        return parts

    def tail_parts(self) -> dict[str, float]:
        """Parts that follow the pipeline on the stage where they take longest."""
        slowest = int(np.argmax(self.stage_sums("tail.total_s")))
        return {part: float(self.stage_sums(f"tail.{part}")[slowest]) for part in TAIL_PARTS}

    def memory(self) -> tuple[dict[str, Floats], Floats, Floats, Floats, StageBuffers]:
        """Bytes of every stage by kind, the allocator's peak in a step, in a run's first step, and before it.

        A forward pass alone holds a whole layer at a time, as one that is recomputed does.
        """
        problem = self.problem
        recomputes = self.forward_only or any(o.name == "full" for o in problem.options)
        buffers = stage_buffers(self.priced, recomputes_layers=recomputes)
        ends = np.array([float(any(p.stage == stage for p in problem.pieces)) for stage in range(problem.pp)])
        dense, expert = (self.stage_sums(f"cost.{kind}_params") for kind in ("dense", "expert"))
        update = update_copy_bytes(self.priced, dense, expert, ends)
        activations = np.zeros(problem.pp)
        if self.forward_only:
            update = np.zeros_like(update)
        else:
            activations = activation_bytes(problem, self.layers, self.applied)[0]
        kept = activations + buffers.workspace_bytes
        allocator = static_bytes(problem, self.layers)[0] + np.maximum(kept, update)
        start = np.zeros_like(allocator) if self.forward_only else start_bytes(problem, self.layers)[0]
        memory = {
            **{kind: self.stage_sums(f"static.{kind}") for kind in ("weights", "gradients", "optimizer")},
            "activations": activations,
            "workspace": buffers.workspace_bytes + buffers.fragmentation * allocator,
            "communication_buffers": np.full(problem.pp, buffers.communication_bytes),
            "runtime": np.full(problem.pp, buffers.runtime_bytes),
        }
        static, moments = self.stage_sums("static.total"), self.stage_sums("static.adam")
        return memory, allocator, first_step_peak_bytes(static, moments, kept, update), start, buffers

    def oom_imbalance(self, room_bytes: Floats) -> float | None:
        """Routing imbalance at which the fullest stage would run out of memory; None where no imbalance fills it.

        Expert activations grow in proportion to the imbalance, all else stays: `unit` is what a stage's layers have
        together, which a layer's own is above by so much as `over_layers` says. The busiest of `ep` ranks can't have
        more than the tokens of all, which is an imbalance of `ep`. room_bytes : left on every stage [pp].
        """
        problem, layers, at_index = self.problem, self.layers, self.priced.at
        uneven, unit, share = np.zeros((1, problem.pp, problem.vpp)), 1.0, 1.0
        for number, step in enumerate(self.priced.classes.layers):
            activations = at_index(step.cost.activation_bytes)
            balanced = at_index(step.cost.balanced_activation_bytes)
            extra, per_unit = activations - balanced, at_index(step.cost.expert_activation_bytes)
            if extra > 0.0:
                unit = max(unit, 1.0 + extra / per_unit)
                share = extra / (at_index(step.cost.worst_activation_bytes) - balanced)
                kept = np.ones((problem.pp, problem.vpp))
                for position, option in enumerate(problem.options):
                    if option.layer_class == number:
                        count = fill_chunks(self.applied[:, :, position], layers[..., number])[0]
                        freed = option.saved_bytes / max(activations, 1.0)
                        kept -= freed * count / np.maximum(layers[0, :, :, number], 1)
                uneven[0] += layers[0, :, :, number] * per_unit * np.maximum(kept, 0.0)
        growth = worst_moment(problem, uneven)[0]
        if not np.any(growth > 0.0):
            return None
        at_limit = unit + np.where(growth > 0.0, room_bytes / np.maximum(growth, 1.0), np.inf)
        fills = max(0.0, 1.0 + (float(np.min(at_limit)) - 1.0) / share)
        return fills if fills <= int(self.priced.candidates.ep[self.priced.index]) else None

    def hidden_shares(self, pairs: Ints, stage: int, breakdown: dict[str, float]) -> dict[str, float]:
        """Shares of communication that run behind computation, by lane: of experts over all stages, of the others on
        the stage that paces.

        ep_share_steady: of what runs inside fused pairs (of all where the schedule has none); ep_share_step: of the
        whole step, warm-up and cool-down included, so it depends on the number of micro batches; paired_share: of all
        forwards that run in a pair. pairs [pp, f, b] of the schedule. Prediction modules count too: they run in a pair,
        and no schedule overlaps theirs.
        """
        problem, counts = self.problem, pairs.astype(np.float64)
        runs = problem.chunk_micro_batches
        total, forward, backward = (
            self.chunk_sums(f"cost.ep_{what}_s") for what in ("total", "shown_forward", "shown_backward")
        )
        hidden = float((self.times.hidden_exchange_s[0] * counts).sum())
        steady = step = _share(runs * float((forward + backward).sum()) - hidden, runs * float(total.sum()))
        if counts.any():
            forwards, backwards = counts.sum(axis=2), counts.sum(axis=1)
            exposed = float((forward * forwards).sum() + (backward * backwards).sum()) - hidden
            # Both passes exchange as much.
            steady = _share(exposed, float((total * (forwards + backwards)).sum()) / 2.0)
        lanes = {lane: runs * float(self.chunk_sums(f"cost.{lane}_total_s")[stage].sum()) for lane in ("tp", "cp")}
        return {
            "ep_share_steady": steady,
            "ep_share_step": step,
            "paired_share": float(counts.sum()) / (runs * problem.vpp * problem.pp),
            **{f"{lane}_share": _share(breakdown[f"exposed_{lane}_s"], all_s) for lane, all_s in lanes.items()},
        }


def _mean_in_flight(problem: InnerProblem, layout: Layout) -> Floats:
    """Micro batches in flight, weighted by the layers of the chunks that hold them [pp]."""
    layers = layout.layers.sum(axis=-1)
    total = layers.sum(axis=1)
    weighted = worst_moment(problem, layers[None].astype(np.float64))[0] / np.maximum(total, 1)
    chunks = worst_moment(problem, np.full((1, problem.pp, problem.vpp), 1.0 / problem.vpp))[0]
    return np.asarray(np.where(total > 0, weighted, chunks))


def template_layers(
    problem_layers: tuple[int, ...], pp: int, vpp: int, per_chunk: Ints | None = None, kind: str = "interleaved"
) -> Ints:
    """Layers of each class per chunk [pp, vpp, class], in model order, for given or even chunk sizes.

    Even: every part of the model has the same number, and the first ones one more where they don't divide.
    """
    parts = model_parts(kind, pp, vpp)
    base, rest = divmod(sum(problem_layers), len(parts))
    sizes = np.array([base + (part < rest) for part in range(len(parts))], dtype=np.int64)
    if per_chunk is not None:
        sizes = np.array([per_chunk[places[0]] for places in parts], dtype=np.int64)
    return np.asarray(placed_layers(kind, pp, vpp, problem_layers, sizes[None])[0])


def _share(exposed_s: float, total_s: float) -> float:
    return min(1.0, max(0.0, 1.0 - exposed_s / total_s)) if total_s > 0.0 else 0.0


COPIED_UPDATE = "copied_update"
CAST_MOMENTS = "cast_moments"
FP32_BYTES = 4.0


def update_copy_bytes(priced: Priced, dense_params: Floats, expert_params: Floats, ends: Floats) -> Floats:
    """Bytes of a candidate beside its states during Adam's update [pp].

    Adam's operator takes one weight at a time; on Ascend, before the stack of MindSpeed 26.0, it copied that weight in
    FP32: at most the largest one, or a rank's whole share of the parameters where states are sharded. One that casts
    16-bit moments of a group of parameters, dense ones or experts, to FP32 holds both of all of them at once.

    dense_params, expert_params : parameters of each stage's rank [pp]. ends : stages with an embedding or a head [pp].

    References
    ----------
    Ascend/MindSpeed-LLM @2.1.0 tests/pipeline/baseline/llama2_tp1_pp8_patch_gloo_ptd.json: maximum less allocated is
    344 MiB on the inner stages (FP32 of 4096 x 22016) and 500 MiB on the outer ones (32000 x 4096); @2.2.0
    phi35_moe_tp1_pp8_mcore.json: 3200 MiB, all 16 experts of 4096 x 12800. 16 MiB in every baseline of 26.0 and 26.1.
    Operator: MindSpeed core/optimizer/adamw.py, one parameter at a time.
    """
    mechanisms, groups = priced.context.mechanisms, priced.classes.groups
    if not {COPIED_UPDATE, CAST_MOMENTS} & mechanisms:
        return np.zeros_like(dense_params)
    dense_share, expert_share = (
        params / (priced.at(shards) if priced.context.distributed_optimizer else 1.0)
        for params, shards in ((dense_params, groups.dense_shards), (expert_params, groups.expert_shards))
    )
    if CAST_MOMENTS in mechanisms:
        return np.asarray(2.0 * FP32_BYTES * np.maximum(dense_share, expert_share))
    layer, end, expert = _largest_weights(priced)
    dense = np.minimum(np.where(ends > 0.0, max(layer, end), layer), dense_share)
    return np.asarray(FP32_BYTES * np.maximum(dense, np.minimum(expert, expert_share)))


def _largest_weights(priced: Priced) -> tuple[float, float, float]:
    """Parameters of the largest weight on a rank: of a layer without its experts, of the ends, of local experts.

    The joined projections of attention and of a gated MLP are one weight each; grouped experts are one weight.
    """
    model, of_rank = priced.context.model, priced.candidates.axes_at(priced.index)
    tp, ep, etp = (float(of_rank[axis]) for axis in ("tp", "ep", "etp"))
    up = (2.0 if model.is_gated else 1.0) * model.hidden_size
    heads = max(model.num_attention_heads, model.sliding_attention_heads or 0) + 2.0 * model.num_key_value_heads
    dense_width = (model.intermediate_size or 0) if model.num_dense_layers else 0
    widest = max(heads * model.head_dim * model.hidden_size, up * max(dense_width, model.shared_expert_width))
    if model.attention.largest is not None:
        widest = max(model.attention.largest(model), up * model.shared_expert_width)
    local = (model.n_routed_experts or 0) / ep if priced.context.operators.grouped_gemm else 1.0
    expert = local * up * (model.moe_intermediate_size or 0) / etp
    return widest / tp, model.vocab_size * model.hidden_size / tp, expert


def without_overlaps(problem: InnerProblem, layers: Ints, applied: Ints, priced: Priced) -> InnerProblem:
    """The problem with options that save what no larger one of the same layers has freed; itself where none overlap.

    Each tensor is freed once. A search never applies two choices that free the same to one layer; launch scripts do, as
    activation recompute beside zero-memory experts.

    Parameters
    ----------
    layers [1, pp, vpp, class], applied [1, pp, option] : of the fixed layout.
    """
    room = layers[0].sum(axis=1)  # [pp, class]
    taken = applied[0]

    def overlap(one: int, other: int) -> bool:
        a, b = problem.options[one], problem.options[other]
        if a.layer_class != b.layer_class or not compete(a.name, b.name):
            return False
        both = (taken[:, one] > 0) & (taken[:, other] > 0)
        return bool(np.any(both & (taken[:, one] + taken[:, other] > room[:, a.layer_class])))

    numbers = range(len(problem.options))
    doubled = {n for n in numbers for other in numbers if n != other and overlap(n, other)}
    if not doubled:
        return problem
    tensors = tensor_bytes(priced.context, priced.candidate)
    options: list[MemoryOption] = list(problem.options)
    for number, layer_class in enumerate(problem.classes):
        kept = {name: scalar_at(values, 0) for name, values in tensors[layer_class.name].items()}
        gone: set[str] = set()
        of_class = [n for n in doubled if problem.options[n].layer_class == number]
        for n in sorted(of_class, key=lambda n: -problem.options[n].saved_bytes):
            option = problem.options[n]
            names = set(freed_by(CHOICES[option.name], kept))
            saved = sum(kept[name] for name in names - gone)
            gone |= names
            options[n] = option._replace(saved_bytes=saved, swap_bytes=min(option.swap_bytes, saved))
    return replace(problem, options=tuple(options))
