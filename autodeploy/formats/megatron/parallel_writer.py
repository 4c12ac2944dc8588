"""Degrees, schedule, placement and dispatch of a plan in launch flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.formats.megatron.arguments import LaunchArguments, ShellVariable
from autodeploy.formats.megatron.attention import refuse_split_groups, shares_keys
from autodeploy.formats.megatron.compressed import CP_ALGORITHM
from autodeploy.formats.megatron.layers import (
    Placement,
    dualpipev_order,
    layout_string,
    moves_dense_layers,
    padded_layer,
)
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.strategy import ChoiceKey
from autodeploy.stack.expression import evaluate
from autodeploy.stack.padding import noop_padding, pairs_take_padding
from autodeploy.stack.schedules import schedule, variant_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

BLOCK = "MODEL_PARALLEL_ARGS"
CHUNK_BY_CHUNK = frozenset({"norm", "activation"})  # recomputed where MindSpeed looks up the layers of a chunk
CP_ALGORITHMS = {"ring": "megatron_cp_algo", "ulysses": "ulysses_cp_algo", "hybrid": "hybrid_cp_algo"}
CP_COMM_TYPES = {"ring": "p2p", "ulysses": "a2a", "hybrid": "a2a+p2p"}


def expert_parallel_flag(strategy: Strategy) -> int:
    """The framework's expert-parallel size: under tp-extend-ep it leaves the tensor-parallel ranks out."""
    return max(1, strategy.ep // strategy.tp) if extends_ep(strategy) else strategy.ep


def extends_ep(strategy: Strategy) -> bool:
    """Whether the tensor-parallel ranks hold different experts by MindSpeed's tp-extend-ep.

    Only the sequence dispatchers need it; under `alltoall` an expert-tensor-parallel size of 1 says the same.
    """
    spread = "tp_extend_ep" in strategy.features or strategy.etp == 1
    return strategy.tp > 1 and spread and strategy.moe_dispatcher in {"alltoall_seq", "hierarchical"}


def expert_tensor_parallel(strategy: Strategy) -> int:
    """Tensor parallelism inside an expert; where a plan names none, the frameworks' default: that of the layers."""
    if strategy.etp is not None:
        return strategy.etp
    return 1 if "tp_extend_ep" in strategy.features else strategy.tp


def add_parallel(arguments: LaunchArguments, spec: Spec, plan: Plan, placed: Placement) -> int:
    """MODEL_PARALLEL_ARGS; returns the number of layers to launch with, padding counted."""
    strategy = plan.strategy
    add = arguments.add
    add(BLOCK, "--tensor-model-parallel-size", ShellVariable("TP"))
    add(BLOCK, "--pipeline-model-parallel-size", ShellVariable("PP"))
    add(BLOCK, "--context-parallel-size", ShellVariable("CP"))
    if strategy.cp > 1:
        _add_context_parallel(arguments, strategy, gathered=spec.model.compressed_attention is not None)
    if spec.model.is_moe:
        add(BLOCK, "--expert-model-parallel-size", ShellVariable("EP"))
        if not (arguments.release.has("mindspeed") and extends_ep(strategy)):
            _add_expert_tensor_parallel(arguments, strategy)
    if strategy.tp > 1 and strategy.sequence_parallel is not False:
        add(BLOCK, "--sequence-parallel")
    add_schedule(arguments, strategy, plan.micro_batches)
    return _add_placement(arguments, spec, plan, placed)


def _add_expert_tensor_parallel(arguments: LaunchArguments, strategy: Strategy) -> None:
    """The degree inside an expert; a release without the flag has that of the layers."""
    degree = expert_tensor_parallel(strategy)
    if arguments.knows("--expert-tensor-parallel-size") or degree != strategy.tp:
        arguments.add(BLOCK, "--expert-tensor-parallel-size", degree)


def _add_context_parallel(arguments: LaunchArguments, strategy: Strategy, *, gathered: bool) -> None:
    """Gathered: keys that all ranks need whole, whatever ring they pass in."""
    algorithm = strategy.cp_algo or "ring"
    if gathered and arguments.knows("--context-parallel-algo", CP_ALGORITHM):
        arguments.add(BLOCK, "--context-parallel-algo", CP_ALGORITHM)
        return
    if not arguments.knows("--context-parallel-algo"):
        arguments.add(BLOCK, "--cp-comm-type", CP_COMM_TYPES[algorithm])
        if algorithm == "hybrid" and strategy.ulysses_degree is not None:
            ring = strategy.cp // strategy.ulysses_degree
            arguments.add(BLOCK, "--hierarchical-context-parallel-sizes", strategy.ulysses_degree, ring)
        return
    arguments.add(BLOCK, "--context-parallel-algo", CP_ALGORITHMS[algorithm])
    if algorithm == "hybrid" and strategy.ulysses_degree is not None:
        arguments.add(BLOCK, "--ulysses-degree-in-cp", strategy.ulysses_degree)
    if algorithm != "ulysses":
        arguments.add(BLOCK, "--use-cp-send-recv-overlap")


def add_schedule(arguments: LaunchArguments, strategy: Strategy, micro_batches: int) -> None:
    """The schedule, or a refusal: another schedule would be another plan."""
    variant = variant_of(strategy.schedule, arguments.release)
    if variant is None:
        raise UnsupportedError(
            Message("exporters.cannot_launch_axis", target=arguments.target, value=strategy.schedule, axis="schedule"),
            path="/strategy/schedule",
            hint=f"search.forbid: {{schedule: [{strategy.schedule}]}}",
        )
    for flag in variant.flags:
        if not flag.when or evaluate(flag.when, strategy.model_dump()):
            arguments.add(flag.block or "SCHEDULE_ARGS", flag.flag, *flag.values)
    if schedule(strategy.schedule).folded:
        return
    group = micro_batch_group(strategy.pp, micro_batches)
    if strategy.vpp > 1 and micro_batches > strategy.pp and group != strategy.pp:
        # Micro batches that do not come in groups of pp: the smallest group whose last one is no shorter than pp.
        arguments.add("SCHEDULE_ARGS", "--microbatch-group-size-per-virtual-pipeline-stage", group)


def micro_batch_group(pp: int, micro_batches: int) -> int:
    """The group of interleaved micro batches to ask Megatron-core for: the smallest from pp on that it accepts.

    It refuses a last group smaller than pp (model_parallel_config.py, microbatch_group_size_per_vp_stage).
    """
    sizes = range(pp, micro_batches)
    return next((n for n in sizes if micro_batches % n == 0 or micro_batches % n >= pp), micro_batches)


def _add_placement(arguments: LaunchArguments, spec: Spec, plan: Plan, placed: Placement) -> int:
    strategy, layers = plan.strategy, spec.model.num_hidden_layers
    if strategy.pp == 1:
        return layers
    if shares_keys(spec.model):
        refuse_split_groups(spec.model, placed)
    if placed.folded:
        return _pad(arguments, spec, strategy, dualpipev_order(placed))
    in_last_stage = placed.mtp_stage == strategy.pp - 1
    if placed.is_even and in_last_stage:
        if len(placed.chunks) > 1:
            arguments.add(BLOCK, "--num-layers-per-virtual-pipeline-stage", placed.chunks[0][0])
    elif _takes_a_list(arguments, spec) and len(placed.chunks) == 1 and in_last_stage:
        arguments.add(BLOCK, "--num-layer-list", ",".join(str(count) for count in placed.chunks[0]))
    elif arguments.knows("--noop-layers") and in_last_stage and _has_to_be_padded(arguments, spec, strategy, placed):
        total = _pad(arguments, spec, strategy, placed.in_order)
        if len(placed.chunks) > 1:
            each = total // len(placed.in_order)
            arguments.add(BLOCK, "--num-layers-per-virtual-pipeline-stage", each)
        return total
    else:
        layout = layout_string(placed, spec.model.num_nextn_predict_layers)
        arguments.add(BLOCK, "--pipeline-model-parallel-layout", layout)
        if moves_dense_layers(placed, _counted_dense(arguments, spec)):
            _note_dense(arguments, spec)
        if _divides_by_a_chunk(arguments, strategy, placed):
            arguments.note(Message("exporters.mindspeed_cannot_recompute_norms_and_activations_where_layout"))
    if _dense_fill_a_stage(arguments, spec, strategy):
        _note_dense(arguments, spec)
    return layers


def _note_dense(arguments: LaunchArguments, spec: Spec) -> None:
    """MindSpeed-LLM refuses such dense layers, or makes others dense than the model's first."""
    arguments.note(Message("exporters.dense_layers_elsewhere", dense=spec.model.first_k_dense_replace))


def _pad(arguments: LaunchArguments, spec: Spec, strategy: Strategy, chunks: Sequence[int]) -> int:
    """Layers that do nothing make every chunk as long as the longest; returns the number of layers with them.

    Dense layers are counted with the padding between them, and have to be fewer than a stage's: more padding makes
    stages longer, and costs nothing.
    """
    dense = _counted_dense(arguments, spec)
    longest = max(chunks)
    for least in range(longest, longest + dense + 1):
        total, noops = noop_padding(chunks, least)
        if padded_layer(dense, noops) < total // strategy.pp:
            break
    else:
        total, noops = noop_padding(chunks)
        _note_dense(arguments, spec)
    if noops:
        arguments.add(BLOCK, "--noop-layers", ",".join(map(str, noops)))
    return total


def _takes_a_list(arguments: LaunchArguments, spec: Spec) -> bool:
    """Whether the release takes layers of each stage as a list.

    With dense layers first MindSpeed-LLM compares their number with that of list entries, and refuses. Where layers
    share chosen keys it reads their numbers from the list alone, and its own launch has both.
    """
    listed = not spec.model.first_k_dense_replace or shares_keys(spec.model)
    return arguments.knows("--num-layer-list") and listed


def _has_to_be_padded(arguments: LaunchArguments, spec: Spec, strategy: Strategy, placed: Placement) -> bool:
    """Whether MindSpeed refuses the layout string or misreads it, and takes the same placement as padding.

    --moe-fb-overlap refuses a layout with an empty chunk (MindSpeed fb_overlap.py). --first-k-dense-replace is below
    the layers of a stage, padding counted (transformer_block.py).
    """
    if not arguments.knows("--pipeline-model-parallel-layout"):
        return True
    misread = _dense_fill_a_stage(arguments, spec, strategy)
    misread = misread or moves_dense_layers(placed, _counted_dense(arguments, spec))
    misread = misread or _divides_by_a_chunk(arguments, strategy, placed)
    if schedule(strategy.schedule).pairs:
        return pairs_take_padding(placed.in_order) and (min(placed.in_order) == 0 or misread)
    return misread


def _divides_by_a_chunk(arguments: LaunchArguments, strategy: Strategy, placed: Placement) -> bool:
    """Whether a step needs --num-layers-per-virtual-pipeline-stage, which a layout string leaves empty.

    MindSpeed asks layer by layer whether norms and activations are recomputed, and divides by it (model/transformer.py
    and recompute_common.py, should_recompute).
    """
    recompute = strategy.recompute
    used = {ChoiceKey.of(name).name for stage in recompute.per_stage or () for name in stage} | {*recompute.modules}
    return len(placed.chunks) > 1 and not used.isdisjoint(CHUNK_BY_CHUNK) and arguments.knows("--recompute-norm")


def _counted_dense(arguments: LaunchArguments, spec: Spec) -> int:
    """Dense layers before the experts that MindSpeed-LLM counts as it builds; other frameworks are given a pattern."""
    counted = arguments.knows("--first-k-dense-replace") and spec.model.is_moe
    return spec.model.first_k_dense_replace if counted else 0


def _dense_fill_a_stage(arguments: LaunchArguments, spec: Spec, strategy: Strategy) -> bool:
    """Whether MindSpeed-LLM would count more dense layers than an even stage has."""
    return 0 < spec.model.num_hidden_layers // strategy.pp <= _counted_dense(arguments, spec)


def add_dispatch(arguments: LaunchArguments, spec: Spec, strategy: Strategy) -> None:
    """How tokens reach their experts."""
    if not spec.model.is_moe:
        return
    block = "MOE_ARGS"
    dispatcher = strategy.moe_dispatcher or "alltoall"
    if not arguments.release.has("mindspeed"):
        if dispatcher in {"alltoall_seq", "hierarchical"}:
            arguments.note(Message("exporters.has_no_dispatcher", framework="Megatron-LM", name=dispatcher))
        name = {"allgather": "allgather", "deepep": "flex"}.get(dispatcher, "alltoall")
        arguments.add(block, "--moe-token-dispatcher-type", name)
        if name == "flex":
            arguments.add(block, "--moe-flex-dispatcher-backend", dispatcher)
        return
    if dispatcher == "hierarchical" and not arguments.knows("--moe-hierarchical-alltoallv"):
        arguments.note(
            Message("exporters.has_no_flag_in", name="moe_dispatcher: hierarchical", framework=arguments.release.title)
        )
    elif dispatcher == "hierarchical":
        arguments.add(block, "--moe-hierarchical-alltoallv")
        arguments.add(block, "--moe-alltoall-overlap-comm")
    seq = dispatcher in {"alltoall_seq", "hierarchical"} or extends_ep(strategy)
    seq |= spec.training.lora is not None and dispatcher == "alltoall"  # the same on one tensor-parallel rank
    # Where there is no sequence dispatcher by name, MindSpeed makes alltoall one.
    name = "alltoall_seq" if arguments.knows("--moe-token-dispatcher-type", "alltoall_seq") else "alltoall"
    arguments.add(block, "--moe-token-dispatcher-type", name if seq else dispatcher)
    if extends_ep(strategy):
        arguments.add(block, "--moe-tp-extend-ep")
        arguments.add(block, "--moe-grouped-gemm")
    if seq or dispatcher == "allgather":
        arguments.add(block, "--moe-permutation-async-comm")
