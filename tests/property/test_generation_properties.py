"""Decoding and the operator tables of training count the same operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.costs.post_training.generator import generator_of
from autodeploy.costs.workload.attention_types import unmeasured_types
from autodeploy.costs.workload.generation import FUSED, sharding
from autodeploy.costs.workload.layers import head_table, layer_kinds, layer_table
from autodeploy.costs.workload.operators import MATRIX_KINDS
from autodeploy.kit.errors import UnsupportedError
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset, preset_names
from autodeploy.specs.rl import GenerationLayout
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from cost_models.generation import Generation

H100 = load_profile("nvidia-h100")


def table_flops(model: ModelSpec, tokens: float, seq_length: float, tp: int) -> tuple[float, float]:
    """FLOPs of a forward pass on a rank over tokens in sequences of a length: of products, of attention."""
    shard = sharding(tp, 1, tokens, seq_length)
    tables = [(layer_table(model, shard, FUSED, kind), count) for kind, count in layer_kinds(model)]
    linear = attention = 0.0
    for table, count in [*tables, (head_table(model, shard, FUSED), 1)]:
        for op in table.operators:
            if op.kind in MATRIX_KINDS:
                linear += count * float(np.max(2.0 * op.rows * op.columns * op.depth * op.groups))
            elif op.kind == "attention":
                attention += count * float(np.max(op.flops))
    return linear, attention


REFUSED = [name for name in preset_names() if unmeasured_types(load_preset(name))]


@pytest.mark.parametrize("name", REFUSED)
def test_generation_of_attention_that_it_has_no_cache_for_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"not modelled yet: (\w+ attention|shortcut experts)"):
        generator_of(load_preset(name), H100, H100.device(), GenerationLayout(tp=1))


def decode_flops(model: Generation, batch: int, context: int) -> float:
    """FLOPs of a decoding step on one device: two for each weight and row, and attention over all that is kept."""
    linear = sum(2.0 * batch * p.columns * p.depth * p.layers * p.rows_per_token for p in model.products)
    widths = ((cache, cache.qk_dim + cache.v_dim) for cache in model.caches)
    attention = sum(2.0 * batch * c.layers * c.heads * float(c.kept(context)) * width for c, width in widths)
    return linear + attention


@pytest.mark.parametrize("name", [name for name in preset_names() if name not in REFUSED])
@settings(max_examples=4, deadline=None)
@given(batch=st.integers(1, 512), context=st.integers(1, 65_536), log_tp=st.integers(0, 3))
def test_a_token_over_a_context_has_the_forward_pass_s_operations(
    name: str, batch: int, context: int, log_tp: int
) -> None:
    """Sequences of 2 c tokens see c keys in the mean: as many rows, each over the context that decoding reads."""
    model = load_preset(name)
    tp = min(2**log_tp, model.num_attention_heads)
    if model.sliding_window is not None:  # a mean over a sequence is not what its last token sees
        sliding = {"sliding_window", "layer_types", "sliding_attention_heads"}
        model = ModelSpec.model_validate(model.model_dump(exclude=sliding))
    layout = GenerationLayout(tp=tp)
    generation = generator_of(model, H100, H100.device(), layout).model
    linear, attention = table_flops(model, float(batch), 2.0 * context, tp)
    if model.kv_lora_rank is not None:
        # Decoding works on the latent: as many products with weights, wider ones with keys and values.
        latent, rope = float(model.kv_lora_rank or 0), float(model.qk_rope_head_dim or 0)
        attention *= (2.0 * latent + rope) / (2.0 * model.qk_head_dim)  # the table pads values to keys
    assert decode_flops(generation, batch, context) == pytest.approx(linear + attention, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["qwen3-32b", "qwen3-30b-a3b", "deepseek-v3", "llama3-70b"]),
    batch=st.floats(1.0, 2000.0),
    context=st.floats(1.0, 100_000.0),
    more=st.floats(1.01, 4.0),
)
def test_more_sequences_or_longer_ones_never_take_less(name: str, batch: float, context: float, more: float) -> None:
    model = generator_of(load_preset(name), H100, H100.device(), GenerationLayout(tp=8)).model
    base = float(model.tpot_s(batch, context))
    assert float(model.tpot_s(batch * more, context)) >= base
    assert float(model.tpot_s(batch, context * more)) >= base
    assert float(model.tpot_s(batch * more, context)) <= more * base * (1 + 1e-9)
    assert float(model.requests_that_fit(context * more)) <= float(model.requests_that_fit(context))


@settings(max_examples=30, deadline=None)
@given(batch=st.floats(1.0, 500.0), log_ranks=st.integers(0, 3))
def test_twice_the_devices_never_make_a_token_more_than_twice_as_fast(batch: float, log_ranks: int) -> None:
    model = load_preset("qwen3-235b-a22b")
    few, many = (
        generator_of(model, H100, H100.device(), GenerationLayout(dp=dp, ep=dp)).model.tpot_s(rank_batch, 2000.0)
        for dp, rank_batch in ((2**log_ranks, batch), (2 ** (log_ranks + 1), batch / 2))
    )
    assert float(many) >= 0.5 * float(few)
