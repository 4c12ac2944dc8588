"""Memory choices of the accounting: what each frees, and what a backward pass runs once more for it."""

from __future__ import annotations

from tests.support.accounting.by_operator import ROWS

EXPERT_ACTIVATION = ("expert_activation_out", "expert_activation_unweighted")
EXPERT_ROWS = ("expert_in", "expert_up_out", *EXPERT_ACTIVATION)
EXPERT_MESSAGES = ("dispatch", "expert_gather")
SORTING = ("permute", "sort_by_expert", "rows_joined")
UP_ADAPTERS, DOWN_ADAPTERS = (
    tuple(f"expert_{way}_proj_lora_{part}" for part in ("down", "up", "add")) for way in ("up", "down")
)
SHARED_OPERATORS = (
    *("shared_up_proj", "shared_activation", "shared_down_proj"),
    *(f"lora_shared_{way}_proj_{part}" for way in ("up", "down") for part in ("down", "up", "merge", "add")),
)
SHARED_ROWS = (
    *("shared_up_out", "shared_activation_out"),
    *("lora_shared_up_proj_inner", "lora_shared_down_proj_inner"),
)
SHARED_MESSAGES = ("lora_shared_down_proj_scatter", "lora_shared_down_proj_reduce")

# Choice -> tensors that it frees, operators and messages that it runs once more. memory.md, section 2; MindSpeed.
RECOMPUTE: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "norm": (("attention_norm_out", "mlp_norm_out"), ("attention_norm", "mlp_norm"), ()),
    "activation": (
        ("mlp_activation_out", "shared_activation_out", *EXPERT_ACTIVATION),
        ("mlp_activation", "shared_activation", "expert_activation"),
        (),
    ),
    "by_operator": ROWS,
    "mla_up_proj": (
        ("latents_normed", "latent_q", "latent_kv", "latent_tables"),
        ("q_up_proj", "kv_up_proj", "rotary", "concat_and_pad"),
        ("latent_q_gather", "latent_kv_gather", "split_q", "split_kv", "split_key"),
    ),
    "mla_kv_up_proj": (("latent_kv",), ("kv_up_proj", "rotary", "concat_and_pad"), ("latent_kv_gather",)),
    "core_attn": (
        ("scores", "softmax_stats"),
        ("core_attention", "scores", "softmax_dropout", "weighted_values"),
        (),
    ),
    "permute": (("expert_in",), SORTING, EXPERT_MESSAGES),
    "moe_zero_memory_level0": (
        ("expert_in", *EXPERT_ACTIVATION),
        (*SORTING, "expert_activation"),
        EXPERT_MESSAGES,
    ),
    "moe_zero_memory_level1": (
        (*EXPERT_ROWS, "expert_up_proj_lora_inner"),
        (*SORTING, "expert_up_proj", *UP_ADAPTERS, "expert_activation"),
        EXPERT_MESSAGES,
    ),
    "mlp": (
        ("mlp_up_out", "mlp_activation_out", "lora_mlp_up_proj_inner", "lora_mlp_down_proj_inner"),
        (
            *("mlp_up_proj", "mlp_activation", "mlp_down_proj"),
            *("lora_mlp_up_proj_down", "lora_mlp_up_proj_up", "lora_mlp_up_proj_merge", "lora_mlp_up_proj_add"),
            *("lora_mlp_down_proj_down", "lora_mlp_down_proj_up", "lora_mlp_down_proj_merge", "lora_mlp_down_proj_add"),
        ),
        ("mlp_gather", "mlp_scatter", "mlp_reduce", "lora_mlp_down_proj_scatter", "lora_mlp_down_proj_reduce"),
    ),
    "moe": (
        (
            *("router_logits", "unpermute_in", *EXPERT_ROWS, *SHARED_ROWS),
            *("expert_up_proj_lora_inner", "expert_down_proj_lora_inner", "zero_in", "zero_unpermute_in"),
        ),
        (
            *("zero_permute", "zero_sort_by_expert", "zero_weights", "zero_sort_by_rank", "zero_unpermute"),
            *("router", "routing", *SORTING, "expert_up_proj", "expert_activation", "expert_down_proj"),
            *(
                "sort_by_rank",
                "unpermute",
                "rows_split",
                "tokens_turned",
                *UP_ADAPTERS,
                *DOWN_ADAPTERS,
                *SHARED_OPERATORS,
            ),
        ),
        (
            *(*EXPERT_MESSAGES, "combine", "expert_scatter", "mlp_gather", "mlp_scatter", *SHARED_MESSAGES),
            *("zero_dispatch", "zero_combine"),
        ),
    ),
    "shared_experts": (SHARED_ROWS, SHARED_OPERATORS, SHARED_MESSAGES),
}
SWAP = {
    "swap_attention": (
        *("attention_norm_out", "qkv", "rotated", "latent_q", "latent_kv"),
        *("attention_out", "attention_out_exchanged", "attention_out_padded", "softmax_stats"),
    ),
    "swap_core_attn_out": ("attention_out",),
    "swap_activation": ("mlp_activation_out", "shared_activation_out", *EXPERT_ACTIVATION),
    "swap_layer_input": ("attention_norm_in",),
    "swap_unpermute": ("unpermute_in",),
    "swap_moe": ("expert_in", "expert_up_out"),
}
