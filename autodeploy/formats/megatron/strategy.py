"""The strategy that a launch's flags describe, read and written: degrees, schedule, placement, dispatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.formats.megatron.arguments import LaunchArguments, ShellVariable, flags_of_features
from autodeploy.formats.megatron.attention import CP_ALGORITHM, refuse_split_groups, shares_keys
from autodeploy.formats.megatron.layers import (
    Placement,
    counted_ends,
    dualpipev_order,
    layout_string,
    moves_dense_layers,
    padded_layer,
    read_chunks,
    rows_of_stages,
)
from autodeploy.formats.megatron.memory import read_memory
from autodeploy.formats.megatron.model import CAPACITY, PADDED
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.strategy import ChoiceKey
from autodeploy.stack.expression import evaluate
from autodeploy.stack.gradient_sums import EXPERT_FUSION, EXPERTS_APART, NO_FUSION, PLAIN_APART, in_mindspeed
from autodeploy.stack.padding import noop_padding, pairs_take_padding
from autodeploy.stack.schedules import schedule, variant_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy


BLOCK = "MODEL_PARALLEL_ARGS"
DEGREES = {
    **{"tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size"},
    **{"cp": "--context-parallel-size", "ep": "--expert-model-parallel-size"},
}
CHUNK_BY_CHUNK = frozenset({"norm", "activation"})  # recomputed where MindSpeed looks up the layers of a chunk
SWAPS_BY_CHUNK = "attention"  # swapped so
# Flags with logic in both directions.
CP_ALGO, CP_COMM = "--context-parallel-algo", "--cp-comm-type"
ULYSSES, CP_SIZES = "--ulysses-degree-in-cp", "--hierarchical-context-parallel-sizes"
DISPATCHER, FLEX_BACKEND = "--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"
HIERARCHICAL, EXTENDS_EP = "--moe-hierarchical-alltoallv", "--moe-tp-extend-ep"
EXPERT_DEGREE, SEQUENCE_PARALLEL = "--expert-tensor-parallel-size", "--sequence-parallel"
CHUNK_LAYERS = "--num-layers-per-virtual-pipeline-stage"
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
    for name in ("tp", "pp", "cp"):
        add(BLOCK, DEGREES[name], ShellVariable(name.upper()))
    if strategy.cp > 1:
        _add_context_parallel(arguments, strategy, gathered=bool(spec.model.attention.types))
    if spec.model.is_moe:
        add(BLOCK, DEGREES["ep"], ShellVariable("EP"))
        if not (arguments.release.has("mindspeed") and extends_ep(strategy)):
            _add_expert_tensor_parallel(arguments, strategy)
    if strategy.tp > 1 and strategy.sequence_parallel is not False:
        add(BLOCK, SEQUENCE_PARALLEL)
    add_schedule(arguments, strategy, plan.micro_batches)
    return _add_placement(arguments, spec, plan, placed)


def _add_expert_tensor_parallel(arguments: LaunchArguments, strategy: Strategy) -> None:
    """The degree inside an expert; a release without the flag has that of the layers."""
    degree = expert_tensor_parallel(strategy)
    if arguments.knows(EXPERT_DEGREE) or degree != strategy.tp:
        arguments.add(BLOCK, EXPERT_DEGREE, degree)


def _add_context_parallel(arguments: LaunchArguments, strategy: Strategy, *, gathered: bool) -> None:
    """Gathered: keys that all ranks need whole, whatever ring they pass in."""
    algorithm = strategy.cp_algo or "ring"
    if gathered and arguments.knows(CP_ALGO, CP_ALGORITHM):
        arguments.add(BLOCK, CP_ALGO, CP_ALGORITHM)
        return
    if not arguments.knows(CP_ALGO):
        arguments.add(BLOCK, CP_COMM, CP_COMM_TYPES[algorithm])
        if algorithm == "hybrid" and strategy.ulysses_degree is not None:
            ring = strategy.cp // strategy.ulysses_degree
            arguments.add(BLOCK, CP_SIZES, strategy.ulysses_degree, ring)
        return
    arguments.add(BLOCK, CP_ALGO, CP_ALGORITHMS[algorithm])
    if algorithm == "hybrid" and strategy.ulysses_degree is not None:
        arguments.add(BLOCK, ULYSSES, strategy.ulysses_degree)
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
            arguments.add(BLOCK, CHUNK_LAYERS, placed.chunks[0][0])
    elif _takes_a_list(arguments, spec) and len(placed.chunks) == 1 and in_last_stage:
        arguments.add(BLOCK, "--num-layer-list", ",".join(str(count) for count in placed.chunks[0]))
    elif arguments.knows("--noop-layers") and in_last_stage and _has_to_be_padded(arguments, spec, strategy, placed):
        total = _pad(arguments, spec, strategy, placed.in_order)
        if len(placed.chunks) > 1:
            each = total // len(placed.in_order)
            arguments.add(BLOCK, CHUNK_LAYERS, each)
        return total
    else:
        layout = layout_string(placed, spec.model.num_nextn_predict_layers)
        arguments.add(BLOCK, "--pipeline-model-parallel-layout", layout)
        if moves_dense_layers(placed, _counted_dense(arguments, spec)):
            _note_dense(arguments, spec)
        if _divides_by_a_chunk(arguments, strategy, placed):
            arguments.note(Message("exporters.recompute_excludes_layout"))
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
    and recompute_common.py, should_recompute); --swap-attention numbers the layers of a chunk by it (swap_attention/
    adaptor.py, granular_module_allocation).
    """
    recompute = strategy.recompute
    used = {ChoiceKey.of(name).name for stage in recompute.per_stage or () for name in stage} | {*recompute.modules}
    asked = not used.isdisjoint(CHUNK_BY_CHUNK) and arguments.knows("--recompute-norm")
    asked = asked or (SWAPS_BY_CHUNK in strategy.swap and arguments.knows("--swap-attention"))
    return len(placed.chunks) > 1 and asked


def _counted_dense(arguments: LaunchArguments, spec: Spec) -> int:
    """Dense layers before the experts that MindSpeed-LLM counts as it builds; other frameworks are given a pattern."""
    counted = arguments.knows("--first-k-dense-replace") and spec.model.is_moe
    return spec.model.first_k_dense_replace if counted else 0


def _dense_fill_a_stage(arguments: LaunchArguments, spec: Spec, strategy: Strategy) -> bool:
    """Whether MindSpeed-LLM would count more dense layers than an even stage has."""
    return 0 < spec.model.num_hidden_layers // strategy.pp <= _counted_dense(arguments, spec)


def add_dispatch(arguments: LaunchArguments, spec: Spec, strategy: Strategy) -> None:
    """Dispatch of tokens to their experts."""
    if not spec.model.is_moe:
        return
    block = "MOE_ARGS"
    dispatcher = strategy.moe_dispatcher or "alltoall"
    if not arguments.release.has("mindspeed"):
        if dispatcher in {"alltoall_seq", "hierarchical"}:
            arguments.note(Message("exporters.has_no_dispatcher", framework="Megatron-LM", name=dispatcher))
        name = {"allgather": "allgather", "deepep": "flex"}.get(dispatcher, "alltoall")
        arguments.add(block, DISPATCHER, name)
        if name == "flex":
            arguments.add(block, FLEX_BACKEND, dispatcher)
        return
    if dispatcher == "hierarchical" and not arguments.knows(HIERARCHICAL):
        arguments.lacks("moe_dispatcher: hierarchical")
    elif dispatcher == "hierarchical":
        arguments.add(block, HIERARCHICAL)
        arguments.add(block, "--moe-alltoall-overlap-comm")
    seq = dispatcher in {"alltoall_seq", "hierarchical"} or extends_ep(strategy)
    seq |= spec.training.in_part and dispatcher == "alltoall"  # the same on one tensor-parallel rank
    # Where there is no sequence dispatcher by name, MindSpeed makes alltoall one.
    name = "alltoall_seq" if arguments.knows(DISPATCHER, "alltoall_seq") else "alltoall"
    arguments.add(block, DISPATCHER, name if seq else dispatcher)
    if extends_ep(strategy):
        arguments.add(block, EXTENDS_EP)
        arguments.add(block, "--moe-grouped-gemm")
    if seq or dispatcher == "allgather":
        arguments.add(block, "--moe-permutation-async-comm")


DISPATCHERS = {"alltoall": "alltoall", "alltoall_seq": "alltoall_seq", "allgather": "allgather", "flex": "deepep"}
MAX_DEGREE = 131_072
ALLOCATORS = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
# The flags of these features turn on other features, too; they are read where that is known.
READ_ELSEWHERE = frozenset(
    {
        *("fused_operators", "grouped_gemm", "fsdp", "capacity_drop", "async_permutation"),
        "precision_aware_optimizer",
    }
)
ASYNC_PERMUTATION = "--moe-permutation-async-comm"  # MindSpeed after 2.0.0 changes nothing by it
GRID = "--tp-2d"
OPTIMIZER = "--optimizer"  # of more than one shard with dist_ before its name
GROWING = "expandable_segments:true"
SHORT_MOMENTS = frozenset({"bf16", "fp16"})


def read_optimizer(reader: FlagReader) -> str | None:
    """The optimizer by the name of its feature; None of Adam, as which others are predicted, which is told."""
    names = [name for name, ways in flags_of_features().items() if any(OPTIMIZER in flags for flags in ways)]
    given = reader.script.flags[OPTIMIZER].text.removeprefix("dist_") if reader.is_told(OPTIMIZER) else ""
    if given not in names:
        return None
    reader.text(OPTIMIZER, "/training/optimizer")
    return given


def read_strategy(reader: FlagReader) -> tuple[dict[str, Any], int]:
    """The `strategy` of a spec, and the model's layers without padding."""
    strategy: dict[str, Any] = {
        **{name: _degree(reader, flag, name) for name, flag in DEGREES.items()},
        "micro_batch_size": _degree(reader, "--micro-batch-size", "micro_batch_size"),
        # Two dimensions cut activations over all tensor-parallel ranks: MindSpeed-LLM get_tensor_shapes_decorator.
        "sequence_parallel": reader.switch(SEQUENCE_PARALLEL, "/strategy/sequence_parallel") or reader.has(GRID),
        "distributed_optimizer": reader.switch("--use-distributed-optimizer", "/strategy/distributed_optimizer"),
    }
    sharded = [reader.switch(flag, "/strategy/fsdp") for flag in ("--use-custom-fsdp", "--use-megatron-fsdp")]
    strategy["fsdp"] = any(sharded)
    reader.ignore(["--data-parallel-sharding-strategy"], Message("importers.no_field_of_spec"))
    _read_context(reader, strategy)
    features = _read_experts(reader, strategy) if reader.has("--num-experts") else set[str]()
    layers = _read_schedule(reader, strategy)
    strategy |= read_memory(reader, strategy, layers)
    features |= _read_features(reader)
    features |= {name for name in ("reuse_fp32_param", "swap_optimizer") if strategy.get(name)}
    features |= {"adaptive_pipe"} if strategy["schedule"] == "adaptive_pipe" else set()
    return strategy | {"features": sorted(features)}, layers


def _degree(reader: FlagReader, flag: str, name: str) -> int:
    degree = reader.number(flag, f"/strategy/{name}") or 0
    if not 1 <= degree <= MAX_DEGREE:
        reader.fail(flag, Message("importers.not_whole_number", least=1, value=degree, most=MAX_DEGREE))
    return degree


def _read_context(reader: FlagReader, strategy: dict[str, Any]) -> None:
    field = "/strategy/cp_algo"
    algorithms = {flag: name for name, flag in CP_ALGORITHMS.items()} | {"kvallgather_cp_algo": "ring"}
    comm_types = {flag: name for name, flag in CP_COMM_TYPES.items()} | {"all_gather": "ring", "allgather": "ring"}
    algorithm = reader.text(CP_ALGO, field)
    comm = reader.words(CP_COMM, field) if algorithm is None else ()
    cp_algo = comm_types.get(comm[0]) if comm else algorithms.get(algorithm or "megatron_cp_algo")
    ulysses = reader.number(ULYSSES, "/strategy/ulysses_degree")
    sizes = reader.words(CP_SIZES, "/strategy/ulysses_degree")
    reader.ignore(["--use-cp-send-recv-overlap"], Message("importers.no_field_of_spec"))
    if strategy["cp"] == 1:
        return
    if cp_algo is None:
        flag = CP_ALGO if algorithm is not None else CP_COMM
        reader.fail(
            flag,
            Message("common.is_not_modelled_yet", what=algorithm or comm[0]),
            Message("common.one_of", names=", ".join(CP_ALGORITHMS.values())),
        )
    strategy["cp_algo"] = cp_algo
    if cp_algo == "hybrid":
        degree = ulysses or (int(sizes[0]) if sizes and sizes[0].isdigit() and len(sizes[0]) < 7 else None)
        strategy |= {"ulysses_degree": degree} if degree else {}


def _read_experts(reader: FlagReader, strategy: dict[str, Any]) -> set[str]:
    """Dispatcher, expert tensor parallelism, and what of the experts' features hangs on them."""
    features: set[str] = set()
    given = reader.text(DISPATCHER, "/strategy/moe_dispatcher") or ""
    if given not in DISPATCHERS:
        reader.fail(DISPATCHER, Message("field_fault.is_invalid", value=repr(given[:40])), ", ".join(DISPATCHERS))
    strategy["moe_dispatcher"] = DISPATCHERS[given]
    if given == "flex":  # its backends all send a token once to each node
        reader.text(FLEX_BACKEND, "/strategy/moe_dispatcher")
        reader.switch("--moe-enable-deepep", "/strategy/moe_dispatcher")
    if reader.switch(HIERARCHICAL, "/strategy/moe_dispatcher"):
        strategy["moe_dispatcher"] = "hierarchical"
        features.add("hierarchical_a2a")
    etp = reader.number(EXPERT_DEGREE, "/strategy/etp")
    if reader.switch(EXTENDS_EP, "/strategy/ep"):
        strategy["ep"] *= strategy["tp"]
        etp = 1
        features.add("tp_extend_ep")
    if etp is None:
        etp = reader.assume("/strategy/etp", strategy["tp"])
    if etp < 1:
        reader.fail(EXPERT_DEGREE, Message("field_fault.is_too_small", value=etp))
    strategy["etp"] = etp
    reader.ignore([ASYNC_PERMUTATION], Message("importers.no_field_of_spec"))
    if reader.switch("--moe-grouped-gemm", "/strategy/features"):
        features.add("grouped_gemm")
    fused = reader.switch("--moe-permute-fusion", "/strategy/features")
    if fused or reader.switch("--use-fused-moe-token-permute-and-unpermute", "/strategy/features"):
        features.add("fused_operators")
    if reader.switch("--moe-allgather-overlap-comm", "/strategy/features"):
        features.add("moe_alltoall_overlap")
    return features | _read_capacity(reader)


def read_gradient_sums(reader: FlagReader, strategy: Mapping[str, Any], *, adapted: bool) -> frozenset[str]:
    """Products that leave the sums of gradients over micro batches to operators of their own.

    A feature that asks for unfused sums is priced with them as it is.

    adapted : MindSpeed runs beneath, whatever the chips.
    """
    asked = {name for name, ways in flags_of_features().items() if any(NO_FUSION in flags for flags in ways)}
    if any(name in strategy["features"] or strategy.get(name) for name in asked):
        for flag in (NO_FUSION, EXPERT_FUSION):
            reader.has(flag)
        return frozenset()
    apart = reader.switch(NO_FUSION, "/strategy/features")
    if not adapted:
        return frozenset({PLAIN_APART}) if apart else frozenset()
    grouped = "grouped_gemm" in strategy["features"]
    fused = grouped and reader.switch(EXPERT_FUSION, "/strategy/features")
    if grouped and not fused:
        reader.assume("/strategy/features", EXPERTS_APART, "MindSpeed")
    return in_mindspeed(grouped, plain_apart=apart, experts_fused=fused)


def _read_capacity(reader: FlagReader) -> set[str]:
    """Experts that drop what is above their capacity; padded to it they are the model's (`capacity_factor`)."""
    if reader.has(PADDED):
        return set()
    factor = reader.decimal(CAPACITY, "/training/expert_capacity_factor")
    return set() if factor is None or factor <= 0 else {"capacity_drop"}


def _read_schedule(reader: FlagReader, strategy: dict[str, Any]) -> int:
    """Schedule, virtual stages and layers of each stage; returns the model's layers without padding."""
    pp, layers = strategy["pp"], reader.number("--num-layers", "/model/num_hidden_layers")
    if layers is None or not 1 <= layers <= 4096:
        flag = "--num-layers"
        if layers is not None:
            reader.fail(flag, Message("importers.not_whole_number", value=layers, least=1, most=4096))
        raise SpecError(Message("common.is_required", name="--num-layers"), path="/model/num_hidden_layers")
    dual = reader.text("--schedules-method", "/strategy/schedule") == "dualpipev"
    ends = counted_ends(reader)
    chunks_per_stage = 2 if dual else _virtual_stages(reader, pp, layers + sum(ends))
    real, chunks = read_chunks(reader, pp, layers, chunks_per_stage, ends)
    if chunks is not None and sum(chunks) != real:
        place = next(f for f in PLACEMENT_FLAGS if f in reader.script.flags)
        reader.fail(place, Message("importers.placed_layers_differ", placed=sum(chunks), layers=real))
    if chunks is not None and not dual:
        if len(chunks) % pp:
            place = next(f for f in PLACEMENT_FLAGS if f in reader.script.flags)
            reader.fail(place, Message("common.does_not_divide", part=f"pp {pp}", whole=len(chunks)))
        chunks_per_stage = len(chunks) // pp
    if chunks is not None:
        rows = rows_of_stages(chunks, pp, v_shape=dual)
        strategy["layers_per_stage"] = rows if chunks_per_stage > 1 else [row[0] for row in rows]
    strategy["vpp"] = 1 if dual else chunks_per_stage
    overlapped = [reader.switch(flag, "/strategy/schedule") for flag in OVERLAP_FLAGS]
    reader.has("--delay-wgrad-compute")
    if dual:
        strategy["schedule"] = "dualpipev"
        if strategy["ep"] > 1 and not any(overlapped):  # its pairs run one pass after another
            flag = OVERLAP_FLAGS[0]
            reader.log.unmodelled(flag, "false", Message("importers.predicted_as", what=flag))
    elif any(overlapped) and (chunks_per_stage > 1 or pp == 1):
        strategy["schedule"] = "adaptive_pipe"
    else:
        strategy["schedule"] = "interleaved" if chunks_per_stage > 1 else "1f1b"
    return real


OVERLAP_FLAGS = ("--moe-fb-overlap", "--overlap-moe-expert-parallel-comm")
# Ways to say which layers are where.
PLACEMENT_FLAGS = (
    "--pipeline-model-parallel-layout",
    "--num-layer-list",
    "--pipeline-num-transformer-layers",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--noop-layers",
    "--num-layers",
)


def _virtual_stages(reader: FlagReader, pp: int, layers: int) -> int:
    each = reader.number(CHUNK_LAYERS, "/strategy/vpp")
    count = reader.number("--num-virtual-stages-per-pipeline-rank", "/strategy/vpp")
    if count is not None:
        if not 1 <= count <= layers:
            reader.fail(
                "--num-virtual-stages-per-pipeline-rank",
                Message("importers.not_whole_number", value=count, least=1, most=layers),
            )
        return count
    if each is None or pp == 1:
        return 1
    if each < 1 or layers % (pp * each):
        flag = CHUNK_LAYERS
        reader.fail(flag, Message("common.does_not_divide", part=f"pp {pp} x {each}", whole=f"--num-layers {layers}"))
    return layers // (pp * each)


def _read_features(reader: FlagReader) -> set[str]:
    """Features whose first flag is given: the table that the exporters write from, the other way round."""
    features = set()
    ways = [(name, flags) for name, each in flags_of_features().items() for flags in each]
    for name, (first, *others) in ways:
        if name not in READ_ELSEWHERE and first != OPTIMIZER and reader.switch(first, "/strategy/features"):
            features.add(name)
            for flag in others:
                reader.has(flag)
    if (optimizer := read_optimizer(reader)) is not None:
        features.add(optimizer)
    aware = reader.switch("--use-precision-aware-optimizer", "/strategy/features")
    moments = [reader.text(flag, "/strategy/features") for flag in ("--exp-avg-dtype", "--exp-avg-sq-dtype")]
    if aware and SHORT_MOMENTS.issuperset(moments):
        features.add("precision_aware_optimizer")
    if reader.switch("--grad-reduce-in-bf16", "/strategy/features"):
        features.add("bf16_gradients")
    if reader.switch("--use-mc2", "/strategy/features"):  # the older name of --use-ascend-mc2
        features.add("mc2")
    if "coc_kernel" in features:  # which --use-ascend-coc switches too, and which takes its place
        features.discard("coc")
    affinity = reader.script.environment.get("CPU_AFFINITY_CONF", "0")
    if affinity[:1] in {"1", "2"}:
        reader.log.take("CPU_AFFINITY_CONF", "/strategy/features", affinity, "host_core_binding")
        features.add("host_core_binding")
    return features | _read_allocator(reader)


def _read_allocator(reader: FlagReader) -> set[str]:
    """Whether the allocator's segments grow. PyTorch's own default is that they do not; a script that leaves its
    allocator alone is read as the frameworks' scripts are, which let them grow where they set it.
    """
    field, given = "/strategy/features", [name for name in ALLOCATORS if name in reader.script.environment]
    if not given:
        reader.assume(field, GROWING, "pretrain_*.sh")
        return set()
    texts = {name: reader.script.environment[name] for name in given}
    for name, text in texts.items():
        reader.log.take(name, field, text)
    grows = any(GROWING in text.lower().replace(" ", "") for text in texts.values())
    return set() if grows else {"fixed_segments"}
