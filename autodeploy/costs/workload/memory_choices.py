"""What can be recomputed or swapped instead of kept: which tensors a choice frees and what it replays.

Source: MindSpeed and Megatron-LM recompute modules, MindSpeed moe-zero-memory, swap-attention and unpermute swap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """One choice per layer. Two choices that free the same tensor exclude each other.

    own_layer : a swap that the framework waits for at the end of its layer's forward pass, and starts to bring back at
        beginning of its layer's backward pass.
    shares : it frees and replays these tensors and operators in part (`LayerTable.by_operator`).
    """

    name: str
    kind: Literal["recompute", "swap"]
    frees: tuple[str, ...]
    replays: tuple[str, ...] = ()
    replays_exchanges: tuple[str, ...] = ()
    own_layer: bool = False
    shares: bool = False

    def replays_exchange(self, name: str) -> bool:
        """Whether the backward pass repeats that exchange of the forward pass."""
        return EVERYTHING in self.replays_exchanges or name in self.replays_exchanges


LAYER_INPUT = "attention_norm_in"
EVERYTHING = "*"  # all tensors but the layer's input; all operators and forward exchanges

_EXPERT_ACTIVATION = ("expert_activation_out", "expert_activation_unweighted")
_EXPERT_TENSORS = ("expert_in", "expert_up_out", *_EXPERT_ACTIVATION)


def _beside(matrices: tuple[str, ...]) -> tuple[str, ...]:
    """Operators of the forward pass of adapters beside matrices that tensor parallelism cuts."""
    return tuple(f"lora_{matrix}_{part}" for matrix in matrices for part in ("down", "up", "merge", "add"))


def _beside_experts(matrix: str) -> tuple[str, ...]:
    """Those of adapters beside the experts."""
    return tuple(f"{matrix}_lora_{part}" for part in ("down", "up", "add"))


_MLP_ADAPTERS = _beside(("mlp_up_proj", "mlp_down_proj"))
_UP_ADAPTERS, _DOWN_ADAPTERS = _beside_experts("expert_up_proj"), _beside_experts("expert_down_proj")
_SHARED = (*("shared_up_out", "shared_activation_out", "lora_shared_up_proj_inner", "lora_shared_down_proj_inner"),)
_SHARED_REPLAYS = (
    *("shared_up_proj", "shared_activation", "shared_down_proj"),
    *_beside(("shared_up_proj", "shared_down_proj")),
)
_SHARED_EXCHANGES = ("lora_shared_down_proj_scatter", "lora_shared_down_proj_reduce")

CHOICES: dict[str, MemoryChoice] = {
    choice.name: choice
    for choice in (
        MemoryChoice("full", "recompute", (EVERYTHING,), (EVERYTHING,), (EVERYTHING,)),
        MemoryChoice("norm", "recompute", ("attention_norm_out", "mlp_norm_out"), ("attention_norm", "mlp_norm")),
        MemoryChoice(
            "activation",
            "recompute",
            ("mlp_activation_out", "shared_activation_out", *_EXPERT_ACTIVATION),
            ("mlp_activation", "shared_activation", "expert_activation"),
        ),
        # PyTorch's selective checkpointing by operator: every second product, and all that is no product.
        MemoryChoice(
            "by_operator",
            "recompute",
            (
                *("attention_norm_cast", "attention_norm_out", "qkv", "rotated", "qk_norm_in"),
                *("mlp_norm_in", "mlp_norm_cast", "mlp_norm_out", "mlp_up_out", "mlp_activation_out"),
                *("attention_gathered", "mlp_gathered"),
            ),
            (
                *("attention_norm", "qkv_proj", "qkv_split", "qk_norm", "rotary", "attention_out_proj"),
                *("mlp_norm", "mlp_up_proj", "mlp_activation"),
            ),
            ("attention_gather", "attention_reduce", "mlp_gather"),
            shares=True,
        ),
        MemoryChoice(
            "mla_up_proj",
            "recompute",
            ("latent_q", "latent_kv"),
            ("q_up_proj", "kv_up_proj", "rotary", "concat_and_pad"),
            ("latent_gather",),
        ),
        # Keys and values without queries: the larger part of the bytes for the smaller products.
        MemoryChoice(
            "mla_kv_up_proj",
            "recompute",
            ("latent_kv",),
            ("kv_up_proj", "rotary", "concat_and_pad"),
            ("latent_gather",),
        ),
        MemoryChoice(
            "core_attn",
            "recompute",
            ("scores", "softmax_stats"),
            ("core_attention", "scores", "softmax_dropout", "weighted_values"),
        ),
        MemoryChoice(
            "permute", "recompute", ("expert_in",), ("permute", "sort_by_expert"), ("dispatch", "expert_gather")
        ),
        MemoryChoice(
            "moe_zero_memory_level0",
            "recompute",
            ("expert_in", *_EXPERT_ACTIVATION),
            ("permute", "sort_by_expert", "expert_activation"),
            ("dispatch", "expert_gather"),
        ),
        MemoryChoice(
            "moe_zero_memory_level1",
            "recompute",
            (*_EXPERT_TENSORS, "expert_up_proj_lora_inner"),
            ("permute", "sort_by_expert", "expert_up_proj", *_UP_ADAPTERS, "expert_activation"),
            ("dispatch", "expert_gather"),
        ),
        MemoryChoice(
            "mlp",
            "recompute",
            ("mlp_up_out", "mlp_activation_out", "lora_mlp_up_proj_inner", "lora_mlp_down_proj_inner"),
            ("mlp_up_proj", "mlp_activation", "mlp_down_proj", *_MLP_ADAPTERS),
            ("mlp_gather", "mlp_scatter", "mlp_reduce", "lora_mlp_down_proj_scatter", "lora_mlp_down_proj_reduce"),
        ),
        MemoryChoice(
            "moe",
            "recompute",
            (
                *("router_logits", "unpermute_in", *_EXPERT_TENSORS, *_SHARED),
                *("expert_up_proj_lora_inner", "expert_down_proj_lora_inner"),
                *("zero_in", "zero_unpermute_in"),
            ),
            (
                *("zero_permute", "zero_sort_by_expert", "zero_weights", "zero_sort_by_rank", "zero_unpermute"),
                *("router", "routing", "permute", "sort_by_expert", "expert_up_proj", "expert_activation"),
                *("expert_down_proj", "sort_by_rank", "unpermute"),
                *(*_UP_ADAPTERS, *_DOWN_ADAPTERS, *_SHARED_REPLAYS),
            ),
            (
                *("dispatch", "combine", "expert_gather", "expert_scatter", "mlp_gather", "mlp_scatter"),
                *("zero_dispatch", "zero_combine", *_SHARED_EXCHANGES),
            ),
        ),
        MemoryChoice("shared_experts", "recompute", _SHARED, _SHARED_REPLAYS, _SHARED_EXCHANGES),
        MemoryChoice(
            "swap_attention",
            "swap",
            (
                *("attention_norm_out", "qkv", "rotated", "latent_q", "latent_kv"),
                *("attention_out", "attention_out_exchanged", "attention_out_padded", "softmax_stats"),
            ),
            own_layer=True,
        ),
        MemoryChoice("swap_core_attn_out", "swap", ("attention_out", "attention_out_padded", "softmax_stats")),
        MemoryChoice("swap_activation", "swap", ("mlp_activation_out", "shared_activation_out", *_EXPERT_ACTIVATION)),
        MemoryChoice("swap_layer_input", "swap", (LAYER_INPUT,)),
        MemoryChoice("swap_unpermute", "swap", ("unpermute_in",)),
        MemoryChoice("swap_moe", "swap", ("expert_in", "expert_up_out")),
    )
}


def freed_by(choice: MemoryChoice, kept: Iterable[str]) -> list[str]:
    """Names of the kept tensors that a choice frees."""
    if EVERYTHING in choice.frees:
        return [name for name in kept if name != LAYER_INPUT]
    return [name for name in choice.frees if name in kept]


@dataclass(frozen=True, slots=True)
class Touched:
    """What a choice frees of a layer's kept tensors, and the operators that it runs again, in the layer's order."""

    choice: MemoryChoice
    freed: tuple[str, ...]
    replayed: tuple[str, ...]


@lru_cache(maxsize=256)
def touched_by_choices(kept: tuple[str, ...], operators: tuple[str, ...], *, shares: bool) -> tuple[Touched, ...]:
    """The choices that free something of a layer with these tensors and operators.

    shares : what recomputation by operator frees and replays in part is known.
    """
    touched = [
        Touched(
            choice,
            tuple(freed_by(choice, kept)),
            tuple(name for name in operators if EVERYTHING in choice.replays or name in choice.replays),
        )
        for choice in CHOICES.values()
        if shares or not choice.shares
    ]
    return tuple(each for each in touched if each.freed)


# Name in a strategy's swap -> choice.
SWAP_NAMES: dict[str, str] = {
    name: f"swap_{name}" for name in ("attention", "core_attn_out", "unpermute", "moe", "activation", "layer_input")
}


@cache
def compete(first: str, second: str) -> bool:
    """Whether two choices free a tensor in common: a layer uses at most one of them."""
    a, b = set(CHOICES[first].frees), set(CHOICES[second].frees)
    if EVERYTHING in a or EVERYTHING in b:
        return {LAYER_INPUT} not in (a, b)
    return bool(a & b)
