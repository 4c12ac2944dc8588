"""Words that published runs use, and the vocabulary's word for each.

Keys are spelled as `key` spells them. What a table maps silently means the same; a *nearest* word means something else
that is modelled, and whoever reads it says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autodeploy.stack.memory_choices import RECOMPUTED, SWAPPED
from hardware_profiles.loader import list_profiles, load_profile
from hardware_profiles.schema import RecordNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_WHOLE = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,12})(k?)", re.ASCII | re.IGNORECASE)
_NOT_A_LETTER = re.compile(r"[^a-z0-9]+")


def key(text: object) -> str:
    """`flash_attn` of Flash-Attn, --flash-attn and " flash attn ": lower case, one underline between words."""
    return _NOT_A_LETTER.sub("_", str(text).lower()).strip("_")


def whole(value: object) -> object:
    """The whole number that a text says, 32K being 32,768; anything else as it is."""
    match = _WHOLE.fullmatch(value.strip()) if isinstance(value, str) else None
    return value if match is None else int(match[1].replace(",", "")) * (1024 if match[2] else 1)


PRECISIONS = {
    **dict.fromkeys(("bf16", "bfloat16", "bf16_mixed", "bf16_amp"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "fp16_mixed", "fp16_amp"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "tf32"), "fp32"),
    **dict.fromkeys(("fp8", "fp8_hybrid", "fp8_e4m3", "fp8_mixed", "bf16_fp8"), "fp8"),
    # Scaling recipes of Transformer Engine: delayed, current, subchannel (blocks) and MX.
    **dict.fromkeys(("fp8_ds", "fp8_cs", "fp8_sc", "fp8_mx", "mxfp8", "fp8_blockwise", "fp8_delayed"), "fp8"),
}
NEAREST_PRECISIONS = {name: "fp8" for name in ("nvfp4", "mxfp4", "fp4", "hif8", "int8")}

ACTIVATIONS = {
    **dict.fromkeys(("silu", "swiglu", "swish", "silu_glu", "fast_swiglu"), "silu"),
    **dict.fromkeys(("gelu", "gelu_new", "gelu_tanh", "gelu_pytorch_tanh", "quick_gelu", "fast_gelu"), "gelu"),
    **dict.fromkeys(("geglu", "gelu_glu", "gated_gelu"), "geglu"),
    # Plain activations of two matrices: what they compute an element does not show beside their bytes.
    **dict.fromkeys(("relu", "relu2", "squared_relu"), "gelu"),
}

SCHEDULES = {
    **dict.fromkeys(("1f1b", "none", "no_pipeline", "one_f_one_b", "pipedream_flush"), "1f1b"),
    **dict.fromkeys(("interleaved", "vpp", "interleaved_1f1b", "1f1b_interleaved", "virtual_pipeline"), "interleaved"),
    **dict.fromkeys(("adaptive_pipe", "moe_fb_overlap", "1f1b_overlap"), "adaptive_pipe"),
    "dualpipev": "dualpipev",
    "dualpipe": "dualpipe",
}
# Splitting the backward pass fills bubbles that these have.
NEAREST_SCHEDULES = {
    **dict.fromkeys(("gpipe", "zero_bubble", "zb", "zb_h1", "seqpipe", "nanopipe"), "1f1b"),
    **dict.fromkeys(("zero_bubble_v", "zbv", "zb_v", "seqvpp", "seqsmartvpp", "ripipe"), "interleaved"),
}

DISPATCHERS = {
    **dict.fromkeys(("alltoall", "all_to_all", "a2a"), "alltoall"),
    **dict.fromkeys(("alltoall_seq", "all_to_all_seq"), "alltoall_seq"),
    **dict.fromkeys(("allgather", "all_gather"), "allgather"),
    **dict.fromkeys(("hierarchical", "alltoall_deredundency", "alltoall_zero_redundancy"), "hierarchical"),
    **dict.fromkeys(("deepep", "hybridep", "flex"), "deepep"),  # these send a token once to each node
}

CP_ALGOS = {
    **dict.fromkeys(("ring", "megatron_cp_algo", "p2p", "colossalai_cp", "ring_attention", "double_ring"), "ring"),
    **dict.fromkeys(("ulysses", "ulysses_cp_algo", "ulysses_cp", "a2a"), "ulysses"),
    **dict.fromkeys(("hybrid", "hybrid_cp_algo", "hybrid_cp", "a2a_p2p"), "hybrid"),
}
NEAREST_CP_ALGOS = dict.fromkeys(
    ("adaptive_cp_algo", "hybrid_adaptive_cp_algo", "kvallgather_cp_algo", "all_gather", "allgather"), "ring"
)

RECOMPUTE_MODULES = {word: name for name, each in RECOMPUTED.items() for word in (name, *each.words)}
GRANULARITIES = {
    **dict.fromkeys(("none", "no", "off", "false", ""), "none"),
    **dict.fromkeys(("full", "block", "uniform", "true", "all"), "full"),
    **dict.fromkeys(("selective", "partial", "select"), "selective"),
}
SWAPS = {word: name for name, each in SWAPPED.items() for word in (name, *each.words)}

# Names of frameworks' own configurations for the model's fields.
MODEL_FIELDS = {
    **dict.fromkeys(("num_layers", "n_layers", "num_hidden_layer"), "num_hidden_layers"),
    **dict.fromkeys(("n_heads", "num_heads"), "num_attention_heads"),
    **dict.fromkeys(("num_query_groups", "n_kv_heads", "num_kv_heads"), "num_key_value_heads"),
    "ffn_hidden_size": "intermediate_size",
    "padded_vocab_size": "vocab_size",
    "kv_channels": "head_dim",
    **dict.fromkeys(("num_experts", "num_local_experts", "num_moe_experts"), "n_routed_experts"),
    **dict.fromkeys(("moe_router_topk", "moe_topk", "top_k", "topk"), "num_experts_per_tok"),
    "moe_ffn_hidden_size": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts",
    "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
    "mtp_num_layers": "num_nextn_predict_layers",
    "qk_layernorm": "qk_norm",
}
# Published models whose head is their embedding, by width, heads and intermediate width. Source: their config.json.
TIED_EMBEDDINGS = frozenset(
    {
        *((896, 14, 4864), (1536, 12, 8960), (2048, 16, 11_008)),  # Qwen2.5 0.5B, 1.5B, 3B
        *((1024, 16, 3072), (2048, 16, 6144), (2560, 32, 9728)),  # Qwen3 0.6B, 1.7B, 4B
        *((2048, 32, 8192), (3072, 24, 8192)),  # Llama 3.2 1B, 3B
        *((2048, 8, 16_384), (3072, 16, 24_576), (2304, 8, 9216), (3584, 16, 14_336), (4608, 32, 36_864)),  # Gemma, 2
        *((2304, 36, 5760), (6400, 80, 18_304)),  # MiniCPM-2B, Hunyuan-Large
    }
)
# Facts about a run that change no time and no byte of it.
IDLE = frozenset(
    {
        *("total_params", "total_params_b", "params", "params_b", "active_params_b", "n_params", "num_params"),
        *("max_position_embeddings", "rope_theta", "rms_norm_eps", "position_embedding_type", "architecture"),
        *("method", "recompute_method", "num_nodes", "nodes", "gpus_per_node", "npus_per_node", "interconnect"),
        *("train_iters", "steps", "warmup_steps", "optimizer", "dataset", "seed", "note", "notes", "comment", "source"),
        *("data_parallel", "num_micro_batches", "micro_batches", "world_size"),
    }
)

FEATURES = {
    **dict.fromkeys(("flash_attn", "flash_attention_2", "fa", "fa2", "flash_attn_v2"), "flash_attention"),
    **dict.fromkeys(("fused_rms_norm", "fused_layernorm", "fused_layer_norm", "fused_norm"), "fused_rmsnorm"),
    **dict.fromkeys(("bias_swiglu_fusion", "swiglu_fusion"), "fused_swiglu"),
    **dict.fromkeys(("gmm", "moe_grouped_gemm", "group_gemm", "groupgemm"), "grouped_gemm"),
    "ascend_mc2": "mc2",
    **dict.fromkeys(("ascend_coc", "tp_comm_overlap"), "coc"),
    "coc_fused_kernel": "coc_kernel",
    **dict.fromkeys(("overlap_grad", "grad_reduce_overlap", "async_ddp", "ddp_overlap"), "overlap_grad_reduce"),
    **dict.fromkeys(("overlap_param", "param_gather_overlap"), "overlap_param_gather"),
    **dict.fromkeys(("moe_alltoall_overlap_comm", "moe_allgather_overlap_comm"), "moe_alltoall_overlap"),
    "moe_shared_expert_overlap": "shared_expert_overlap",
    **dict.fromkeys(("moe_fb_overlap", "overlap_moe_expert_parallel_comm", "1f1b_overlap"), "adaptive_pipe"),
    **dict.fromkeys(("a2a_overlap", "moe_a2a_overlap", "ep_a2a_overlap"), "adaptive_pipe"),
    "moe_tp_extend_ep": "tp_extend_ep",
    "moe_hierarchical_alltoallv": "hierarchical_a2a",
    **dict.fromkeys(("moe_permute_fusion", "permute_fusion", "fused_permute"), "fused_operators"),
    "fused_moe_token_permute_and_unpermute": "fused_operators",
    "use_fused_moe_token_permute_and_unpermute": "fused_operators",
    **dict.fromkeys(("moe_router_fusion", "router_fusion"), "fused_router"),
    **dict.fromkeys(("moe_permutation_async_comm", "permutation_async_comm"), "async_permutation"),
    **dict.fromkeys(("cuda_graph", "cudagraph", "cudagraphs", "partial_cuda_graph", "te_cuda_graph"), "cuda_graphs"),
    **dict.fromkeys(("cuda_graph_moe", "cuda_graph_attn", "moe_cuda_graph"), "cuda_graphs"),
    **dict.fromkeys(("fused_rotary_pos_emb", "fused_rope", "rope_fusion"), "fused_rotary"),
    "gradient_accumulation_fusion": "fused_gradient_accumulation",
    "gemm_gradient_accumulation_fusion": "fused_expert_accumulation",
    "no_gradient_accumulation_fusion": "unfused_gradient_accumulation",
    **dict.fromkeys(("cross_entropy_loss_fusion", "cross_entropy_fusion"), "fused_cross_entropy"),
    **dict.fromkeys(("o2_gradient", "grad_reduce_in_bf16", "bf16_grads", "bf16_grad_reduce"), "bf16_gradients"),
    **dict.fromkeys(("fp8_param_gather", "fp8_params", "fp8_param", "fp8_primary_weights"), "fp8_weights"),
    **dict.fromkeys(("no_expandable_segments", "expandable_segments_false"), "fixed_segments"),
    **dict.fromkeys(("bf16_moments", "bf16_optimizer_states"), "precision_aware_optimizer"),
    **dict.fromkeys(("custom_fsdp", "torch_fsdp2", "fsdp2", "zero3", "zero_3", "megatron_fsdp"), "fsdp"),
    **dict.fromkeys(("hybridep", "flex", "deduplicated_dispatch"), "deepep"),
    **dict.fromkeys(("ulysses_cp", "ulysses_cp_algo"), "ulysses"),
    **dict.fromkeys(("ring_attention", "megatron_cp_algo"), "ring"),
    "hybrid_cp_algo": "hybrid_cp",
}
# What the strategy's own fields say.
SAID_BY_FIELDS = frozenset(
    {
        *("sequence_parallel", "sp", "distributed_optimizer", "zero1", "zero_1", "interleaved", "vpp", "cp"),
        *("expandable_segments", "expandable_segments_true"),  # what is counted on where nothing is said
        *("context_parallel", "recompute", "full_recompute", "swiglu", "tensor_parallel", "pipeline_parallel"),
    }
)


# Which profile and device a published run means.
def profile_named(name: str) -> tuple[str | None, bool]:
    """The shipped profile that a name means, and whether it means that one; (None, False) without any near."""
    if name in list_profiles() or name.endswith((".yaml", ".yml")) or "/" in name:
        return name, True
    word = key(name)
    spelled = {key(shipped): shipped for shipped in list_profiles()}
    if word in spelled:
        return spelled[word], True
    names = _record_names()
    if profile := _match(word, {name: each.same for name, each in names.items()}):
        return profile, True
    # The profile whose chip is most alike: of its generation first, then of its maker.
    nearest = _match(word, {name: each.generation for name, each in names.items()})
    return nearest or _match(word, {name: each.maker for name, each in names.items()}), False


def profile_of_device(device: str) -> str | None:
    """The shipped profile that has a device."""
    return next((p for p in list_profiles() if device_named(p, device)[1]), None)


def device_named(profile: str, name: str) -> tuple[str | None, bool]:
    """The device of a shipped profile that a name means, and whether it means that one; None: the profile's default."""
    grades = _devices(profile)
    word = key(name)
    for grade_name in grades:
        if word in {
            key(grade_name),
            f"ascend{key(grade_name)}",
            f"ascend_{key(grade_name)}",
            f"nvidia_{key(grade_name)}",
        }:
            return grade_name, True
    names = _record_names().get(profile, RecordNames())
    if grade := _match(word, names.grades):
        return grade, True
    if len(grades) == 1 and profile_named(name) == (profile, True):
        return grades[0], True
    return _match(word, names.nearest_grades), False


def _devices(profile: str) -> tuple[str, ...]:
    return tuple(load_profile(profile, calibrated=False).devices) if profile in list_profiles() else ()


def _record_names() -> dict[str, RecordNames]:
    """Under which names records know each profile; each profile's own file says it."""
    return {name: load_profile(name, calibrated=False).document.record_names for name in list_profiles()}


def _match(word: str, patterns: Mapping[str, Iterable[str]]) -> str | None:
    matches = (
        name for name, patterns_of in patterns.items() if any(re.fullmatch(pattern, word) for pattern in patterns_of)
    )
    return next(matches, None)
