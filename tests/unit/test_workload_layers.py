"""Operators and parameters of layer tables: FLOPs, parameters and shapes add up to the model's."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.costs.workload.attention_types import LayerKind, kind_of, score_columns
from autodeploy.costs.workload.flops import forward_flops_per_token, mfu
from autodeploy.costs.workload.layers import embedding_table, head_table, layer_kinds, layer_table, mtp_table
from autodeploy.costs.workload.memory_choices import LAYER_INPUT
from autodeploy.costs.workload.mlp import activation_bytes_per_element
from autodeploy.costs.workload.operators import LayerTable, OperatorFeatures
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset
from tests.support.sharding import shard

FUSED = OperatorFeatures(rect_fa=True)
MODELS = ["llama2-7b", "llama2-70b", "qwen3-32b", "deepseek-v3", "mixtral-8x7b", "pangu-ultra-moe-718b", "gpt3-175b"]


def matrix_flops(table: LayerTable) -> float:
    """FLOPs of the matrix multiplications of one micro batch on one rank, forward."""
    products = [o for o in table.operators if o.kind in {"gemm", "grouped_gemm"}]
    return float(sum(np.ravel(2.0 * o.rows * o.columns * o.depth * o.groups)[0] for o in products))


def attention_flops(table: LayerTable) -> float:
    return float(sum(np.ravel(o.flops)[0] for o in table.operators if o.kind == "attention"))


@pytest.mark.parametrize("name", MODELS)
def test_matrix_flops_are_two_per_active_weight(name: str) -> None:
    model = load_preset(name)
    for kind, _ in layer_kinds(model):
        table = layer_table(model, shard(), FUSED, kind)
        layer = next(n for n in range(model.num_hidden_layers) if kind_of(model, n) == kind)
        assert matrix_flops(table) / 4096 == pytest.approx(
            2 * model.layer_matrix_params(layer, model.computing_experts_per_tok)
        )


@pytest.mark.parametrize("name", MODELS)
def test_model_flops_are_those_of_the_tables(name: str) -> None:
    model = load_preset(name)
    total = 0.0
    for kind, count in layer_kinds(model):
        table = layer_table(model, shard(), FUSED, kind)
        total += count * (matrix_flops(table) + attention_flops(table))
    total += matrix_flops(head_table(model, shard(), FUSED))
    if model.num_nextn_predict_layers:
        module = mtp_table(model, shard(), FUSED)
        total += model.num_nextn_predict_layers * (matrix_flops(module) + attention_flops(module))
    assert forward_flops_per_token(model, 4096) == pytest.approx(total / 4096, rel=1e-6)


def summed_bytes(table: LayerTable) -> float:
    found = [op.backward_bytes for op in table.operators if op.name.endswith("gradient_accumulation")]
    return float(np.ravel(sum(found))[0])


def test_what_was_looked_up_is_summed_apart_from_products() -> None:
    """Megatron-LM adds `param.grad` of the embedding (10 B a parameter), which is cleared first (2)."""
    model, tp = load_preset("deepseek-v3"), 4
    vocabulary = model.vocab_size * model.hidden_size / tp
    fused = OperatorFeatures(rect_fa=True, sums_bytes=10.0)
    apart = OperatorFeatures(rect_fa=True, sums_bytes=10.0, accumulation_bytes=10.0)
    cut = shard(tp=tp)
    assert summed_bytes(embedding_table(model, cut, fused)) == pytest.approx(12 * vocabulary)
    assert summed_bytes(head_table(model, cut, fused)) == 0.0
    assert summed_bytes(head_table(model, cut, apart)) == pytest.approx(10 * vocabulary)
    assert summed_bytes(mtp_table(model, cut, fused)) == pytest.approx(12 * vocabulary)
    frozen = OperatorFeatures(rect_fa=True, sums_bytes=10.0, lora_rank=8, lora_targets=("attention_out_proj",))
    assert summed_bytes(embedding_table(model, cut, frozen)) == 0.0


@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_parallel_ranks_share_the_matrix_work_of_a_dense_layer(tp: int) -> None:
    model = load_preset("llama2-70b")
    whole, cut = (layer_table(model, shard(tp=t), FUSED, ("dense", None)) for t in (1, tp))
    assert matrix_flops(cut) == pytest.approx(matrix_flops(whole) / tp)
    assert attention_flops(cut) == pytest.approx(attention_flops(whole) / tp)


@pytest.mark.parametrize("cp", [2, 16])
def test_context_parallel_ranks_share_the_attention_of_the_whole_sequence(cp: int) -> None:
    model = load_preset("llama3-8b")
    whole, cut = (layer_table(model, shard(cp=c, seq=131_072), FUSED, ("dense", None)) for c in (1, cp))
    assert attention_flops(cut) == pytest.approx(attention_flops(whole) / cp)


@pytest.mark.parametrize(("ep", "etp", "tp"), [(1, 1, 1), (8, 1, 1), (64, 1, 4), (16, 4, 4)])
def test_expert_work_is_what_the_group_sends(ep: int, etp: int, tp: int) -> None:
    # Balanced experts: each rank computes its local tokens times k, wherever the experts lie.
    model = load_preset("deepseek-v3")
    table = layer_table(model, shard(tp=tp, ep=ep, etp=etp), FUSED, ("moe", None))
    flops = sum(
        float(np.ravel(2.0 * o.rows * o.columns * o.depth * o.groups)[0])
        for o in table.operators
        if o.kind == "grouped_gemm"
    )
    assert flops == pytest.approx(2 * (4096 / tp) * 8 * 3 * 7168 * 2048)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_one_rank_are_the_model(name: str) -> None:
    model = load_preset(name)
    total = 0.0
    for kind, count in layer_kinds(model):
        table = layer_table(model, shard(), FUSED, kind)
        total += count * float(table.dense_params[0] + table.expert_params[0])
    total += float(embedding_table(model, shard()).dense_params[0])
    total += float(head_table(model, shard(), FUSED).dense_params[0])
    assert total == pytest.approx(model.total_params(), rel=1e-9)
    if model.num_nextn_predict_layers:
        module = mtp_table(model, shard(), FUSED)
        own = float(module.dense_params[0] + module.expert_params[0])
        assert own * model.num_nextn_predict_layers == pytest.approx(model.mtp_params)


def test_experts_are_cut_by_ep_and_etp_and_latents_by_nothing() -> None:
    # Experts: 3 h fe E / (EP ETP); the down projections of latent attention are copied on every tensor-parallel rank.
    model = load_preset("deepseek-v3")
    table = layer_table(model, shard(tp=8, ep=32, etp=8), FUSED, ("moe", None))
    assert float(table.expert_params[0]) == 3 * 7168 * 2048 * 256 / (32 * 8)
    latent = 7168 * (1536 + 512 + 64)
    cut = (model.attention_params - latent + model.shared_expert_params) / 8
    assert float(table.dense_params[0]) == latent + cut + model.router_params + model.vector_params_of("full_attention")


def test_a_key_head_is_copied_where_there_are_fewer_than_ranks() -> None:
    model = load_preset("llama2-70b")  # 8 key-value heads of 128
    table = layer_table(model, shard(tp=16), FUSED, ("dense", None))
    projection = next(o for o in table.operators if o.name == "qkv_proj")
    assert float(np.ravel(projection.columns)[0]) == 64 / 16 * 128 + 2 * 128


def test_layer_kinds_of_deepseek_v3_and_of_a_windowed_model() -> None:
    assert layer_kinds(load_preset("deepseek-v3")) == [(LayerKind("dense"), 3), (LayerKind("moe"), 58)]
    windowed = ModelSpec(
        name="windowed",
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        vocab_size=1024,
        intermediate_size=1024,
        sliding_window=128,
        layer_types="alternating sliding and full attention",
    )
    assert layer_kinds(windowed) == [(LayerKind("dense"), 2), (LayerKind("dense", 128), 2)]


@pytest.mark.parametrize(("seq", "window"), [(64, None), (64, 64), (64, 100), (64, 8), (100, 33)])
def test_mean_keys_match_a_count_over_the_mask(seq: int, window: int | None) -> None:
    # Exact: sum of min(i, w) over i = 1..s, over s; the formula leaves out the diagonal's half key.
    width = seq if window is None else min(window, seq)
    counted = np.minimum(np.arange(1, seq + 1), width).mean()
    assert score_columns(seq, window) == pytest.approx(counted, abs=0.51)


def test_mfu_of_the_published_mindspeed_row() -> None:
    # MindSpeed-LLM table, 2024-10: Llama2-7B at 4733 tokens/s a card is 61.7 % of 353.9 TFLOPS where attention counts
    # in full; the causal convention halves the scores.
    model = load_preset("llama2-7b")
    causal = mfu(model, 4096, 4733, 353.9e12)
    scores = 3 * 2 * 32 * 256 * 2048 * 32 * 4733 / 353.9e12
    assert causal + scores == pytest.approx(0.617, rel=0.01)


@pytest.mark.parametrize(
    ("size", "published"), [("22B", 0.415), ("175B", 0.514), ("530B", 0.560), ("1T", 0.563), ("530B_dp8", 0.542)]
)
def test_mfu_of_the_published_megatron_rows(size: str, published: float) -> None:
    # Korthikanti et al., arXiv:2205.05198, table 5 and section 6.3: iteration seconds and MFU of GPT on A100 (312
    # TFLOPS), attention in full: 72 B L s h^2 (1 + s / (6 h) + v / (12 L h)) FLOPs an iteration.
    name = f"korth_{size}" if size.endswith("dp8") else f"korth_t5_{size}_seqsel"
    row = next(r for r in shipped_records() if r.id == name)
    seconds, gpus, seq = float(row.measured.step_time_s or 0.0), int(row.cluster.num_npus or 0), row.training.seq_length
    tokens = row.training.global_batch_size.value * seq
    assert mfu(row.model, seq, tokens / seconds / gpus, 312e12, causal=False) == pytest.approx(published, rel=0.005)
    m = row.model
    h, layers = m.hidden_size, m.num_hidden_layers
    iteration = 72.0 * tokens * layers * h**2 * (1.0 + seq / (6.0 * h) + m.vocab_size / (12.0 * layers * h))
    assert 3.0 * tokens * forward_flops_per_token(m, seq, causal=False) == pytest.approx(iteration, rel=1e-12)


def test_activation_traffic_reads_two_inputs_and_writes_one() -> None:
    assert activation_bytes_per_element(gated=True, fused=True) == (6, 10, 2)
    assert activation_bytes_per_element(gated=False, fused=True) == (4, 6, 2)
    forward, backward, kept = activation_bytes_per_element(gated=True, fused=False)
    assert (forward, backward, kept) > (6, 10, 2)


def test_attention_without_flash_computes_every_score() -> None:
    model = load_preset("gpt3-175b")
    table = layer_table(model, shard(seq=2048), OperatorFeatures(flash_attention=False), ("dense", None))
    products = [o for o in table.operators if o.name in {"scores", "weighted_values"}]
    flops = sum(float(np.ravel(2.0 * o.rows * o.columns * o.depth * o.groups)[0]) for o in products)
    assert flops == 4 * 2048**2 * model.hidden_size


def test_fusion_removes_traffic_and_launches_and_no_mathematics() -> None:
    model = load_preset("llama2-7b")
    plain = OperatorFeatures(fused_swiglu=False, fused_rmsnorm=False)
    slow, fast = (layer_table(model, shard(), on, ("dense", None)) for on in (plain, FUSED))

    def moved(table: LayerTable) -> float:
        return float(sum(np.ravel(o.forward_bytes + o.backward_bytes)[0] for o in table.operators))

    assert moved(slow) > moved(fast)
    assert sum(o.launches for o in slow.operators) > sum(o.launches for o in fast.operators)
    assert matrix_flops(slow) == matrix_flops(fast)


@pytest.mark.parametrize(("name", "kind"), [("llama2-7b", "dense"), ("deepseek-v3", "moe")])
def test_unfused_gradients_are_added_once_a_parameter_and_micro_batch(name: str, kind: str) -> None:
    # A 16-bit sum: product and sum read, sum written, 6 B a parameter; fused into the product's epilogue, nothing.
    model = load_preset(name)
    for moved in (0.0, 6.0):
        on = OperatorFeatures(rect_fa=True, accumulation_bytes=moved, expert_accumulation_bytes=moved)
        table = layer_table(model, shard(tp=4, ep=4), on, (kind, None))
        (added,) = [o for o in table.operators if o.name == "gradient_accumulation"]
        assert np.ravel(added.forward_bytes)[0] == 0.0
        assert np.ravel(added.backward_bytes)[0] == moved * (table.dense_params[0] + table.expert_params[0])
        assert added.launches == 0.0


def test_sandwich_norms_keep_and_move_more() -> None:
    base = load_preset("llama2-7b")
    sandwich = base.model_copy(update={"norm_layout": "sandwich"})
    plain, doubled = (layer_table(m, shard(), FUSED, ("dense", None)) for m in (base, sandwich))
    extra = sum(float(t.kept_bytes[0]) for t in doubled.tensors) - sum(float(t.kept_bytes[0]) for t in plain.tensors)
    assert extra == 2 * 2 * 4096 * base.hidden_size
    # Full recompute keeps 2 n h a layer, its input, however many norms follow (MindSpeed-LLM, full recompute).
    (kept,) = [t for t in doubled.tensors if t.name == LAYER_INPUT]
    assert float(kept.kept_bytes[0]) == 2 * 4096 * base.hidden_size


def moved_by(table: LayerTable, name: str) -> tuple[float, float]:
    """Bytes of the operators of a name, forward and backward."""
    own = [o for o in table.operators if name in o.name]
    return tuple(float(sum(np.max(getattr(o, which)) for o in own)) for which in ("forward_bytes", "backward_bytes"))  # type: ignore[return-value]


@pytest.mark.parametrize(("square", "extra"), [(False, (8.0, 4.0)), (True, (22.0, 26.0))])
def test_biases_of_distances_take_the_place_of_rotations(*, square: bool, extra: tuple[float, float]) -> None:
    """Operators of ModelLink's CoreAttention.forward, branch bk_origin_23, counted by hand."""
    kind, plain = LayerKind("dense", None), load_preset("llama2-7b")
    on = OperatorFeatures(flash_attention=False, square_alibi=square)
    rotated = layer_table(plain, shard(), on, kind)
    biased = layer_table(plain.model_copy(update={"alibi": True}), shard(), on, kind)
    assert moved_by(rotated, "rotary")[0] > 0.0
    assert moved_by(biased, "rotary") == (0.0, 0.0)
    scores = 32 * 4096.0**2
    for which, more in enumerate(extra):
        added = moved_by(biased, "softmax")[which] - moved_by(rotated, "softmax")[which]
        assert added == pytest.approx(more * scores)


def test_norms_about_the_mean_are_one_kernel_and_biases_are_summed_up() -> None:
    kind, plain = LayerKind("dense", None), load_preset("llama2-7b")
    recipe = plain.recipe_or_default.model_copy(update={"normalization": "LayerNorm", "mlp_bias": True})
    named = plain.model_copy(update={"recipe": recipe})
    unfused, fused = OperatorFeatures(fused_rmsnorm=False), OperatorFeatures(fused_rmsnorm=True)
    tables = [
        layer_table(model, shard(), on, kind) for model, on in ((named, unfused), (plain, fused), (plain, unfused))
    ]
    norms = [moved_by(table, "_norm") for table in tables]
    assert norms[0] == norms[1]
    assert norms[2][0] > norms[1][0]
    width = 4096 * (4096 + 2 * (plain.intermediate_size or 0))
    assert moved_by(tables[0], "biases") == pytest.approx((4.0 * width, 2.0 * width))
    assert moved_by(tables[1], "biases") == (0.0, 0.0)
