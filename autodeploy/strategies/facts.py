"""Facts of a spec that legality rules read beside the axes of a candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.specs.features import FEATURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.model import ModelSpec

# What `placed_facts` says, where layers are not placed yet.
NOT_PLACED: dict[str, Any] = {"empty_chunks": 0, "bare_chunks": 0, "padded_layers": 0}


def facts_of(
    model: ModelSpec,
    *,
    world: int,
    seq_length: int,
    global_batch: int,
    node_ranks: int,
    tp_limit: int,
    features: set[str],
    exact_numerics: bool = False,
    deterministic: bool = False,
    asked: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Names and values that rules may read.

    Parameters
    ----------
    world : ranks. node_ranks : ranks of a node. tp_limit : largest tensor parallel group inside one node.
    features : names of the features that are on.
    exact_numerics : sums in the order of the plain model only. deterministic : the same sums in every run.
    asked : features that the spec switches on, not merely leaves at auto: a strategy has to use them.
    """
    return {
        "world": world,
        "node_ranks": node_ranks,
        "tp_limit": tp_limit,
        "seq_length": seq_length,
        "global_batch": global_batch,
        "heads": model.num_attention_heads,
        "kv_heads": model.num_key_value_heads,
        "mla": model.is_mla,
        "moe": model.is_moe,
        "tied": model.tie_word_embeddings,
        "experts": model.n_routed_experts or 1,
        "expert_width": model.moe_intermediate_size or 0,
        "layers": model.num_hidden_layers,
        "dense_layers": model.first_k_dense_replace if model.is_moe else 0,
        "exact_numerics": exact_numerics,
        "deterministic": deterministic,
        # Embedding, head and multi-token prediction can fill the first and the last chunk on their own.
        "free_chunks": 2,
        **NOT_PLACED,
        **{f"on_{name}": name in features for name in FEATURES},
        **{f"asked_{name}": name in asked for name in FEATURES},
    }


def placed_facts(chunks: Sequence[int]) -> dict[str, Any]:
    """Names and values that rules may read where every chunk's layers are known, in the order a token meets them.

    empty_chunks : without a layer. bare_chunks : those of them that only a layout can say: padding can empty the last
        chunk alone, and where all others are alike. padded_layers : layers with padding, 0 where a layout says them.
    """
    *others, last = chunks
    padded = len(set(others)) <= 1 and last <= max(others, default=last)
    empty = sum(layers == 0 for layers in chunks)
    return {
        "empty_chunks": empty,
        "bare_chunks": empty - (padded and last == 0),
        "padded_layers": max(chunks) * len(chunks) if padded else 0,
    }
