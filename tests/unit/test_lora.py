"""Low-rank adapters: parameters by hand, what frozen weights no longer cost, and memory below full training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.steps.one_strategy import candidate_of, estimated
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.costs.training_run.checkpoints import saved_bytes
from autodeploy.costs.workload.flops import forward_flops_per_token, step_flops_per_token
from autodeploy.costs.workload.layers import embedding_table, head_table, layer_table
from autodeploy.costs.workload.operators import LayerTable, OperatorFeatures
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import Spec, parse_spec
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.tuning import TARGETS, LoraSpec, adapter_params
from tests.support.sharding import shard

WHOLE = OperatorFeatures()
LORA = OperatorFeatures(lora_rank=16, lora_targets=TARGETS)
# Qwen3-32B: hidden 5,120, 64 heads and 8 key-value heads of 128, MLP 25,600, 64 layers.
IN_AND_OUT = {
    "linear_qkv": 5120 + (64 + 8 + 8) * 128,
    "linear_proj": 64 * 128 + 5120,
    "linear_fc1": 5120 + 2 * 25600,
    "linear_fc2": 25600 + 5120,
}


def document(**training: object) -> dict[str, object]:
    return {
        "model": "qwen3-32b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
        "training": {"kind": "sft", "seq_length": 4096, "global_batch_size": 64, **training},
    }


@pytest.mark.parametrize("target", TARGETS)
def test_an_adapter_has_rank_times_in_and_out(target: str) -> None:
    model, on = load_preset("qwen3-32b"), OperatorFeatures(lora_rank=16, lora_targets=(target,))
    by_hand = 16 * IN_AND_OUT[target]
    assert layer_table(model, shard(), on, ("dense", None)).dense_params == by_hand
    assert adapter_params(model, 16, (target,)) == 64 * by_hand


def test_tensor_parallel_ranks_cut_one_half_of_an_adapter() -> None:
    table = layer_table(load_preset("qwen3-32b"), shard(tp=4), LORA, ("dense", None))
    columns = 16 * (5120 + (64 + 16) * 128 / 4) + 16 * (5120 + 2 * 25600 / 4)
    rows = 16 * (64 * 128 / 4 + 5120) + 16 * (25600 / 4 + 5120)
    assert table.dense_params == columns + rows


def test_the_model_is_frozen_whole() -> None:
    model = load_preset("qwen3-32b")
    for whole, frozen in (
        [layer_table(model, shard(), on, ("dense", None)) for on in (WHOLE, LORA)],
        [embedding_table(model, shard(), on) for on in (WHOLE, LORA)],
        [head_table(model, shard(), on) for on in (WHOLE, LORA)],
    ):
        assert frozen.frozen_params == whole.dense_params
        named = {op.name for op in whole.operators if op.kind == "gemm"}
        assert all((op.passes == (1.0, 1.0, 0.0)) == (op.name in named) for op in frozen.operators if op.kind == "gemm")
    assert embedding_table(model, shard(), LORA).dense_params == 0.0


def test_inputs_of_matrices_without_an_adapter_are_not_kept() -> None:
    model, on = load_preset("qwen3-32b"), OperatorFeatures(lora_rank=16, lora_targets=("linear_qkv",))
    kept = {t.name: t.kept_bytes for t in layer_table(model, shard(), on, ("dense", None)).tensors}
    assert kept["mlp_norm_out"] == kept["mlp_activation_out"] == 0.0
    assert kept["attention_norm_out"] == 2 * 4096 * 5120
    assert kept["lora_qkv_proj_inner"] == 2 * 4096 * 16


def passes_of(name: str, *, tp: int, sequence_parallel: bool) -> dict[str, list[float]]:
    on = OperatorFeatures(lora_rank=16, lora_targets=TARGETS)
    where = shard(tp=tp, sp=sequence_parallel)
    table = layer_table(load_preset("qwen3-32b"), where, on, ("dense", None))
    found = {op.name.removeprefix(f"lora_{name}_"): op.passes for op in table.operators if f"lora_{name}" in op.name}
    return {part: [float(np.max(each)) for each in passes] for part, passes in found.items() if part != "add"}


def test_a_merged_weight_takes_the_products_that_it_saves() -> None:
    # cc_lora_forward.py: columns with sequence parallelism merge in both passes, rows forward alone.
    columns = passes_of("mlp_up_proj", tp=8, sequence_parallel=True)
    assert columns == {"down": [1, 0, 1], "up": [0, 1, 1], "merge": [1, 0, 0], "merge_again": [0, 1, 0]}
    rows = passes_of("mlp_down_proj", tp=8, sequence_parallel=True)
    assert rows["down"] == [1, 1, 1]
    assert (rows["up"], rows["up_gradient"]) == ([0, 0, 1], [0, 1, 0])
    assert (rows["merge"], rows["merge_again"]) == ([1, 0, 0], [0, 0, 0])
    # Without it, columns merge in the backward pass alone, rows never.
    assert passes_of("mlp_up_proj", tp=8, sequence_parallel=False)["merge"] == [0, 0, 0]
    assert passes_of("mlp_up_proj", tp=8, sequence_parallel=False)["merge_again"] == [0, 1, 0]
    assert passes_of("mlp_down_proj", tp=8, sequence_parallel=False)["merge"] == [0, 0, 0]
    # One rank: 4,096 tokens are fewer than 5,120 columns of the input.
    assert passes_of("mlp_up_proj", tp=1, sequence_parallel=False)["merge"] == [0, 0, 0]


def test_the_inner_width_travels_instead_of_the_input() -> None:
    table = layer_table(load_preset("qwen3-32b"), shard(tp=8), LORA, ("dense", None))
    runs = {e.name: (float(np.max(e.forward_count)), float(np.max(e.backward_count))) for e in table.exchanges}
    assert all(runs[name] == (0, 0) for name in runs if name.endswith("_regather"))
    assert runs["lora_mlp_up_proj_inner_gather"] == runs["lora_mlp_up_proj_gradient_scatter"] == (0, 1)
    assert runs["lora_mlp_down_proj_scatter"] == (1, 0)
    inner = {e.name: float(np.max(e.message_bytes)) for e in table.exchanges if e.name.startswith("lora_")}
    assert set(inner.values()) == {2 * 4096 * 16}


def test_packed_documents_count_the_keys_inside_them() -> None:
    model = load_preset("qwen3-32b")
    whole, packed = (forward_flops_per_token(model, 131_072, keys=keys) for keys in (None, 4096.0))
    # 64 layers of 64 heads, products of 128 for queries with keys and for values.
    assert whole - packed == pytest.approx(64 * 2 * (128 + 128) * 64 * (131_072 / 2 - 4096), rel=1e-4)
    assert forward_flops_per_token(model, 4096, keys=1e6) == forward_flops_per_token(model, 4096)


def test_frozen_weights_take_a_third_less_work() -> None:
    model = load_preset("qwen3-32b")
    scores = forward_flops_per_token(model, 4096) - forward_flops_per_token(model, 1)
    weights = (forward_flops_per_token(model, 1)) / 2
    found = step_flops_per_token(model, 4096, adapter_params=adapter_params(model, 16, TARGETS))
    by_hand = 4 * weights + 3 * scores + 6 * 16 * 64 * sum(IN_AND_OUT.values())
    assert found == pytest.approx(by_hand, rel=1e-4)


def estimate(spec: Spec) -> tuple[float, dict[str, float]]:
    context = spec_context(spec, profile_of(spec.cluster), frozenset({"flash_attention", "distributed_optimizer"}))
    strategy = Strategy(tp=1, pp=8, micro_batch_size=1, schedule="1f1b")
    found = estimated(strategy, context).estimate
    return found.step_time_s, {name: float(np.max(part)) for name, part in found.memory.items()}


def test_adapters_take_less_time_and_memory_than_all_of_the_model() -> None:
    whole_s, whole = estimate(parse_spec(document()))
    lora_s, lora = estimate(parse_spec(document(lora={"rank": 16})))
    assert 0.6 * whole_s < lora_s < whole_s
    assert lora["gradients"] < 0.02 * whole["gradients"]
    assert lora["optimizer"] < 0.02 * whole["optimizer"]
    assert whole["weights"] < lora["weights"] < 1.02 * whole["weights"]


@pytest.mark.parametrize(("tp", "pp"), [(8, 1), (8, 2), (2, 8)])
def test_sweep_and_estimate_agree_with_adapters(tp: int, pp: int) -> None:
    spec = parse_spec(document(lora={"rank": 16}))
    context = spec_context(spec, profile_of(spec.cluster), frozenset({"flash_attention", "distributed_optimizer"}))
    strategy = Strategy(tp=tp, pp=pp, micro_batch_size=1, schedule="1f1b")
    found = estimated(strategy, context).estimate
    world, batch, vendor = context.world, context.global_batch, context.machine.vendor
    swept = sweep(candidate_of(strategy, world=world, global_batch=batch, moe=False, vendor=vendor), context)
    assert swept.step_time_s[0] == pytest.approx(found.step_time_s, rel=1e-9)
    assert swept.memory_bytes[0] == pytest.approx(np.max(found.allocator_bytes), rel=1e-9)
    assert swept.least_bytes[0] > 2.0 * 32.7e9 / (tp * pp)  # the frozen weights are there


def test_a_checkpoint_has_the_frozen_weights_too_and_states_of_adapters_alone() -> None:
    spec = parse_spec(document(lora={"rank": 16}))
    plan: Any = SimpleNamespace(strategy=Strategy(tp=8))
    adapters = 16 * 64 * sum(IN_AND_OUT.values())
    assert saved_bytes(spec, plan) == 2 * spec.model.total_params() + 14 * adapters


def test_fine_tuning_of_all_parameters_is_a_step_of_pre_training() -> None:
    assert estimate(parse_spec(document())) == estimate(parse_spec(document(kind="pretrain")))


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"model": "deepseek-v3"}, "/training/lora", "num_nextn_predict_layers"),
        ({"model": "step-3.5-flash"}, "/training/lora", "sliding_attention_heads"),
        ({"model": "glm-5"}, "/training/lora", "sparse_attention"),
    ],
)
def test_models_whose_adapters_are_not_modelled_are_refused_by_name(
    changes: dict[str, object], path: str, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(document(lora={"rank": 16}) | changes)
    assert [(e.path, message in e.message) for e in caught.value.errors] == [(path, True)]


def test_pre_training_has_no_adapters() -> None:
    with pytest.raises(SpecError, match="lora is not modelled with kind: pretrain"):
        parse_spec(document(kind="pretrain", lora={"rank": 16}))


def test_targets_stand_in_one_order() -> None:
    assert LoraSpec(rank=8, target_modules=("linear_fc2", "linear_qkv")).target_modules == ("linear_qkv", "linear_fc2")


def test_intervals_say_that_no_run_trained_adapters() -> None:
    strategy = {"tp": 8, "pp": 2, "micro_batch_size": 1}
    lora = {"rank": 16, "target_modules": list(TARGETS)}
    whole, adapted = (
        planner.estimate(parse_spec(document(**extra) | {"strategy": strategy})).uncertainty
        for extra in ({}, {"lora": lora})
    )
    assert "lora" not in whole.extrapolated
    assert "lora" in adapted.extrapolated
    assert adapted.high_s / adapted.low_s > whole.high_s / whole.low_s


def test_a_chip_without_fused_collectives_has_plans_that_need_tensor_parallelism() -> None:
    """Multiplications in chunks are what it would have instead, which MindSpeed-LLM refuses beside adapters."""
    training = {"lora": {"rank": 16}, "global_batch_size": 256}
    spec = document(**training) | {
        "cluster": {"profile": "cloudmatrix-384", "num_npus": 8},
        "search": {"effort": 0.02, "risk": "neutral", "fix": {"tp": 2, "cp": 1, "micro_batch_size": 1}},
    }
    found = planner.plan(parse_spec(spec), alone=True)
    assert found.plans
    assert all("coc" not in each.strategy.features for each in found.plans)


def test_a_pipeline_holds_a_tied_embedding_twice_and_frozen() -> None:
    strategies = ({"tp": 1, "pp": pp, "recompute": {"granularity": "full"}} for pp in (1, 2))
    one, two = (
        planner.estimate(parse_spec(document(lora={"rank": 16}) | {"model": "qwen3-0.6b", "strategy": each}))
        for each in strategies
    )
    held = [sum(stage.memory_gib.weights for stage in found.stages) for found in (one, two)]
    assert held[1] - held[0] == pytest.approx(2 * 151_936 * 1024 / 2**30, rel=0.02)
    # Nobody adds up a gradient of it, and it has no states.
    assert two.stages[1].memory_gib.optimizer <= one.stages[0].memory_gib.optimizer


# Qwen3-30B-A3B: hidden 2,048, 32 heads and 4 key-value heads of 128, 128 experts of 768, 48 layers.
BESIDE_EXPERTS = {
    "linear_qkv": 2048 + (32 + 4 + 4) * 128,
    "linear_proj": 32 * 128 + 2048,
    "linear_fc1": 128 * (2048 + 2 * 768),
    "linear_fc2": 128 * (768 + 2048),
}


def rows_of(model: str, *, on: OperatorFeatures = LORA, **cut: int) -> LayerTable:
    return layer_table(load_preset(model), shard(**cut), on, ("moe", None))


def test_experts_have_adapters_of_their_own() -> None:
    model, table = load_preset("qwen3-30b-a3b"), rows_of("qwen3-30b-a3b")
    by_hand = 16 * sum(BESIDE_EXPERTS.values())
    assert float(np.max(table.dense_params + table.expert_params)) == by_hand
    assert adapter_params(model, 16, TARGETS) == 48 * by_hand
    of_a_token = 16 * (sum(BESIDE_EXPERTS.values()) - 120 / 128 * sum(list(BESIDE_EXPERTS.values())[2:]))
    assert adapter_params(model, 16, TARGETS, active=True) == 48 * of_a_token
    assert float(np.max(table.frozen_params)) == model.layer_params(0)


def test_halves_of_experts_adapters_that_nobody_cuts_are_reduced_as_dense_ones() -> None:
    # experts.py: weight1_lora_a [h, r] and weight2_lora_b [r, h] of every expert are reduced by all replicas.
    table = rows_of("qwen3-30b-a3b", ep=8, tp=4, etp=4)
    experts, whole, cut = 16, 2048 + 2048, (2 * 768 + 768) / 4
    attention = 2048 + (32 + 4 + 4) * 128 / 4 + 32 * 128 / 4 + 2048
    assert float(np.max(table.expert_params)) == 16 * experts * cut
    assert float(np.max(table.dense_params)) == 16 * (experts * whole + attention)


def test_experts_multiply_apart_and_keep_their_inputs() -> None:
    table = rows_of("qwen3-30b-a3b", ep=8)
    rows = {op.name: op for op in table.operators}
    up, down = rows["expert_up_proj"], rows["expert_up_proj_lora_down"]
    assert (up.passes, down.passes) == ((1.0, 1.0, 0.0), (1.0, 1.0, 1.0))
    assert (down.columns, down.depth, rows["expert_up_proj_lora_up"].columns) == (16.0, 2048, 2 * 768)
    kept = {tensor.name: float(np.max(tensor.kept_bytes)) for tensor in table.tensors}
    assert kept["expert_up_proj_lora_inner"] == 2 * 4096 * 8 * 16
    assert kept["expert_in"] == 2 * 4096 * 8 * 2048
    assert kept["mlp_norm_out"] == 0.0  # only a router reads it, which is frozen
    assert not any("expert" in e.name and "lora" in e.name for e in table.exchanges)


def test_latents_have_adapters_that_no_rank_cuts() -> None:
    # DeepSeek-V3: hidden 7,168, latents of 1,536 + 512 + 64, one shared expert of 2,048.
    table = rows_of("deepseek-v3", tp=8, etp=8)
    rows = {op.name: op for op in table.operators}
    down, up = rows["latent_down_proj_lora_down"], rows["latent_down_proj_lora_up"]
    assert (float(np.max(down.rows)), down.columns, up.columns) == (4096 / 8, 16.0, 1536 + 512 + 64)
    shared = 7168 + 2 * 2048 / 8 + 2048 / 8 + 7168
    attention = 7168 + 1536 + 512 + 64 + 128 * 128 / 8 + 7168
    assert float(np.max(table.dense_params)) == 16 * (shared + attention + 256 * 2 * 7168)
    kept = {tensor.name: float(np.max(tensor.kept_bytes)) for tensor in table.tensors}
    assert kept["latents"] == 2 * 4096 / 8 * (1536 + 512)  # before their norms: frozen projections read none again
    assert {"lora_shared_up_proj_down", "lora_shared_down_proj_up"} <= set(rows)


def test_adapters_of_experts_are_launched_by_the_sequence_dispatcher() -> None:
    spec = document(lora={"rank": 16}, global_batch_size=64) | {
        "model": "qwen3-30b-a3b",
        "cluster": {"profile": "cloudmatrix-384", "num_npus": 8},
        "search": {
            **{"effort": 0.02, "target": "mindspeed-llm", "risk": "neutral"},
            **{"fix": {"cp": 1, "micro_batch_size": 1}, "allow": {"tp": [1, 2], "pp": [1, 2]}},
        },
    }
    found = planner.plan(parse_spec(spec), alone=True)
    assert found.plans
    for plan in found.plans:
        assert plan.strategy.schedule in {"1f1b", "interleaved"}
        text = export(found, plan, "mindspeed-llm").text
        assert "--moe-token-dispatcher-type alltoall_seq" in text
        assert import_document(text, "plan.sh").spec().training.lora == LoraSpec(rank=16, alpha=32)
