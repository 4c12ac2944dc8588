"""Activation bytes of layer tables against the published counts of Megatron, MindSpeed and MindFormers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autodeploy.costs.inputs.build_context import loss_bytes
from autodeploy.costs.workload.layers import head_table, layer_kinds, layer_table
from autodeploy.costs.workload.memory_choices import CHOICES
from autodeploy.costs.workload.operators import LayerTable, OperatorFeatures
from autodeploy.specs.presets import load_preset, preset_names
from autodeploy.specs.tuning import TARGETS
from tests.support.sharding import shard

GIB = float(2**30)
FUSED = OperatorFeatures(rect_fa=True)  # MindSpeed --mla-fa-without-pad: V keeps its own width
LORA = OperatorFeatures(lora_rank=16, lora_targets=TARGETS)
RELEASED = replace(FUSED, copies_heads=True, joins_heads=True, casts_router=True, regathers_latents=True)
GPT = OperatorFeatures(flash_attention=False, dropout=True, attention_dropout=True)


def kept(table: LayerTable, *names: str) -> float:
    """Bytes of the named tensors (all without names)."""
    return float(sum(t.kept_bytes[0] for t in table.tensors if not names or t.name in names))


def freed(table: LayerTable, choice: str) -> float:
    """Bytes that a memory choice frees."""
    return kept(table, *CHOICES[choice].frees)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_gpt_without_flash_attention_follows_korthikanti(tp: int) -> None:
    # arXiv:2205.05198, equations 1 and 4: s b h (34 + 5 a s / h) / t bytes a layer.
    model = load_preset("gpt3-175b")
    s, b, h, a = 2048, 2, model.hidden_size, model.num_attention_heads
    table = layer_table(model, shard(tp=tp, mbs=b, seq=s), GPT, ("dense", None))
    assert kept(table) == pytest.approx(s * b * h * (34 + 5 * a * s / h) / tp)


def test_tensor_parallelism_alone_keeps_what_sequence_parallelism_cuts() -> None:
    # Equation 2: s b h (10 + 24 / t + 5 a s / (h t)).
    model = load_preset("gpt3-175b")
    s, h, a, t = 2048, model.hidden_size, model.num_attention_heads, 8
    table = layer_table(model, shard(tp=t, seq=s, sp=False), GPT, ("dense", None))
    assert kept(table) == pytest.approx(s * h * (10 + 24 / t + 5 * a * s / (h * t)))


@pytest.mark.parametrize(("fused", "per_width"), [(True, 6), (False, 8)])
@pytest.mark.parametrize("name", ["llama2-7b", "llama2-70b"])
def test_dense_layer_with_flash_attention(name: str, fused: bool, per_width: int) -> None:
    # 8h + 4ad + 4gd + 64a + 6f (fused SwiGLU; 8f unfused) bytes a token; Ascend keeps 64 B of softmax state a head.
    model = load_preset(name)
    h, a, g, d, f = (
        model.hidden_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        model.head_dim,
        model.intermediate_size or 0,
    )
    table = layer_table(model, shard(seq=4096), OperatorFeatures(fused_swiglu=fused), ("dense", None))
    assert kept(table) / 4096 == pytest.approx(8 * h + 4 * a * d + 4 * g * d + 64 * a + per_width * f)


def test_sequence_parallelism_divides_every_kept_tensor() -> None:
    model = load_preset("llama2-70b")
    whole, cut = (kept(layer_table(model, shard(tp=t), FUSED, ("dense", None))) for t in (1, 8))
    assert cut == pytest.approx(whole / 8)


# Source: MindSpeed documentation, activation function recomputation, Llama2-7B on 8 NPUs, unfused SwiGLU; in GiB.
@pytest.mark.parametrize(
    ("seq", "mbs", "tp", "formula", "published"),
    [
        (12_288, 2, 4, 8.06, 8.05),
        (8096, 2, 4, 5.31, 5.31),
        (12_288, 1, 4, 4.03, 4.04),
        (12_288, 2, 8, 4.03, 4.02),
    ],
)
def test_activation_recompute_of_llama2_7b(seq: int, mbs: int, tp: int, formula: float, published: float) -> None:
    model = load_preset("llama2-7b")
    unfused = OperatorFeatures(fused_swiglu=False)
    table = layer_table(model, shard(tp=tp, mbs=mbs, seq=seq), unfused, ("dense", None))
    saved = freed(table, "activation") * model.num_hidden_layers / GIB
    assert saved == pytest.approx(formula, rel=0.01)
    assert saved == pytest.approx(published, rel=0.01)


# MindSpeed multiplies the routing probabilities into the experts' activation and keeps it before and after.
WEIGHTED = replace(FUSED, weighted_activation=True)
DEEPSEEK_LAYER = layer_table(load_preset("deepseek-v3"), shard(seq=4096, ep=32), WEIGHTED, ("moe", None))
UNWEIGHTED_LAYER = layer_table(load_preset("deepseek-v3"), shard(seq=4096, ep=32), FUSED, ("moe", None))
ATTENTION = (
    "attention_norm_in",
    "attention_norm_out",
    "latents",
    "latents_normed",
    "latent_q",
    "latent_kv",
    "attention_out",
    "softmax_stats",
)


def test_rows_that_return_weighted_leave_their_map_alone() -> None:
    # 2kh of the rows, or 8 B for each of 256 experts.
    mapped = layer_table(
        load_preset("deepseek-v3"), shard(seq=4096, ep=32), replace(WEIGHTED, weighted_experts=True), ("moe", None)
    )
    assert (kept(DEEPSEEK_LAYER, "unpermute_in"), kept(mapped, "unpermute_in")) == (4096 * 2 * 8 * 7168, 4096 * 8 * 256)


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-30b-a3b", "hunyuan-a13b"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_norms_of_queries_and_keys_keep_a_copy_of_queries_and_the_joint_product(name: str, tp: int) -> None:
    model = load_preset(name)
    a, g, d = model.num_attention_heads / tp, model.num_key_value_heads / tp, model.head_dim
    kind = layer_kinds(model)[0][0]

    def of(**changes: bool) -> LayerTable:
        return layer_table(model, shard(tp=tp, seq=1024), replace(FUSED, **changes), kind)

    slices = of(joins_heads=True, slices_heads=True)
    assert kept(slices, "qk_norm_in") == 1024 * 2 * a * d
    assert kept(slices, "rotary_tables") == 0
    copies = of(joins_heads=True, copies_heads=True)
    assert kept(copies, "qk_norm_in") == 1024 * 2 * (a * d + (a + 2 * g) * d)
    assert kept(copies, "rotary_tables") == 1024 * 4 * 2 * d
    assert kept(of(), "qk_norm_in") == 1024 * 2 * (a + g) * d


def test_latent_attention_of_deepseek_v3_keeps_209024_bytes_a_token() -> None:
    # 4h + 2 (2 qr + 2 kvr + dr) + 2a (dn + dr) [q] + the same [k] + 2a dv [v] + 2a dv [o] + 64a.
    assert kept(DEEPSEEK_LAYER, *ATTENTION) / 4096 == 209_024


def test_padded_values_take_the_width_of_queries() -> None:
    padded = layer_table(load_preset("deepseek-v3"), shard(seq=4096), OperatorFeatures(), ("moe", None))
    assert (kept(padded, "latent_kv") - kept(DEEPSEEK_LAYER, "latent_kv")) / 4096 == 2 * 128 * (192 - 128)


def test_experts_of_deepseek_v3_keep_402432_bytes_a_token() -> None:
    # 4h + 4E + 2kh + 4k fe + 2k fe + 2k fe + 2kh + 6fs = 402,432.
    assert (kept(DEEPSEEK_LAYER) - kept(DEEPSEEK_LAYER, *ATTENTION)) / 4096 == 402_432


def test_probabilities_in_the_experts_activation_keep_it_twice() -> None:
    # The second 2k fe = 32,768 is MindSpeed's copy of the activation before the probabilities are multiplied in.
    assert (kept(DEEPSEEK_LAYER) - kept(UNWEIGHTED_LAYER)) / 4096 == 2 * 8 * 2048
    assert kept(DEEPSEEK_LAYER, "expert_activation_unweighted") / 4096 == 2 * 8 * 2048
    assert kept(UNWEIGHTED_LAYER, "expert_activation_unweighted") == 0
    assert freed(DEEPSEEK_LAYER, "activation") - freed(UNWEIGHTED_LAYER, "activation") == 4096 * 2 * 8 * 2048


def test_deepseek_v3_keeps_611456_bytes_a_token_and_layer() -> None:
    # 1.17 GiB for 4096 tokens at TP2.
    assert kept(DEEPSEEK_LAYER) / 4096 == 611_456


def test_expert_terms_follow_top_k_and_widths() -> None:
    h, k, fe, fs, experts = 7168, 8, 2048, 2048, 256
    per_token = {t.name: float(t.kept_bytes[0]) / 4096 for t in DEEPSEEK_LAYER.tensors}
    assert per_token["router_logits"] == 4 * experts
    assert per_token["expert_in"] == 2 * k * h
    assert per_token["expert_up_out"] == 4 * k * fe
    assert per_token["unpermute_in"] == 2 * k * h
    assert per_token["shared_up_out"] + per_token["shared_activation_out"] == 6 * fs


def test_uneven_experts_enlarge_only_what_the_busiest_rank_receives() -> None:
    uneven = {t.name for t in DEEPSEEK_LAYER.tensors if t.per_expert}
    assert uneven == {"expert_in", "expert_up_out", "expert_activation_out", "expert_activation_unweighted"}


def test_capacity_replaces_top_k_by_padded_slots() -> None:
    # k becomes 1.5 k = 12 with capacity factor 1.5 (MindFormers, DeepSeek-V3, hyper-parallel sapp_nd).
    padded = layer_table(
        load_preset("deepseek-v3"), shard(ep=8), OperatorFeatures(rect_fa=True, capacity_factor=1.5), ("moe", None)
    )
    names = ("expert_in", "expert_up_out")
    assert kept(padded, *names) == pytest.approx(1.5 * kept(DEEPSEEK_LAYER, *names))


def test_a_router_in_fp32_keeps_its_input_and_weights_cast_to_it() -> None:
    # Megatron-LM core_v0.12.1 router.py:71, input.to(router_dtype) and weight.to(router_dtype): 4 B an element.
    table = layer_table(load_preset("deepseek-v3"), shard(), RELEASED, ("moe", None))
    assert kept(table, "router_casts") == 4 * 7168 * (4096 + 256)
    assert kept(DEEPSEEK_LAYER, "router_casts") == 0


def test_swapping_attentions_output_leaves_its_statistics() -> None:
    # MindSpeed-LLM multi_latent_attention.py:1186, TensorSwapManager(core_attn_out): 2a dv a token.
    assert freed(DEEPSEEK_LAYER, "swap_core_attn_out") / 4096 == 2 * 128 * 128


def test_norm_recompute_frees_two_norm_outputs() -> None:
    # 2h a norm and token.
    assert freed(DEEPSEEK_LAYER, "norm") / 4096 == 4 * 7168


def test_up_projection_recompute_frees_a_fifth_of_the_layer() -> None:
    # 2 x 2a (dn + dr) + 2a dv, and the latents after their norms with the rotary key: 22 % of a DeepSeek-V3 layer.
    of_heads = 4 * 128 * 192 + 2 * 128 * 128
    assert freed(DEEPSEEK_LAYER, "mla_up_proj") / 4096 == of_heads + 2 * (1536 + 512 + 64)
    assert freed(DEEPSEEK_LAYER, "mla_up_proj") / (611_456 * 4096) == pytest.approx(0.22, abs=0.005)


@pytest.mark.parametrize("choice", ["moe_zero_memory_level0", "moe_zero_memory_level1"])
def test_zero_memory_frees_most_of_the_experts(choice: str) -> None:
    # MindSpeed: 70 % (level 0) and 90 % (level 1) of what recomputing the experts would free.
    experts = ("expert_in", "expert_up_out", "expert_activation_out", "expert_activation_unweighted")
    share = freed(DEEPSEEK_LAYER, choice) / kept(DEEPSEEK_LAYER, *experts)
    assert share >= {"moe_zero_memory_level0": 0.65, "moe_zero_memory_level1": 0.9}[choice]


def test_unpermute_swap_frees_2kh() -> None:
    assert freed(DEEPSEEK_LAYER, "swap_unpermute") / 4096 == 2 * 8 * 7168


def test_logits_are_kept_as_fp32_beside_bf16_while_the_loss_runs() -> None:
    # 4 s b V / t in FP32, and 2 s b V / t in BF16 until the loss has its FP32 copy, and again for its gradient.
    model = load_preset("llama3-8b")
    table = head_table(model, shard(tp=8, seq=8192), FUSED)
    assert kept(table, "logits") == pytest.approx(4 * 8192 * model.vocab_size / 8)
    assert float(table.workspace_bytes[0]) == pytest.approx(2 * 8192 * model.vocab_size / 8)
    assert float(table.passing_bytes[0]) == kept(table, "logits")


@pytest.mark.parametrize(
    ("features", "peak"),
    [
        ((), 6),
        (("copied_logits",), 10),
        (("torch_loss",), 12),
        (("fused_cross_entropy",), 6),
        (("cross_entropy_in_place",), 2),
        (("graph_mode",), 8),
    ],
)
def test_peak_of_the_loss_follows_its_source(features: tuple[str, ...], peak: int) -> None:
    # MindSpeed @2.1.0_core_r0.8.0 subtracts the maximum into a new array: 2 + 4 + 4 bytes a logit. Its CI baselines
    # tune_qwen25_0point5b_tp1_pp1_pack of 2.1.0 and 26.0.0 show 10.0 and 6.0 beside what else they hold.
    assert sum(loss_bytes(frozenset(features))) == peak


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_every_memory_choice_frees_something_of_some_layer(name: str) -> None:
    gpt = layer_table(load_preset("gpt3-175b"), shard(), GPT, ("dense", None))
    names = {t.name for table in (DEEPSEEK_LAYER, gpt) for t in table.tensors} | {"*"}
    assert set(CHOICES[name].frees) & names


def test_every_memory_choice_names_tensors_operators_and_exchanges_that_exist() -> None:
    tables = [
        DEEPSEEK_LAYER,
        layer_table(load_preset("deepseek-v3"), shard(), OperatorFeatures(), ("moe", None)),
        layer_table(load_preset("deepseek-v3"), shard(), RELEASED, ("moe", None)),
        layer_table(load_preset("gpt3-175b"), shard(), GPT, ("dense", None)),
        layer_table(load_preset("llama2-7b"), shard(), FUSED, ("dense", None)),
        layer_table(load_preset("llama2-7b"), shard(), LORA, ("dense", None)),
        layer_table(
            load_preset("qwen3-32b"), shard(), replace(FUSED, copies_heads=True, keeps_gathered=True), ("dense", None)
        ),
        layer_table(load_preset("deepseek-v3"), shard(), LORA, ("moe", None)),
        layer_table(load_preset("longcat-flash"), shard(), OperatorFeatures(), ("moe", None)),
        layer_table(load_preset("mixtral-8x7b"), replace(shard(), turns_tokens=np.array([True])), FUSED, ("moe", None)),
    ]
    tensors = {t.name for table in tables for t in table.tensors} | {"*"}
    operators = {o.name for table in tables for o in table.operators} | {"*"}
    exchanges = {e.name for table in tables for e in table.exchanges} | {"*"}
    for choice in CHOICES.values():
        assert set(choice.frees) <= tensors, choice.name
        assert set(choice.replays) <= operators, choice.name
        assert set(choice.replays_exchanges) <= exchanges, choice.name


@pytest.mark.parametrize("name", ["llama2-7b", "llama3-70b", "qwen3-32b"])
def test_recomputing_latent_projections_frees_nothing_of_grouped_query_attention(name: str) -> None:
    table = layer_table(load_preset(name), shard(), FUSED, ("dense", None))
    operators = {o.name for o in table.operators}
    assert freed(table, "mla_up_proj") == 0 or {"q_up_proj", "kv_up_proj"} <= operators


def test_padded_attention_keeps_the_kernels_own_output_beside_its_slice() -> None:
    padded = layer_table(load_preset("deepseek-v3"), shard(seq=4096), OperatorFeatures(), ("moe", None))
    assert kept(padded, "attention_out_padded") / 4096 == 2 * 128 * 192
    assert kept(padded, "attention_out") / 4096 == 2 * 128 * 128
    assert kept(DEEPSEEK_LAYER, "attention_out_padded") == 0


def test_fp32_norms_keep_casts_and_full_recompute_the_16_bit_input() -> None:
    layer = layer_table(
        load_preset("deepseek-v3"), shard(seq=4096, ep=32), replace(WEIGHTED, norm_bytes=4.0), ("moe", None)
    )
    assert (kept(layer) - kept(DEEPSEEK_LAYER)) / 4096 == 2 * 2 * 7168 + 2 * (1536 + 512)
    assert kept(layer, "attention_norm_in") / 4096 == 2 * 7168


def test_experts_send_back_their_padding() -> None:
    padded = replace(WEIGHTED, capacity_factor=1.5)
    layer = layer_table(load_preset("deepseek-v3"), shard(seq=4096, ep=32), padded, ("moe", None))
    assert kept(layer, "unpermute_in") == 1.5 * kept(DEEPSEEK_LAYER, "unpermute_in")


@pytest.mark.parametrize("sp", [True, False])
def test_a_graph_keeps_what_sequence_parallelism_gathered(sp: bool) -> None:
    graph = replace(FUSED, keeps_gathered=True)
    for name, kind in (("llama2-7b", "dense"), ("deepseek-v3", "dense"), ("deepseek-v3", "moe")):
        model, cut = load_preset(name), shard(tp=4, seq=4096, sp=sp)
        more = kept(layer_table(model, cut, graph, (kind, None))) - kept(layer_table(model, cut, FUSED, (kind, None)))
        elsewhere = 2 * 4096 * 3 / 4 if sp else 0
        latent = (1536 + 512 + 64) if (model.kv_lora_rank is not None) else model.hidden_size
        assert more == elsewhere * (latent + (model.hidden_size if kind == "dense" else 0))


@pytest.mark.parametrize("name", preset_names())
def test_operators_of_mlps_have_their_role_and_those_of_attention_none(name: str) -> None:
    """Pairs and overlaps know the operators of experts and of dense MLPs by their role."""
    model = load_preset(name)
    for kind, _ in layer_kinds(model):
        for op in layer_table(model, shard(), OperatorFeatures(), kind).operators:
            assert op.window == "mlp" or not op.role, op.name
            begun = {"expert": "experts", "sort": "sorting", "shared": "shared"}.get(op.name.split("_")[0], "")
            inside = op.name in {"mlp_up_proj", "mlp_activation", "mlp_down_proj"}
            assert op.role == ("dense" if inside else begun if op.window == "mlp" else ""), op.name
