"""Facts of a spec that legality rules read beside the axes of a candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.specs.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec


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
        "exact_numerics": exact_numerics,
        "deterministic": deterministic,
        # Embedding, head and multi-token prediction can fill the first and the last chunk on their own.
        "free_chunks": 2,
        **{f"on_{name}": name in features for name in FEATURES},
        **{f"asked_{name}": name in asked for name in FEATURES},
    }
