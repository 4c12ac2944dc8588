"""Model FLOPs: what the mathematics of a training step needs, whatever the hardware repeats or pads."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

from autodeploy.costs.workload.attention_types import kind_of
from autodeploy.costs.workload.kinds import costs_of
from autodeploy.costs.workload.layers import last_kind
from autodeploy.specs.model_rules import MODULE

if TYPE_CHECKING:
    from autodeploy.costs.workload.attention_types import LayerKind
    from autodeploy.specs.model import ModelSpec

CONVENTION = "causal"


@lru_cache(maxsize=256)
def forward_flops_per_token(
    model: ModelSpec, seq_length: int, *, causal: bool = True, keys: float | None = None
) -> float:
    """FLOPs of the forward pass of one token.

    Two per active weight of every matrix (embedding lookups and norms none, the output head once for the model and once
    for each prediction module), and for attention scores and values 2 (d_qk + d_v) heads times the mean keys a causal
    query sees: half the sequence. Without `causal` every query is counted against the whole sequence, as some published
    utilisations do. Of linear attention the products of its chunks count, of an indexer its scores and the chosen keys.

    keys : that a query sees at most in the mean, where documents are packed.
    """
    modules = model.num_nextn_predict_layers

    @cache  # most layers are of one kind
    def score_flops(kind: LayerKind) -> float:
        return costs_of(model, kind).score_flops(model, kind, seq_length, causal, keys)

    experts = model.computing_experts_per_tok
    weights = sum(model.layer_matrix_params(layer, experts) for layer in range(model.num_hidden_layers))
    weights += (1 + modules) * (model.vocab_size * model.hidden_size + model.streams.head_matrix)
    weights += modules * MODULE.matrices(model, experts)
    scores = sum(score_flops(kind_of(model, layer)) for layer in range(model.num_hidden_layers))
    scores += modules * score_flops(last_kind(model))
    return 2.0 * weights + scores


def step_flops_per_token(
    model: ModelSpec,
    seq_length: int,
    *,
    causal: bool = True,
    adapter_params: int | None = None,
    reference: bool = False,
    keys: float | None = None,
) -> float:
    """Model FLOPs of a training step for one token: forward once, backward twice.

    adapter_params : parameters of adapters beside a frozen model; None where all of it is trained. A frozen weight has
    no gradient, 2 FLOPs less; a parameter of an adapter takes 6. reference : a frozen copy of the model reads it too.
    """
    passes = 4.0 if reference else 3.0
    whole = passes * forward_flops_per_token(model, seq_length, causal=causal, keys=keys)
    if adapter_params is None:
        return whole
    experts = model.computing_experts_per_tok
    frozen = sum(model.layer_matrix_params(layer, experts) for layer in range(model.num_hidden_layers))
    frozen += model.vocab_size * model.hidden_size
    return whole - 2.0 * frozen + 6.0 * adapter_params


def mfu(
    model: ModelSpec,
    seq_length: int,
    tokens_per_s_per_rank: float,
    peak_flops: float,
    *,
    causal: bool = True,
    adapter_params: int | None = None,
    reference: bool = False,
    keys: float | None = None,
) -> float:
    """Model FLOPs utilization (MFU): share of the peak that the FLOPs of `step_flops_per_token` reach."""
    flops = step_flops_per_token(
        model, seq_length, causal=causal, adapter_params=adapter_params, reference=reference, keys=keys
    )
    return flops * tokens_per_s_per_rank / peak_flops
