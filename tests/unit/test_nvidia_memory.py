"""What stacks of NVIDIA keep, as counted in Megatron-LM's and Transformer Engine's own code.

Counts: Megatron-LM @d98e8a64 with the witness' stand-ins, one rank, kept tensors by shape. Experts: their input, the up
projection's output and the weighted activation; of the rows that return nothing but their map. Attention under context
parallelism: rotated queries, and keys and values in the buffer that travels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autodeploy.costs.workload.layers import layer_table
from autodeploy.costs.workload.operators import OperatorFeatures
from autodeploy.specs.presets import load_preset
from cost_models.hbm import OptimizerFormat
from tests.support.sharding import shard

NVIDIA = OperatorFeatures(slices_heads=True, rect_fa=True, weighted_experts=True)


def kept(model: str, kind: str, on: OperatorFeatures, **degrees: int) -> dict[str, float]:
    table = layer_table(load_preset(model), shard(**degrees), on, (kind, None))
    return {t.name: float(np.ravel(t.kept_bytes)[0]) for t in table.tensors}


@pytest.mark.parametrize(("model", "ep"), [("qwen3-30b-a3b", 8), ("deepseek-v3", 32), ("mixtral-8x7b", 4)])
def test_rows_that_return_weighted_leave_their_map_alone(model: str, ep: int) -> None:
    spec, tokens = load_preset(model), 4096
    weighted, apart = (kept(model, "moe", replace(NVIDIA, weighted_experts=on), ep=ep) for on in (True, False))
    assert weighted["unpermute_in"] == 8 * (spec.n_routed_experts or 0) * tokens
    assert apart["unpermute_in"] == 2 * spec.hidden_size * tokens * (spec.num_experts_per_tok or 0)
    assert {n for n in weighted if weighted[n] != apart[n]} == {"unpermute_in"}


@pytest.mark.parametrize(("model", "kind"), [("qwen3-30b-a3b", "moe"), ("llama3-8b", "dense")])
def test_an_8_bit_product_keeps_its_cast_alone(model: str, kind: str) -> None:
    wide, narrow = (kept(model, kind, replace(NVIDIA, input_bytes=size)) for size in (2.0, 1.0))
    halved = {"expert_in", "expert_activation_out"} if kind == "moe" else {"mlp_activation_out"}
    assert {n for n in wide if narrow[n] != wide[n]} == halved
    assert all(narrow[name] == wide[name] / 2 for name in halved)


@pytest.mark.parametrize("degrees", [{"cp": 2}, {"cp": 8}, {"cp": 4, "ulysses": 4}, {"cp": 4, "ulysses": 2, "tp": 2}])
def test_context_parallelism_keeps_copies_instead_of_the_joined_projection(degrees: dict[str, int]) -> None:
    model = load_preset("llama3-8b")
    of = kept("llama3-8b", "dense", NVIDIA, **degrees)
    tokens = 4096 // degrees["cp"]
    heads, keys = (n // degrees.get("tp", 1) for n in (model.num_attention_heads, model.num_key_value_heads))
    assert of["rotated"] + of["qkv"] == 2 * tokens * model.head_dim * (heads + 2 * keys)
    alone = kept("llama3-8b", "dense", NVIDIA)
    assert alone["qkv"] == 2 * 4096 * model.head_dim * (model.num_attention_heads + 2 * model.num_key_value_heads)


def test_a_norm_of_keys_holds_the_joined_projection() -> None:
    model = load_preset("qwen3-30b-a3b")
    width = (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
    assert kept("qwen3-30b-a3b", "moe", NVIDIA, cp=4)["qkv"] == 2 * 1024 * width


@pytest.mark.parametrize(("precision", "master"), [("bf16", 2.0), ("fp8", 4.0)])
def test_remainders_of_masters_are_kept_beside_16_bit_weights_alone(precision: str, master: float) -> None:
    on = frozenset({"o2_optimizer", "param_remainders"})
    assert OptimizerFormat.of(on, precision).master == master
    assert OptimizerFormat.of(on - {"param_remainders"}, precision).master == 4.0
