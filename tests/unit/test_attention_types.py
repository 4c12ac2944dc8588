"""Layers of today's attention types: parameters and FLOPs against counts by shapes, and against published formulas."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from autodeploy.costs.workload.attention_types import LayerKind, chunk_columns, kind_of
from autodeploy.costs.workload.flops import forward_flops_per_token
from autodeploy.costs.workload.layers import head_table, layer_kinds, layer_table
from autodeploy.costs.workload.operators import LayerTable, OperatorFeatures
from autodeploy.costs.workload.sparse_attention import attends_to_latents
from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import UnsupportedError
from autodeploy.specs.attention import LinearAttention, SparseAttention
from autodeploy.specs.model import ModelSpec
from tests.support.sharding import shard

FUSED = OperatorFeatures(rect_fa=True)
GDN = LinearAttention(kind="gated_delta_net", num_key_heads=4, num_value_heads=8, key_head_dim=16, value_head_dim=32)
KDA = LinearAttention(kind="kda", num_key_heads=8, num_value_heads=8, key_head_dim=32, value_head_dim=32)
DSA = SparseAttention(index_topk=2048, index_n_heads=64, index_head_dim=128)


def hybrid(linear: LinearAttention) -> ModelSpec:
    return ModelSpec(
        name="hybrid",
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=1024,
        intermediate_size=256,
        attention_output_gate=True,
        qk_norm=True,
        linear_attention=linear,
        layer_types=("linear_attention",) * 3 + ("full_attention",),
    )


def sparse(topk: int = 2048) -> ModelSpec:
    return ModelSpec(
        name="sparse",
        hidden_size=7168,
        num_hidden_layers=1,
        num_attention_heads=128,
        vocab_size=1024,
        intermediate_size=18432,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        sparse_attention=DSA.model_copy(update={"index_topk": topk}),
    )


def products(table: LayerTable, *, weighted: bool) -> float:
    found = [o for o in table.operators if o.kind in {"gemm", "grouped_gemm"} and o.weighted == weighted]
    return float(sum(np.ravel(2.0 * o.rows * o.columns * o.depth * o.groups)[0] for o in found))


def scores(table: LayerTable) -> dict[str, float]:
    return {o.name: float(np.ravel(o.flops)[0]) for o in table.operators if o.kind == "attention"}


def test_parameters_of_a_gated_delta_net_are_those_of_its_tensors() -> None:
    # transformers qwen3_next: in_proj_qkvz, in_proj_ba, conv1d, dt_bias, A_log, norm, out_proj.
    h, keys, values = 128, 4 * 16, 8 * 32
    shapes = [(h, 2 * keys + 2 * values), (h, 16), (2 * keys + values, 4), (8, 1), (8, 1), (32, 1), (values, h)]
    model = hybrid(GDN)
    assert GDN.matrix_params(h) + GDN.vector_params == sum(a * b for a, b in shapes)
    mlp, norms = 3 * 128 * 256, 2 * 128
    assert model.layer_params(0) == sum(a * b for a, b in shapes) + mlp + norms
    gated = h * 8 * 32 * 2 + 2 * h * 2 * 32 + 8 * 32 * h + 2 * 32
    assert model.layer_params(3) == gated + mlp + norms
    assert model.total_params() == sum(model.layer_params(i) for i in range(4)) + 2 * 1024 * h + h


def test_parameters_of_kda_are_those_of_its_tensors() -> None:
    # modeling_kimi.py: q, k, v, three convolutions, f_a, f_b, b, g_a, g_b, A_log, dt_bias, o_norm, o.
    h, width = 128, 8 * 32
    shapes = [*[(h, width)] * 3, *[(width, 4)] * 3, *[(h, 32), (32, width)] * 2, (h, 8), (8, 1), (width, 1), (32, 1)]
    assert KDA.matrix_params(h) + KDA.vector_params == sum(a * b for a, b in [*shapes, (width, h)])


@pytest.mark.parametrize("linear", [GDN, KDA])
@pytest.mark.parametrize("tp", [1, 4])
def test_a_linear_layer_computes_its_parameters_and_its_chunks(linear: LinearAttention, tp: int) -> None:
    model = hybrid(linear)
    table = layer_table(model, shard(tp=tp), FUSED, kind_of(model, 0))
    heads, key, value = linear.num_value_heads, linear.key_head_dim, linear.value_head_dim
    low = linear.gate_rank * model.hidden_size * 2  # computed by every rank
    matrices = model.layer_matrix_params(0) - low
    assert products(table, weighted=True) / 4096 == pytest.approx(2 * (matrices / tp + low))
    # One chunk of 64 tokens by shapes: K K^T, Q K^T, T K, T V, W S, Q S, (Q K^T) V', K^T V'.
    shapes = [(64, 64, key)] * 2 + [(64, key, 64), (64, value, 64)] + [(64, value, key)] * 2
    shapes += [(64, value, 64), (key, value, 64)]
    chunk = sum(2 * m * n * k for m, n, k in shapes) * heads / tp
    assert products(table, weighted=False) == pytest.approx(chunk * 4096 / 64)
    whole = layer_table(model, shard(), FUSED, kind_of(model, 0))
    assert float(whole.dense_params[0]) == model.layer_params(0)


def test_the_state_terms_of_kda_are_the_papers() -> None:
    # arXiv 2510.26692, section 6: 6 T d^2 + 3 T C d + T C^2 FLOPs a head; products inside a chunk count whole here.
    d, c = 128, 64
    table = layer_table(hybrid(KDA), shard(), FUSED, LayerKind("dense", None, "linear_attention"))
    states = next(op for op in table.operators if op.name == "chunk_states")
    per_head = 2 * np.ravel(states.rows * states.columns * states.depth * states.groups)[0] / 4096 / 8
    assert per_head == pytest.approx(6 * 32 * 32)
    kimi = KDA.model_copy(update={"key_head_dim": d, "value_head_dim": d})
    table = layer_table(hybrid(kimi), shard(), FUSED, LayerKind("dense", None, "linear_attention"))
    paper = 6 * d * d + 3 * c * d + c * c
    assert paper < products(table, weighted=False) / 4096 / 8 < 1.6 * paper


def test_context_parallel_ranks_of_a_linear_layer_pass_states_and_no_keys() -> None:
    model = hybrid(GDN)
    short, long = (layer_table(model, shard(cp=4, seq=seq), FUSED, kind_of(model, 0)) for seq in (4096, 65536))
    ring = [next(e for e in table.exchanges if e.kind == "ring") for table in (short, long)]
    assert ring[0].message_bytes == ring[1].message_bytes == pytest.approx(4 * 8 * 16 * (32 + 16))
    assert not any(e.name == "key_value_ring" for e in long.exchanges)


def test_model_flops_of_hybrid_and_sparse_models_are_those_of_their_tables() -> None:
    for model in (hybrid(GDN), hybrid(KDA), sparse(64), sparse()):
        total = products(head_table(model, shard(), FUSED), weighted=True)
        for kind, count in layer_kinds(model):
            table = layer_table(model, shard(), FUSED, kind)
            counted = sum(flops for name, flops in scores(table).items() if name != "index_target")
            total += count * (products(table, weighted=True) + products(table, weighted=False) + counted)
        assert forward_flops_per_token(model, 4096) == pytest.approx(total / 4096, rel=1e-6)


def test_an_output_gate_widens_the_projection_and_keeps_the_gated_output() -> None:
    model = hybrid(GDN)
    plain = model.model_copy(update={"attention_output_gate": False})
    gated, bare = (layer_table(m, shard(), FUSED, LayerKind("dense")) for m in (model, plain))
    extra = 8 * 32
    assert products(gated, weighted=True) - products(bare, weighted=True) == 2 * 4096 * 128 * extra
    kept = [sum(float(np.ravel(t.kept_bytes)[0]) for t in table.tensors) for table in (gated, bare)]
    assert kept[0] - kept[1] == 4096 * 2 * (extra + extra)  # the gate and the gated output


def step() -> ModelSpec:
    return ModelSpec(
        name="step",
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=1024,
        intermediate_size=256,
        qk_norm=True,
        sliding_window=512,
        layer_types="full attention, then three sliding layers",  # type: ignore[arg-type]
        sliding_attention_heads=12,
        attention_head_gate=True,
    )


def test_sliding_layers_have_heads_of_their_own_and_every_head_a_gate() -> None:
    # modeling_step3p5.py: q_proj, k_proj, v_proj, o_proj, g_proj, q_norm, k_norm of each layer.
    model = step()
    layers = [
        128 * heads * 32 * 2 + 2 * 128 * 2 * 32 + 128 * heads + 2 * 32 + 2 * 128 + 3 * 128 * 256
        for heads in (8, 12, 12, 12)
    ]
    assert [model.layer_params(layer) for layer in range(4)] == layers
    assert model.total_params() == sum(layers) + 2 * 1024 * 128 + 128
    counted = products(head_table(model, shard(), FUSED), weighted=True)
    for kind, count in layer_kinds(model):
        table = layer_table(model, shard(), FUSED, kind)
        heads, keys = (8, 4096 / 2) if kind.window is None else (12, 512 - 512 * 512 / (2 * 4096))
        assert sum(scores(table).values()) == pytest.approx(4 * 4096 * keys * heads * 32)
        assert float(np.ravel(table.dense_params)[0]) == model.layer_params(0 if heads == 8 else 1)
        counted += count * (products(table, weighted=True) + sum(scores(table).values()))
    assert forward_flops_per_token(model, 4096) == pytest.approx(counted / 4096, rel=1e-6)


def test_degrees_cut_all_layers_into_whole_heads() -> None:
    assert step().common_heads == 4
    with pytest.raises(ValidationError, match="requires layer_types: sliding_attention"):
        ModelSpec.model_validate(step().model_dump() | {"layer_types": None, "sliding_window": None})
    with pytest.raises(ValidationError, match="does not divide"):
        ModelSpec.model_validate(step().model_dump() | {"sliding_attention_heads": 7})


@pytest.mark.parametrize("seq", [8192, 20000, 8000])
def test_queries_of_a_chunk_see_what_is_before_them_in_it(seq: int) -> None:
    counted = np.mean(np.arange(seq) % 8192 + 1)
    assert chunk_columns(float(seq), 8192) == pytest.approx(counted, abs=0.51)


def test_sparse_attention_pays_from_about_16k_tokens() -> None:
    # 2 x 128 x (576 + 512) FLOPs a chosen pair against 2 x 128 x (192 + 128) of all: 2048 x 1088 = s / 2 x 320.
    model = sparse()
    assert not attends_to_latents(model, 8192)
    assert attends_to_latents(model, 16384)
    table = layer_table(model, shard(seq=131072), FUSED, LayerKind("dense"))
    tokens, pairs = 131072, 2048 - 2048**2 / (2 * 131072)
    assert scores(table)["core_attention"] == pytest.approx(tokens * pairs * 2 * 128 * (576 + 512))
    assert scores(table)["index_scores"] == pytest.approx(tokens * 65536 * 2 * 64 * 128)
    dense = layer_table(model, shard(), FUSED, LayerKind("dense"))
    assert scores(dense)["core_attention"] == pytest.approx(4096 * 2048 * 2 * 128 * (192 + 128))


@pytest.mark.parametrize("seq", [4096, 131072])
def test_an_indexer_adds_its_parameters_in_both_modes(seq: int) -> None:
    model = sparse()
    indexer = 1536 * 64 * 128 + 7168 * (128 + 64)
    assert model.indexer_params == indexer
    table = layer_table(model, shard(seq=seq), FUSED, LayerKind("dense"))
    assert products(table, weighted=True) / seq == pytest.approx(2 * model.layer_matrix_params(0))
    assert float(table.dense_params[0]) == model.layer_params(0)
    cut = layer_table(model, shard(tp=8, seq=seq), FUSED, LayerKind("dense"))
    assert float(cut.dense_params[0]) > indexer


def glm(layers: int = 12) -> ModelSpec:
    shared = DSA.model_copy(update={"index_topk_freq": 4, "index_skip_topk_offset": 3})
    more = {"sparse_attention": shared, "num_hidden_layers": layers, "num_nextn_predict_layers": 1}
    return sparse().model_copy(update=more)


def test_layers_share_the_keys_that_one_of_them_chose() -> None:
    # GLM-5.2: layers 1, 2, 3, 7, 11, ... have an indexer; so has the prediction module.
    model = glm()
    chooses = [number for number in range(1, 13) if not model.shares_index(number - 1)]
    assert chooses == [1, 2, 3, 7, 11]
    indexer = 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
    whole = glm().model_copy(update={"sparse_attention": DSA})
    assert whole.total_params() - model.total_params() == (12 - len(chooses)) * indexer
    assert whole.total_params() == sum(whole.layer_params(layer) for layer in range(12)) + 2 * 1024 * 7168 + 7168
    assert model.total_params() == sum(model.layer_params(layer) for layer in range(12)) + 2 * 1024 * 7168 + 7168
    assert model.mtp_params == whole.mtp_params
    assert [count for _, count in layer_kinds(model)] == [5, 7]


@pytest.mark.parametrize("seq", [4096, 131072])
def test_a_layer_without_indexer_attends_to_the_same_keys(seq: int) -> None:
    model = glm()
    chooses, shares = (layer_table(model, shard(seq=seq), FUSED, kind_of(model, layer)) for layer in (2, 3))
    assert scores(shares) == {"core_attention": scores(chooses)["core_attention"]}
    for layer, table in ((2, chooses), (3, shares)):
        assert products(table, weighted=True) / seq == pytest.approx(2 * model.layer_matrix_params(layer))
        assert float(np.ravel(table.dense_params)[0]) == model.layer_params(layer)
    kept = [{tensor.name for tensor in table.tensors} for table in (chooses, shares)]
    assert kept[0] - kept[1] == {"index_q", "index_k", "index_chosen"}
    counted = products(head_table(model, shard(seq=seq), FUSED), weighted=True) * 2 + 4 * seq * 7168**2
    for kind, count in [*layer_kinds(model), (kind_of(model, 2), 1)]:
        table = layer_table(model, shard(seq=seq), FUSED, kind)
        found = sum(flops for name, flops in scores(table).items() if name != "index_target")
        counted += count * (products(table, weighted=True) + found)
    assert forward_flops_per_token(model, seq) == pytest.approx(counted / seq, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layer_types": ["chunked_attention"] * 4, "linear_attention": None}, "attention_chunk_size"),
        ({"linear_attention": None}, "linear_attention"),
        ({"layer_types": None}, "linear_attention"),
        ({"sparse_attention": DSA}, "sparse_attention"),
        ({"linear_attention": GDN.model_copy(update={"num_key_heads": 3})}, "linear_attention"),
    ],
)
def test_types_and_their_sizes_have_to_agree(change: dict[str, object], field: str) -> None:
    fields = hybrid(GDN).model_dump() | change
    with pytest.raises(ValidationError) as error:
        ModelSpec.model_validate(fields)
    assert {line["loc"][0] for line in error.value.errors()} == {field}


SHAPED = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers {layers} --hidden-size 512 --num-attention-heads 8 "
    "--vocab-size 1024 --micro-batch-size 1 --seq-length 512 --global-batch-size 8 --swiglu --ffn-hidden-size 1024 "
    "--untie-embeddings-and-output-weights --position-embedding-type rope {flags}\n"
)
NET = "--linear-num-key-heads 4 --linear-num-value-heads 8 --linear-key-head-dim 16 --linear-value-head-dim 32"
MLA = (
    "--multi-latent-attention --q-lora-rank 64 --kv-lora-rank 64 --qk-head-dim 32 "
    "--qk-pos-emb-head-dim 16 --v-head-dim 32"
)


def imported(flags: str, layers: int = 8) -> ModelSpec:
    document = import_document(SHAPED.format(layers=layers, flags=flags), "a.sh").document
    return ModelSpec.model_validate(document["model"])


def test_flags_of_a_gated_delta_net_are_read_with_padding_left_out() -> None:
    model = imported(f"--full-attention-interval 4 {NET} --mamba-d-conv 3 --noop-layers 0", layers=9)
    types = ["full_attention" if number % 4 == 3 else "linear_attention" for number in range(1, 9)]
    assert list(model.layer_types or ()) == types
    assert model.linear_attention == GDN.model_copy(update={"conv_kernel_dim": 3})
    assert model.attention_output_gate


def test_flags_of_an_indexer_are_read_with_the_parsers_defaults() -> None:
    model = imported(f"{MLA} --enable-dsa-indexer --index-topk 256 --use-sparse-flash-attn")
    assert model.sparse_attention == DSA.model_copy(update={"index_topk": 256})
    assert imported(MLA).sparse_attention is None
    shared = imported(f"{MLA} --enable-dsa-indexer --index-topk-freq 4 --index-skip-topk-offset 3").sparse_attention
    assert shared is not None
    assert [shared.has_indexer(layer) for layer in range(8)] == [True] * 3 + [False] * 3 + [True, False]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (f"{MLA} --enable-dsa-indexer --index-topk-pattern CSSSCSSS", "share selected keys"),
        (f"{MLA} --enable-dsa-indexer --index-topk-freq 4 --noop-layers 7", "padding layers that count"),
        (f"{MLA} --use-sparse-flash-attn", "without an indexer"),
        ("--full-attention-interval 4", "without its number of heads"),
    ],
)
def test_flags_of_other_attention_are_refused_by_name(flags: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        imported(flags)
