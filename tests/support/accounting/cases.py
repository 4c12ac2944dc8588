"""Random small training runs, as the planner reads them and as the accounting does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.space.candidates import CP_ALGOS, DISPATCHERS, SCHEDULES, Candidates
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.spec import Spec
from autodeploy.specs.training import TrainingSpec
from autodeploy.stack.host import HostSoftware
from tests.support.accounting.machine import Link, Numbers
from tests.support.accounting.ranks import Degrees
from tests.support.accounting.run import Run

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.inputs.machine import Machine
    from hardware_profiles.profile import Profile

DENSE: dict[str, Any] = {
    "name": "dense",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 32_000,
    "intermediate_size": 2816,
}
MOE = DENSE | {
    "name": "experts",
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "n_shared_experts": 1,
    "first_k_dense_replace": 2,
}
LATENT = {
    "name": "latent",
    "hidden_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "vocab_size": 64_000,
    "q_lora_rank": 384,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "intermediate_size": 4096,
    "n_routed_experts": 32,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 768,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 8,
    "topk_group": 4,
    "num_nextn_predict_layers": 1,
}
SHORTCUT = LATENT | {
    "name": "shortcut",
    "num_hidden_layers": 6,
    "n_zero_experts": 16,
    "shortcut_moe": True,
    **dict.fromkeys(("n_shared_experts", "first_k_dense_replace", "num_nextn_predict_layers"), 0),
    **dict.fromkeys(("n_group", "topk_group")),
}
COMPRESSED: dict[str, Any] = {
    "name": "compressed",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 1,
    "head_dim": 128,
    "vocab_size": 32_000,
    "q_lora_rank": 256,
    "qk_rope_head_dim": 32,
    "sliding_window": 128,
    "compressed_attention": {
        "o_groups": 8,
        "o_lora_rank": 192,
        "index_topk": 256,
        "index_n_heads": 8,
        "index_head_dim": 64,
    },
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "n_shared_experts": 1,
    "num_nextn_predict_layers": 1,
}
SWITCHES = (
    *(
        "fused_swiglu",
        "fused_rmsnorm",
        "rect_fa",
        "padded_heads",
        "fused_operators",
        "overlap_grad_reduce",
        "overlap_param_gather",
    ),
    *("host_sync_free", "dropout", "grouped_gemm", "flash_attention", "mc2", "coc"),
    *("moe_alltoall_overlap", "shared_expert_overlap", "scatter_gather_sends", "graph_mode"),
    *("o2_optimizer", "quantized_optimizer", "selective_recompute", "adaptive_comm_buffers"),
    *("ascendp_mm", "vector_sort", "cube_vector_parallel", "host_reorder", "host_core_binding"),
    *("unfused_gradient_accumulation", "unfused_rotary", "unfused_optimizer", "fused_cross_entropy"),
    *("replicated_dispatch", "fsdp", "whole_vocabulary", "unfused_expert_accumulation"),
    *(
        "fused_router",
        "async_permutation",
        "weighted_experts",
        "regathers_latents",
        "regathers_shared",
        "narrow_inputs",
        "fused_expert_accumulation",
        "torch_fsdp2",
        "bf16_gradients",
    ),
    "chunked_loss",
)
# Kept or updated otherwise than Muon's.
OTHER_STATES = {
    *("o2_optimizer", "quantized_optimizer", "fsdp", "torch_fsdp2", "chunked_loss", "bf16_gradients"),
    *("unfused_optimizer", "graph_mode", "high_availability"),
}
# Matrices that may have adapters, as frameworks name them -> their products.
TARGETS = {
    "linear_qkv": ("qkv_proj", "latent_down_proj"),
    "linear_proj": ("attention_out_proj",),
    "linear_fc1": ("mlp_up_proj", "expert_up_proj", "shared_up_proj"),
    "linear_fc2": ("mlp_down_proj", "expert_down_proj", "shared_down_proj"),
}
# Clusters whose groups lie evenly on the tiers: name -> profile, cards, (supernode, nodes), ranks of a supernode.
CLUSTERS: dict[str, tuple[str, int | None, tuple[tuple[int, int], ...] | None, int | None]] = {
    "node": ("ascend-800t-a2", 8, None, None),
    "nodes": ("ascend-800t-a2", 32, None, None),
    "supernode": ("cloudmatrix-384", 16, None, None),
    "supernodes": ("cloudmatrix-384", None, ((0, 1), (1, 1)), 16),
    "gpus": ("nvidia-h100", 16, None, None),
    "leaves": ("ascend-800t-a2", 32, None, None),
    "gpu_leaves": ("nvidia-h100", 16, None, None),
}
LEAVES = {"leaves": (2, 3.0), "gpu_leaves": (1, 1.5)}  # nodes of a leaf switch, and by how much it is narrower above


@dataclass(frozen=True)
class Cluster:
    """A cluster as both sides read it."""

    spec: ClusterSpec
    profile: Profile
    supernode_ranks: int | None
    leaf: tuple[int, float] | None


@lru_cache(maxsize=8)
def cluster(name: str, slowest: float = 1.0) -> Cluster:
    """A cluster by name."""
    profile, cards, blocks, ranks = CLUSTERS[name]
    document: dict[str, Any] = {"profile": profile, "slowest_device_factor": slowest}
    if blocks:
        document["blocks"] = [{"supernode": s, "nodes": n} for s, n in blocks]
    else:
        document["num_npus"] = cards
    leaf = LEAVES.get(name)
    if leaf is not None:
        document["leaf"] = {"nodes": leaf[0], "oversubscription": leaf[1]}
    spec = ClusterSpec.model_validate(document)
    return Cluster(spec, profile_of(spec), ranks, leaf)


def numbers_of(machine: Machine, where: Cluster) -> Numbers:
    """The machine's numbers as plain floats, with the size of every tier's instances."""
    rates, host = machine.rates, machine.host
    sizes = [
        where.supernode_ranks if document.span == "supernode" and where.supernode_ranks else tier.ranks
        for document, tier in zip(where.profile.document.tiers, where.profile.tiers, strict=True)
    ]
    nodes, narrower = where.leaf or (None, 1.0)
    leaf = (None if nodes is None else nodes * where.profile.ranks_per_node, narrower)
    links = tuple(
        Link(
            size,
            float(t.bytes_per_s),
            t.links,
            float(t.latency_s),
            float(t.efficiency),
            float(t.half_size_bytes),
            *(leaf if t is machine.tiers[-1] else (None, 1.0)),
        )
        for size, t in zip(sizes, machine.tiers, strict=True)
    )
    names = (
        *("peak_flops", "hbm_bytes_per_s", "gemm_fraction", "gemm_k_half", "gemm_mn_half", "grouped_gemm"),
        *("attention_forward", "attention_backward", "attention_head_dim_half", "attention_seq_half"),
        *("hbm_fraction", "movement_fraction", "cube_op_s", "vector_op_s", "gemm_units"),
        *("grouped_gemm_exposed", "gemm_added_exposed", "operand_fraction", "whole_rows_fraction"),
    )
    own = (
        "comm_op_s",
        "software_factor",
        "routing_factor",
        "dispatch_loss",
        "combine_loss",
        "contention",
        "overlap",
        "runtime_bytes",
        "communicator_bytes",
        "fragmentation",
    )
    return Numbers(
        **{name: float(np.asarray(getattr(rates, name))) for name in names},
        **{name: float(np.asarray(getattr(machine, name))) for name in own},
        issue_s=float(np.asarray(host.issue_s)),
        sync_s=float(np.asarray(host.sync_s)),
        host_link_bytes_per_s=float(host.link_bytes_per_s),
        links=links,
        cube_cores=float(rates.cube_cores),
        pipelined_tiles=rates.pipelined_tiles,
    )


@dataclass(frozen=True)
class Case:
    """One run on one cluster."""

    context: Context
    run: Run
    machine: Numbers
    world: int


def spec_of(model: dict[str, Any], where: Cluster, training: TrainingSpec) -> Spec:
    """A run that any framework may launch."""
    return Spec(
        model=ModelSpec.model_validate(model), cluster=where.spec, training=training, search=SearchSpec(target="any")
    )


def case_of(
    model: dict[str, Any],
    where: Cluster,
    on: frozenset[str],
    *,
    seq: int = 4096,
    imbalance: float = 1.0,
    peak: float = 1.0,
    distributed_optimizer: bool = True,
    norm_precision: str = "bf16",
    network: float = 1.0,
    precision: str = "bf16",
    adapters: tuple[int, tuple[str, ...]] | None = None,
    pairs: bool = False,
    host: HostSoftware | None = None,
) -> Case:
    """The same run for the planner and for the accounting, on a network of `network` times the profile's bandwidth."""
    rank, targets = adapters or (0, ())
    tuned: dict[str, Any] = {"kind": "dpo" if pairs else "sft" if adapters else "pretrain"}
    tuned |= {"optimizer": "muon"} if "muon" in on else {}
    tuned |= {"lora": {"rank": rank, "target_modules": targets}} if adapters else {}
    training = TrainingSpec.model_validate(
        {
            **tuned,
            "seq_length": seq,
            "global_batch_size": 64,
            "routing_imbalance": imbalance,
            "routing_imbalance_peak": max(peak, imbalance),
            "norm_precision": norm_precision,
            "precision": precision,
        }
    )
    asked = spec_of(model, where, training)
    context = spec_context(asked, where.profile, on, distributed_optimizer=distributed_optimizer, host=host)
    if network != 1.0:
        tiers = tuple(replace(tier, bytes_per_s=tier.bytes_per_s * network) for tier in context.machine.tiers)
        context = replace(context, machine=replace(context.machine, tiers=tiers))
    run = Run(
        model=model,
        seq=seq,
        on=on,
        imbalance=imbalance,
        peak_imbalance=max(peak, imbalance),
        slowest=where.spec.slowest_device_factor,
        stats_bytes=64.0 if context.machine.vendor == "huawei" else 4.0,
        norm_bytes=4.0 if norm_precision == "fp32" else 2.0,
        distributed_optimizer=distributed_optimizer,
        precision=precision,
        gradient_bytes=_reduced_in(on, precision),
        weighted_activation="graph_mode" not in on and context.machine.vendor == "huawei",
        group_launches=0.0 if context.machine.vendor == "huawei" else 0.5,
        copies_heads=context.machine.vendor == "huawei",
        pairs=pairs,
        lora_rank=rank,
        lora_targets=tuple(product for name in targets for product in TARGETS[name]),
        experts_apart=context.host.experts_apart,
        scatter=context.host.scatter,
        adam_s=_adam_s(where, context.host) if context.host.updates else None,
    )
    return Case(context, run, numbers_of(context.machine, where), context.world)


def _adam_s(where: Cluster, host: HostSoftware) -> float:
    """Of one parameter: the slower of memory and threads, then FP32 gradient down and weight up."""
    document, ranks = where.profile.document.host, where.profile.ranks_per_node
    bandwidth = document.memory_gb_per_s_per_node.value * 1e9 / ranks if document.memory_gb_per_s_per_node else 50e9
    core = document.core_time_ratio.value if document.core_time_ratio else 1.0
    nanoseconds, moved = {"unfused": (5.9, 80), "foreach": (2.3, 80), "fused": (0.7, 28)}[host.kernel]
    link = document.host_link_gb_per_s.value * 1e9
    return max(moved / bandwidth, nanoseconds * 1e-9 * core / host.threads) + 8 / link


def _reduced_in(on: frozenset[str], precision: str) -> float:
    """Bytes of a gradient while replicas sum it; FSDP2's reduce_dtype is FP32 unless it is said."""
    short = {"bf16_gradients"} if "torch_fsdp2" in on else {"bf16_gradients", "quantized_optimizer"}
    return 2.0 if on & short or ("torch_fsdp2" not in on and precision == "fp16") else 4.0


def candidates_of(degrees: list[Degrees]) -> Candidates:
    """Strategies as the planner's batch."""
    columns: dict[str, list[Any]] = {
        "tp": [d.tp for d in degrees],
        "pp": [d.pp for d in degrees],
        "vpp": [d.vpp for d in degrees],
        "cp": [d.cp for d in degrees],
        "cp_algo": [
            CP_ALGOS.index("ring" if d.ulysses == 1 else "ulysses" if d.ulysses == d.cp else "hybrid") for d in degrees
        ],
        "ulysses": [d.ulysses for d in degrees],
        "ep": [d.ep for d in degrees],
        "etp": [d.etp for d in degrees],
        "dp": [d.dp for d in degrees],
        "micro_batch_size": [d.micro_batch_size for d in degrees],
        "micro_batches": [d.micro_batches for d in degrees],
        "schedule": [SCHEDULES.index(d.schedule) for d in degrees],
        "moe_dispatcher": [DISPATCHERS.index(d.dispatcher) for d in degrees],
        "sequence_parallel": [d.sequence_parallel for d in degrees],
        "reuse_fp32_param": [d.reuse_fp32 for d in degrees],
        "swap_optimizer": [d.swap_optimizer for d in degrees],
        "virtual_optimizer": [d.virtual_optimizer for d in degrees],
        "keep_gathered": [d.keep_gathered for d in degrees],
        "dp_replicate": [d.dp_replicate for d in degrees],
        "tp_pp_dp_mapping": [d.replicas_outside for d in degrees],
    }
    return Candidates(**{name: np.asarray(values) for name, values in columns.items()})


# -- random cases --------------------------------------------------------------------------------------------


RECIPES: list[dict[str, Any] | None] = [
    None,
    {"normalization": "LayerNorm", "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
    {"normalization": "RMSNorm", "attention_bias": True},
]


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Dense with grouped heads, experts, latent attention; prediction modules; unusual layers."""
    model = dict(draw(st.sampled_from([DENSE, MOE, LATENT, COMPRESSED])))
    model["num_hidden_layers"] = draw(st.integers(4, 9))
    if model["name"] == "compressed":
        # The planner takes layers of one class as alike: what a stage recomputes first would differ between types.
        kind = draw(st.sampled_from(["compressed_sparse_attention", "heavily_compressed_attention"]))
        model["layer_types"] = [kind] * model["num_hidden_layers"]
        if draw(st.integers(0, 3)):
            model["hyper_connections"] = {"hc_mult": 4}
        model["num_nextn_predict_layers"] = draw(st.integers(0, 2))
        return model
    if draw(st.booleans()):
        model["hidden_act"] = draw(st.sampled_from(["gelu", "geglu"]))
        model["norm_layout"] = "sandwich"
    model["num_nextn_predict_layers"] = draw(st.integers(0, 2))
    if "n_routed_experts" in model:
        model["n_shared_experts"] = draw(st.integers(0, 2))
        if draw(st.integers(0, 3)) == 0:
            model["capacity_factor"] = 1.5
    if "kv_lora_rank" not in model:
        model["qk_norm"] = draw(st.booleans())
        model["attention_head_gate"] = draw(st.booleans())
        model["tie_word_embeddings"] = draw(st.booleans())
        positions = draw(st.sampled_from(["rotary", "learned", "biased"]))
        model |= {"learned": {"learned_position_embeddings": 4096}, "biased": {"alibi": True}}.get(positions, {})
        recipe = RECIPES[draw(st.integers(0, len(RECIPES) - 1))]
        model |= {} if recipe is None else {"recipe": dict(recipe)}
    elif draw(st.booleans()):
        del model["q_lora_rank"]
    return model


# Hosts that are late, with experts joined and apart, and such that run the optimizer.
LATE = HostSoftware(changing_shapes=True, new_shape_s=2e-4, scatter=0.08)
UPDATING = replace(LATE, experts_apart=True, task_queue=2, updates=True, kernel="fused", threads=4.0)
HOSTS = (LATE, replace(LATE, experts_apart=True, task_queue=0), UPDATING, HostSoftware(updates=True))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A model, a cluster, features, imbalance."""
    name = draw(st.sampled_from(sorted(CLUSTERS)))
    # Flash attention and fused experts are on but rarely off: without them other operators disappear behind theirs.
    on = draw(st.sets(st.sampled_from(SWITCHES)))
    if draw(st.integers(0, 3)):
        on |= {"flash_attention", "grouped_gemm"}
    if "torch_fsdp2" in on or not draw(st.integers(0, 5)):
        on |= {"torch_fsdp2", "fsdp"}
    model, adapters, pairs = draw(models()), None, False
    dense, compressed = model["name"] == "dense", "kv_lora_rank" not in model or "q_lora_rank" in model
    if model["name"] == "compressed":  # no framework of plain PyTorch has its layers, and none adapters of them
        on = on - {"torch_fsdp2", "fsdp", "chunked_loss"}
    elif compressed and draw(st.booleans()):
        model |= {"num_nextn_predict_layers": 0}
        on = on - {"fsdp", "torch_fsdp2", "chunked_loss"}
        chosen = [name for name in TARGETS if draw(st.booleans()) or (not dense and name.startswith("linear_fc"))]
        pairs = dense and draw(st.booleans())
        if not pairs or draw(st.booleans()):
            adapters = (draw(st.sampled_from([8, 64])), tuple(chosen or TARGETS))
    if "torch_fsdp2" not in on:
        on = on - {"bf16_gradients"}
    if not adapters and not pairs and not draw(st.integers(0, 3)):
        on = (on | {"muon"}) - OTHER_STATES
    return case_of(
        model,
        cluster(name, draw(st.sampled_from([1.0, 1.0, 1.1]))),
        frozenset(on),
        seq=draw(st.sampled_from([2048, 8192])),
        imbalance=draw(st.sampled_from([1.0, 1.3, 3.0])),
        peak=draw(st.sampled_from([1.0, 2.0, 6.0])),
        distributed_optimizer=draw(st.booleans()),
        norm_precision=draw(st.sampled_from(["bf16", "fp32"])),
        precision=draw(st.sampled_from(["bf16", "bf16", "fp16"])) if "muon" not in on else "bf16",
        # A slow network leaves exposed what computation hides on a fast one.
        network=draw(st.sampled_from([1.0, 1.0, 0.1, 0.01])),
        adapters=adapters,
        pairs=pairs,
        host=draw(st.sampled_from([HostSoftware(), *(LATE if "muon" in on else each for each in HOSTS)])),
    )


def _powers(limit: int) -> list[int]:
    return [1 << n for n in range(limit.bit_length()) if 1 << n <= limit]


SWEPT = ("1f1b", "interleaved", "adaptive_pipe", "dualpipev")
ESTIMATED = (*SWEPT, "dualpipe")


@st.composite
def degrees(draw: st.DrawFn, case: Case, schedules: tuple[str, ...] = SWEPT) -> Degrees:
    """A legal strategy of a case."""
    world, model = case.world, case.run.model
    moe, layers = "n_routed_experts" in model, model["num_hidden_layers"]
    pp = draw(st.sampled_from(_powers(min(4, world // 2))))
    tp = draw(st.sampled_from(_powers(min(8, world // pp))))
    cp = draw(st.sampled_from(_powers(min(4, world // (pp * tp)))))
    ulysses = draw(st.sampled_from([u for u in _powers(cp) if model["num_attention_heads"] % (u * tp) == 0]))
    etp = draw(st.sampled_from([1, tp])) if moe else 1
    outside = pp > 1 and (tp * cp // etp <= 16 if moe else cp == 1) and draw(st.integers(0, 3)) == 0
    eps = [tp * cp // etp] if outside else _powers(min(16, world // (pp * etp)))
    ep = draw(st.sampled_from(eps)) if moe else 1
    # Paired passes have no place to gather parameters, and no dispatcher that runs beside experts' adapters.
    if "fsdp" in case.run.on or case.run.pairs or (moe and case.run.lora_rank):
        schedules = tuple(s for s in schedules if s in ("1f1b", "interleaved"))
    schedule = draw(st.sampled_from([s for s in schedules if s != "adaptive_pipe" or ep > 1]))
    vpp = 1
    if schedule != "1f1b":
        vpp = 1 if pp == 1 else 2
        parts = pp if schedule == "dualpipe" else pp * vpp
        if (schedule != "adaptive_pipe" and pp == 1) or parts > layers:
            schedule, vpp = "1f1b", 1
    rounds = draw(st.integers(2 if schedule == "adaptive_pipe" else 1, 3))
    micro_batches = draw(st.integers(1, 3 * pp)) if schedule == "1f1b" else rounds * pp
    if schedule.startswith("dual"):
        micro_batches = 2 * draw(st.integers(pp, 3 * pp))
    # As many copies of all shards as there are of everything: a shard group holds whole sequences and all experts.
    sharded = "torch_fsdp2" in case.run.on
    adam = "muon" not in case.run.on
    dispatchers = ["alltoall"]
    if moe and ep > 1:
        dispatchers = ["alltoall", "alltoall_seq", "allgather", "hierarchical", "deepep"]
    return Degrees(
        world=world,
        tp=tp,
        cp=cp,
        ulysses=ulysses,
        pp=pp,
        vpp=vpp,
        ep=ep,
        etp=etp,
        micro_batch_size=draw(st.sampled_from([1, 2])),
        micro_batches=micro_batches,
        schedule=schedule,
        dispatcher=draw(st.sampled_from(dispatchers)),
        # Without it, ranks of a tensor-parallel group would each send the same tokens to the experts.
        sequence_parallel=tp > 1 and (moe or draw(st.booleans())),
        reuse_fp32=(reuse := adam and draw(st.booleans())),
        swap_optimizer=(swap := adam and not reuse and draw(st.booleans())),
        virtual_optimizer=adam and not reuse and not swap and draw(st.booleans()),
        keep_gathered="torch_fsdp2" in case.run.on and pp == 1 and draw(st.booleans()),
        dp_replicate=draw(st.sampled_from(_powers(world // max(tp * cp * pp, etp * ep * pp) if sharded else 1))),
        replicas_outside=outside,
    )


@st.composite
def placements(draw: st.DrawFn, layers: int, pp: int, vpp: int, schedule: str = "interleaved") -> list[list[int]]:
    """Layers of every chunk [stage][chunk], at least one each. dualpipe holds every part of the model twice."""
    if schedule == "dualpipe":
        one_way = draw(placements(layers, pp, 1))
        return [[one_way[p][0], one_way[pp - 1 - p][0]] for p in range(pp)]
    counts = [1] * (pp * vpp)
    for _ in range(layers - pp * vpp):
        counts[draw(st.integers(0, pp * vpp - 1))] += 1
    return [[counts[c * pp + p] for c in range(vpp)] for p in range(pp)]


CHOICES = (
    *("norm", "activation", "mla_up_proj", "core_attn", "permute", "moe_zero_memory_level0", "moe_zero_memory_level1"),
    *("mlp", "shared_experts", "moe", "full", "swap_attention", "swap_unpermute", "swap_moe"),
    *("mla_kv_up_proj", "swap_core_attn_out", "swap_activation", "swap_layer_input", "by_operator"),
)


@st.composite
def memory_choices(draw: st.DrawFn, per_chunk: list[list[int]]) -> dict[str, list[int]]:
    """Recompute and swap of each stage, the first layers first: at most two that free different tensors."""
    names = draw(
        st.sampled_from(
            [
                *((), ("norm", "mlp"), ("mla_up_proj", "swap_moe"), ("activation", "swap_unpermute")),
                *(("permute", "swap_attention"), ("core_attn", "shared_experts"), ("full", "swap_layer_input")),
                *((name,) for name in CHOICES),
            ]
        )
    )
    return {name: [draw(st.integers(0, sum(stage))) for stage in per_chunk] for name in names}
