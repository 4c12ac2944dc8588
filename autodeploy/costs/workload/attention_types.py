"""Types of attention as rows of a table: how a layer of each is named, and the keys that its queries see.

A type whose operators are not those of scores over keys has a file of its own (`linear_attention.py`), which
`layers.py` asks for its rows and parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from autodeploy.specs.attention import ATTENTION_KINDS, COMPRESSED, CSA, HCA, AttentionType

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.costs.workload.operators import ByOperator, MemoryChoices, OperatorFeatures, Rows, Sharding
    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Floats


# Of layers, beside what specs say of them: those that attend to the keys another layer's indexer chose.
SHARED_INDEX: Final = "shared_index_attention"
KindOfAttention = AttentionType | Literal["shared_index_attention"]


class LayerKind(NamedTuple):
    """Layers that cost the same: dense or moe, the attention's window or chunk in tokens, and its type."""

    mlp: str
    window: int | None = None
    attention: KindOfAttention = "full_attention"


@dataclass(frozen=True, slots=True)
class AttentionCosts:
    """Operators, tensors, exchanges and FLOPs of a kind of attention (`specs.attention.AttentionKind`).

    rows : operators, kept tensors and exchanges of a layer, from the norm's output to the residual.
    params : of a layer on a rank, without the norms around it: those that are whole on every rank, and all others.
    score_flops : of one token forward, of the model, the kind of layer, tokens of the sequence, whether attention is
        causal, and the keys that a query sees at most where documents are packed.
    cached : bytes of a token and layer while generating, on each of so many ranks, and the widths that are multiplied.
    gathers_latents : tensor parallelism gathers latents of queries, where there are, and no hidden states.
    shares : what recomputation by operator leaves of a dense layer that has it; None: nobody knows.
    choices : memory choices and what they touch.
    """

    rows: Callable[[ModelSpec, Sharding, OperatorFeatures, LayerKind], Rows]
    params: Callable[[ModelSpec, Sharding, OperatorFeatures, LayerKind], tuple[int, Floats]]
    score_flops: Callable[[ModelSpec, LayerKind, float, bool, float | None], float]
    cached: Callable[[ModelSpec, int], tuple[float, float, float]] | None = None
    gathers_latents: bool = False
    shares: Callable[[ModelSpec, Sharding, OperatorFeatures], ByOperator | None] | None = None
    choices: MemoryChoices = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """suffix : of the name of a layer's table. keys : mean keys of a query, of the sequence and its window."""

    suffix: str
    keys: Callable[[float, int | None], float]


def score_columns(seq: float, window: int | None) -> float:
    """Mean keys a query attends to: half the sequence under a causal mask, fewer with a sliding window.

    s / 2 for a causal triangle; a window w keeps w - w^2 / (2 s).
    """
    if window is None or window >= seq:
        return seq / 2.0
    return window - window * window / (2.0 * seq)


def chunk_columns(seq: float, chunk: int | None) -> float:
    """Mean keys of a query that sees what is before it in its own chunk: c / 2, less in the last, cut chunk."""
    if chunk is None or chunk >= seq:
        return seq / 2.0
    whole, rest = divmod(seq, chunk)
    return float((whole * chunk * chunk + rest * rest) / (2.0 * seq))


def no_columns(seq: float, window: int | None) -> float:
    """Linear attention has no scores over keys of other chunks."""
    return 0.0


ATTENTION_TYPES: dict[KindOfAttention, AttentionRow] = {
    "full_attention": AttentionRow("", score_columns),
    "sliding_attention": AttentionRow("_window", score_columns),
    "chunked_attention": AttentionRow("_chunk", chunk_columns),
    "linear_attention": AttentionRow("_linear", no_columns),
    SHARED_INDEX: AttentionRow("_shared_index", score_columns),
    # Entries of several tokens: what a query sees of them is of their sizes (`compressed_attention.seen`).
    CSA: AttentionRow("_csa", score_columns),
    HCA: AttentionRow("_hca", score_columns),
}


def unmeasured_types(model: ModelSpec) -> set[str]:
    """Layers of the model that no measured run covers, as errors of predictions name it."""
    kinds = (kind.field for kind in ATTENTION_KINDS if not kind.plain)
    fields = {
        **{name: name for name in (*kinds, "sparse_attention", "hyper_connections")},
        **{"chunked_attention": "attention_chunk_size", "shortcut_experts": "shortcut_moe"},
        "zero_experts": "n_zero_experts",
    }
    return {name for name, field in fields.items() if getattr(model, field)}


def mean_keys(kind: LayerKind, seq: float) -> float:
    """Mean keys that a query of a layer of the kind attends to."""
    return ATTENTION_TYPES[kind.attention].keys(seq, kind.window)


def shape_of(model: ModelSpec, kind: LayerKind) -> ModelSpec:
    """The model as a layer of the kind is: with the heads of its windows, or without the indexer that another has."""
    if kind.attention == SHARED_INDEX:
        return model.shared_index_shape
    windowed = kind.window is not None and kind.attention == "full_attention"
    return model.sliding_shape if windowed else model


def table_name(kind: LayerKind) -> str:
    """Name of the table of a layer of the kind."""
    row = ATTENTION_TYPES[kind.attention]
    return kind.mlp + (row.suffix or ("" if kind.window is None else "_window"))


def kind_with(model: ModelSpec, facts: tuple[bool, bool, AttentionType]) -> LayerKind:
    """The kind of a layer with these facts."""
    moe, shares_index, attention = facts
    mlp = "moe" if moe else "dense"
    return LayerKind(mlp, None, SHARED_INDEX) if shares_index else of_attention(model, mlp, attention)


def kind_of(model: ModelSpec, layer: int) -> LayerKind:
    """The kind of the layer (from 0)."""
    return kind_with(model, model.layer_facts(layer))


def of_attention(model: ModelSpec, mlp: str, attention: AttentionType) -> LayerKind:
    """The kind of layers with attention of the type."""
    window = model.sliding_window if attention in COMPRESSED else model.window_of(attention)
    # A window is a number of keys alone: full attention is one without.
    return LayerKind(mlp, window, "full_attention" if attention == "sliding_attention" else attention)
