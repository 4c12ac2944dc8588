"""DeepSeek-V4's layers: parameters and FLOPs against counts by tensor shapes, streams in memory and sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pydantic import ValidationError

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.stages.stage_memory import communicators
from autodeploy.costs.stages.step_parts import p2p_bytes
from autodeploy.costs.steps.one_strategy import candidate_for
from autodeploy.costs.workload.attention_types import kind_of
from autodeploy.costs.workload.flops import forward_flops_per_token
from autodeploy.costs.workload.layers import head_table, last_kind, layer_kinds, layer_table, mtp_table
from autodeploy.costs.workload.memory_choices import LAYER_INPUT
from autodeploy.costs.workload.operators import LayerTable, OperatorFeatures
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import Spec
from tests import factories
from tests.support.sharding import shard

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

FUSED = OperatorFeatures()
SLIDING, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
SIZES: dict[str, Any] = {
    "name": "small",
    "hidden_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 2048,
    "q_lora_rank": 96,
    "qk_rope_head_dim": 16,
    "sliding_window": 128,
    "layer_types": [SLIDING, CSA, HCA, CSA, HCA],
    "compressed_attention": {
        "o_groups": 8,
        "o_lora_rank": 48,
        "index_topk": 256,
        "index_n_heads": 4,
        "index_head_dim": 32,
    },
    "hyper_connections": {"hc_mult": 4},
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 192,
    "n_shared_experts": 1,
    "num_hash_layers": 2,
    "num_nextn_predict_layers": 1,
}
SMALL = ModelSpec(**SIZES)

# The tensors of a layer by their names in the checkpoint: rows and columns of matrices, lengths of vectors.
ATTENTION = {
    "wq_a": (96, 512),
    "wq_b": (16 * 64, 96),
    "wkv": (64, 512),
    "wo_a": (8 * 48, 16 * 64 // 8),
    "wo_b": (512, 8 * 48),
    "attn_sink": (16,),
    "q_norm": (96,),
    "kv_norm": (64,),
}
POOLED = {
    CSA: {"wkv": (2 * 64, 512), "wgate": (2 * 64, 512), "ape": (4, 2 * 64), "norm": (64,)},
    HCA: {"wkv": (64, 512), "wgate": (64, 512), "ape": (128, 64), "norm": (64,)},
    SLIDING: {},
}
INDEXER = {
    "wq_b": (4 * 32, 96),
    "weights_proj": (4, 512),
    "wkv": (2 * 32, 512),
    "wgate": (2 * 32, 512),
    "ape": (4, 2 * 32),
    "norm": (32,),
}
STREAMS = {"fn": (24, 4 * 512), "base": (24,), "scale": (3,)}
OUTER = {"attn_norm": (512,), "ffn_norm": (512,)}
EXPERT = 3 * 192 * 512
# Positions in an entry have two dimensions, and are no factor of a product.
ADDED = {"ape"}


def counted(*groups: dict[str, tuple[int, ...]]) -> tuple[int, int]:
    """Matrices and everything else."""
    shapes = [(name, shape) for group in groups for name, shape in group.items()]
    matrices = [shape for name, shape in shapes if len(shape) == 2 and name not in ADDED]
    whole = sum(int(np.prod(shape)) for _, shape in shapes)
    inner = sum(int(np.prod(shape)) for shape in matrices)
    return inner, whole - inner


def of_layer(kind: str) -> tuple[int, int]:
    """Matrices and vectors of a layer, without its experts and router."""
    groups = [ATTENTION, POOLED[kind], INDEXER if kind == CSA else {}, STREAMS, STREAMS, OUTER]
    return tuple(map(sum, zip(*(counted(group) for group in groups), strict=True)))  # type: ignore[return-value]


def products(table: LayerTable) -> float:
    found = [o for o in table.operators if o.kind in {"gemm", "grouped_gemm"}]
    return float(sum(np.ravel(2.0 * o.rows * o.columns * o.depth * o.groups)[0] for o in found))


def scores(table: LayerTable) -> dict[str, float]:
    return {o.name: float(np.ravel(o.flops)[0]) for o in table.operators if o.kind == "attention"}


def kept(table: LayerTable) -> dict[str, float]:
    return {t.name: float(np.ravel(t.kept_bytes)[0]) for t in table.tensors}


def moved(table: LayerTable, *names: str) -> float:
    return sum(float(np.ravel(o.forward_bytes)[0]) for o in table.operators if o.name in names)


@pytest.mark.parametrize("layer", range(5))
def test_parameters_of_a_layer_are_those_of_its_tensors(layer: int) -> None:
    kind = SIZES["layer_types"][layer]
    matrices, vectors = of_layer(kind)
    experts = (16 + 1) * EXPERT + 16 * 512
    assert SMALL.layer_params(layer) == matrices + vectors + experts
    assert SMALL.layer_matrix_params(layer, SMALL.computing_experts_per_tok) == matrices + (4 + 1) * EXPERT + 16 * 512
    table = layer_table(SMALL, shard(), FUSED, kind_of(SMALL, layer))
    assert float(np.ravel(table.dense_params + table.expert_params)[0]) == SMALL.layer_params(layer)
    assert products(table) / 4096 == pytest.approx(
        2 * SMALL.layer_matrix_params(layer, SMALL.computing_experts_per_tok)
    )


def test_totals_are_the_sums_of_layers_ends_and_a_module_with_a_window_alone() -> None:
    head = 4 * 4 * 512 + 4 + 1
    ends = 2 * 2048 * 512 + 512 + head
    assert SMALL.total_params() == sum(map(SMALL.layer_params, range(5))) + ends
    matrices, vectors = of_layer(SLIDING)
    module = matrices + vectors + (16 + 1) * EXPERT + 16 * 512 + 2 * 512 * 512 + 3 * 512 + head
    assert SMALL.mtp_params == module
    assert last_kind(SMALL) == kind_of(SMALL, 0)
    table = mtp_table(SMALL, shard(), FUSED)
    assert float(np.ravel(table.dense_params + table.expert_params)[0]) == module


@pytest.mark.parametrize("tp", [2, 8])
def test_tensor_parallel_ranks_cut_heads_and_groups_and_hold_the_rest(tp: int) -> None:
    for layer in (0, 1, 2):
        table = layer_table(SMALL, shard(tp=tp), FUSED, kind_of(SMALL, layer))
        cut = 16 * 64 * 96 + 8 * 48 * 128 + 512 * 8 * 48 + 16 + EXPERT
        whole = SMALL.layer_params(layer) - cut - 16 * EXPERT
        assert float(np.ravel(table.dense_params)[0]) == whole + cut / tp


def keys(kind: str, seq: int) -> float:
    """Keys and entries of a query, one by one."""
    position = np.arange(1, seq + 1)
    window = np.minimum(position, 128)
    entries = {SLIDING: 0, CSA: np.minimum(position // 4, 256), HCA: position // 128}[kind]
    return float(np.mean(window + entries))


@pytest.mark.parametrize("seq", [512, 4096, 131_072])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_queries_see_their_window_and_the_entries_before_them(layer: int, seq: int) -> None:
    kind = SIZES["layer_types"][layer]
    found = scores(layer_table(SMALL, shard(seq=seq), FUSED, kind_of(SMALL, layer)))
    per_key = 2 * 16 * (64 + 64)
    # A causal triangle counts half of its diagonal: at most one key or entry a query less or more.
    assert found["mqa_attention"] / seq / per_key == pytest.approx(keys(kind, seq), abs=1.01)
    if kind == CSA:
        entries = np.mean(np.arange(1, seq + 1) // 4)
        assert found["index_scores"] / seq / (2 * 4 * 32) == pytest.approx(entries, abs=0.51)
    assert set(found) == ({"mqa_attention"} | ({"index_scores", "index_target"} if kind == CSA else set()))


@pytest.mark.parametrize("model", [SMALL, load_preset("deepseek-v4-flash"), load_preset("deepseek-v4-pro")])
def test_model_flops_are_those_of_the_tables(model: ModelSpec) -> None:
    tables = [(layer_table(model, shard(), FUSED, kind), count) for kind, count in layer_kinds(model)]
    tables += [(head_table(model, shard(), FUSED), 1), (mtp_table(model, shard(), FUSED), 1)]
    total = 0.0
    for table, count in tables:
        attention = sum(flops for name, flops in scores(table).items() if name != "index_target")
        total += count * (products(table) + attention)
    assert forward_flops_per_token(model, 4096) == pytest.approx(total / 4096, rel=1e-9)


def test_layers_keep_and_replay_from_all_their_streams() -> None:
    single = SMALL.model_copy(update={"hyper_connections": None})
    four, one = (layer_table(m, shard(), FUSED, kind_of(m, 1)) for m in (SMALL, single))
    element = 2 * 4096 * 512
    assert kept(one)[LAYER_INPUT] == element
    assert kept(four)[LAYER_INPUT] == kept(four)["mlp_norm_in"] == 4 * element
    more = sum(kept(four).values()) - sum(kept(one).values())
    maps = 2 * 4096 * 4 * 2 * 24  # raw and normalised, in FP32, of both halves
    assert more == 2 * (3 * element + element + element) + maps


def test_mixing_moves_what_the_paper_counts() -> None:
    # mHC, table 2, fused: of n streams of C elements (n + 1) C are read and n C written to mix them, and n C read and
    # C written for the half's input; the maps' product reads n C more. MindSpeed copies the result: 2 n C.
    single = SMALL.model_copy(update={"hyper_connections": None})
    four, one = (layer_table(m, shard(), FUSED, kind_of(m, 1)) for m in (SMALL, single))
    element, n = 2 * 4096 * 512, 4
    mixed = moved(four, "attention_streams", "mlp_streams")
    assert mixed == 2 * element * ((n + 1) + (n + 1) + n + 2 * n)
    plain, norms = (moved(table, "attention_norm", "mlp_norm") for table in (one, four))
    assert plain - norms == 2 * 3 * element  # two read and one written of the residual's addition


def spec(**strategy: Any) -> Spec:
    given = {
        "tp": 2,
        "pp": 2,
        "ep": 8,
        "etp": 1,
        "micro_batch_size": 1,
        "sequence_parallel": True,
        "distributed_optimizer": True,
    }
    return Spec.model_validate(
        {
            "model": SIZES,
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "strategy": given | strategy,
        }
    )


def test_stages_send_all_streams() -> None:
    found = []
    for model in (SIZES, {key: value for key, value in SIZES.items() if key != "hyper_connections"}):
        one = spec().model_copy(update={"model": ModelSpec(**model)})
        context = spec_context(one, profile_of(one.cluster), frozenset({"flash_attention"}))
        assert one.strategy is not None
        candidates = candidate_for(context, one.strategy)
        sent = [message for exists, message in communicators(candidates, context)][5]
        found.append((float(p2p_bytes(candidates, context)[0]), float(np.ravel(sent)[0])))
    assert found[0] == (4 * found[1][0], 4 * found[1][1])
    assert found[1][0] == 2 * 4096 * 512 / 2


def test_ranks_of_a_sequence_gather_keys_entries_and_what_neighbours_pool() -> None:
    table = layer_table(SMALL, shard(tp=2, cp=4, seq=32_768), FUSED, kind_of(SMALL, 1))
    tokens = 32_768 // 4
    ring = {e.name: (float(np.ravel(e.message_bytes)[0]), e.forward_count) for e in table.exchanges if e.kind == "ring"}
    assert {name: size for name, (size, _) in ring.items()} == {
        "mqa_key_ring": 2 * tokens * 64,
        "pool_entries_ring": 2 * tokens / 4 * 64,
        "pool_tokens_ring": 4 * tokens * 4 * 64,
        "index_pool_entries_ring": 2 * tokens / 4 * 32,
        "index_pool_tokens_ring": 4 * tokens * 4 * 32,
    }
    assert all(float(np.ravel(count)[0]) == 3 for _, count in ring.values())
    gathered = [e.name for e in table.exchanges if e.kind == "gather" and "gather" in e.name]
    assert "index_q_gather" in gathered
    assert "attention_gather" not in gathered


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"compressed_attention": None}, "compressed_attention"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"sliding_window": None}, "sliding_window"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"layer_types": [SLIDING] * 5}, "layer_types"),
        ({"layer_types": ["full_attention", CSA, HCA, CSA, HCA]}, "layer_types"),
        ({"qk_norm": True}, "qk_norm"),
        ({"num_attention_heads": 20}, "compressed_attention"),
    ],
)
def test_sizes_have_to_agree(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as error:
        ModelSpec(**(SIZES | change))
    assert field in {line["loc"][0] for line in error.value.errors()}


SCRIPT = (
    "torchrun --nproc_per_node 16 --nnodes 16 {program} --num-layers 6 --hidden-size 512 --num-attention-heads 16 "
    "--vocab-size 2048 --micro-batch-size 1 --seq-length 4096 --global-batch-size 256 --swiglu --num-experts 16 "
    "--moe-router-topk 4 --moe-ffn-hidden-size 192 --moe-shared-expert-intermediate-size 192 --moe-layer-freq 1 "
    "--first-k-dense-replace -1 --untie-embeddings-and-output-weights --position-embedding-type deepseek4 "
    "--multi-latent-attention --q-lora-rank 96 --kv-lora-rank 64 --qk-head-dim 64 --qk-pos-emb-head-dim 16 "
    "--v-head-dim 32 --o-groups 8 --o-lora-rank 48 --kv-compress --compress-ratios 0 4 128 4 128 4 --noop-layers 5 "
    "--index-topk 256 --index-n-heads 4 --index-head-dim 32 --n-hash-layers 2 --mtp-num-layers 1 {flags}\n"
)
KERNELS = "--enable-dsa-indexer --use-sparse-flash-attn --use-fused-lightning-indexer"
MHC = "--enable-mhc --hc-mult 4 --use-fused-mhc"


def same(first: ModelSpec, second: ModelSpec) -> bool:
    """Whether both are of the same shape."""
    told = {"name", "recipe"}
    return first.model_dump(exclude=told) == second.model_dump(exclude=told)


def imported(flags: str = f"{KERNELS} {MHC}", program: str = "pretrain_deepseek4.py") -> ModelSpec:
    found = import_document(SCRIPT.format(program=program, flags=flags), "a.sh").document
    return ModelSpec.model_validate(found["model"])


def planned(one: Spec) -> tuple[PlanSet, Plan]:
    changes = {"stages": (), "run": None, "micro_batches": 16, "num_npus_used": 16}
    return factories.plan_set(1, spec=one), factories.plan(1, spec=one, strategy=one.strategy, **changes)


def test_scripts_of_its_trainer_are_read_with_padding_left_out() -> None:
    model = imported()
    assert same(model, SMALL)
    assert (
        model.recipe_or_default.compress_rope_theta,
        model.recipe_or_default.rope_scaling and model.recipe_or_default.rope_scaling.factor,
    ) == (4e4, 4.0)
    assert imported(KERNELS).hyper_connections is None


@pytest.mark.parametrize(
    ("flags", "program", "words"),
    [
        (f"{KERNELS} {MHC}", "pretrain_gpt.py", "--kv-compress"),
        (f"--enable-dsa-indexer --use-fused-lightning-indexer {MHC}", "pretrain_deepseek4.py", "sparse-flash-attn"),
        (f"{KERNELS} --enable-mhc", "pretrain_deepseek4.py", "without --use-fused-mhc"),
        ("--use-sparse-flash-attn --use-fused-lightning-indexer", "pretrain_deepseek4.py", "without an indexer"),
        (f"{KERNELS} --indexer-qk-quant-scheme mxfp4", "pretrain_deepseek4.py", "4- or 8-bit"),
    ],
)
def test_launches_of_other_operators_are_refused_by_name(flags: str, program: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        imported(flags, program)


@pytest.mark.parametrize("flag", ["--compress-ratios 0 4 128 4 128 4", "--multi-latent-attention"])
def test_its_trainer_without_the_flags_of_its_layers_is_refused(flag: str) -> None:
    text = SCRIPT.format(program="pretrain_deepseek4.py", flags=f"{KERNELS} {MHC}").replace(flag, "")
    with pytest.raises(SpecError, match=flag.split()[0]):
        import_document(text, "a.sh")


def test_a_script_comes_back_as_the_model_it_was_written_for() -> None:
    one = spec(pp=4, tp=1, ep=4, dp=4, layers_per_stage=[1, 2, 1, 1], moe_dispatcher="alltoall")
    text = export(*planned(one), "mindspeed-llm").text
    assert "--compress-ratios 0 4 128 4 128 0\n" in text
    assert "pretrain_deepseek4.py" in text
    back = import_document(text, "a.sh")
    model = ModelSpec.model_validate(back.document["model"])
    assert same(model, one.model)


def test_preference_tuning_is_not_written() -> None:
    one = spec(tp=1, pp=2, ep=8, dp=8, moe_dispatcher="alltoall")
    pairs = one.model_copy(update={"training": one.training.model_copy(update={"kind": "dpo"})})
    with pytest.raises(UnsupportedError, match="kind dpo"):
        export(*planned(pairs), "mindspeed-llm")


def test_a_release_without_its_flags_refuses_it_by_name() -> None:
    planned_once = planned(spec(tp=1, pp=2, ep=8, dp=8, moe_dispatcher="alltoall"))
    with pytest.raises(UnsupportedError, match="compressed_attention"):
        export(*planned_once, "megatron")
