"""Muon: FLOPs and states by hand, whole matrices on their owners, and launches out and in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.steps.one_strategy import estimated
from autodeploy.costs.training_run.checkpoints import saved_bytes
from autodeploy.costs.workload.layers import layer_kinds, layer_table, model_matrices, mtp_table
from autodeploy.costs.workload.operators import OperatorFeatures
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import Spec, parse_spec
from autodeploy.specs.strategy import Strategy
from cost_models.data_parallel import synchronisation
from cost_models.hbm import OptimizerFormat, state_bytes
from cost_models.optimizers import MUON as KIND
from cost_models.optimizers import newton_schulz_s, owned_share
from tests.support.sharding import shard

MUON = OperatorFeatures(optimizer=KIND)


def document(model: str = "qwen3-8b", **training: object) -> dict[str, Any]:
    return {
        "model": model,
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
        "training": {"seq_length": 4096, "global_batch_size": 64, "optimizer": "muon", **training},
        "search": {"effort": 0.02},
    }


@pytest.mark.parametrize("model", ["qwen3-8b", "kimi-k2", "glm-4.5"])
@pytest.mark.parametrize("grouped", [True, False])
def test_every_matrix_of_a_layer_is_orthogonalised(model: str, grouped: bool) -> None:
    spec, on = load_preset(model), OperatorFeatures(optimizer=KIND, grouped_gemm=grouped)
    for kind, _ in layer_kinds(spec):
        table = layer_table(spec, shard(), on, kind)
        held = sum(float(np.max(m.rows * m.columns * m.count)) for m in table.matrices)
        layer = spec.first_k_dense_replace if kind.mlp == "moe" else 0
        assert held == spec.layer_matrix_params(layer)
        assert layer_table(spec, shard(), OperatorFeatures(), kind).matrices == ()


def test_queries_keys_and_values_are_apart_and_experts_of_a_kernel_together() -> None:
    # GLM-4.5: hidden 5,120, 96 heads and 8 of keys of 128, 160 experts of 1,536, one shared expert.
    table = layer_table(load_preset("glm-4.5"), shard(tp=4, ep=8, etp=4), MUON, ("moe", None))
    sides = {(float(np.max(m.rows)), float(np.max(m.columns)), m.experts) for m in table.matrices}
    attention = {(96 * 128 / 4, 5120, False), (8 * 128 / 4, 5120, False), (5120, 96 * 128 / 4, False)}
    experts = {(20 * 2 * 1536 / 4, 5120, True), (20 * 1536 / 4, 5120, True)}
    assert attention | experts | {(160, 5120, False)} <= sides
    assert model_matrices(load_preset("qwen3-8b"), MUON) == (36 * 6, 0)


def test_a_prediction_module_has_one_matrix_more_and_no_head() -> None:
    model = load_preset("glm-4.5")
    layer, module = layer_table(model, shard(), MUON, ("moe", None)), mtp_table(model, shard(), MUON)
    assert len(module.matrices) == len(layer.matrices) + 1


def test_an_iteration_takes_two_products_of_the_long_side_and_one_of_the_short() -> None:
    spec = parse_spec(document())
    rates = spec_context(spec, profile_of(spec.cluster), frozenset()).machine.rates
    m, n = 8192.0, 16384.0
    seconds = float(newton_schulz_s(m, n, rates))
    by_hand = 5 * (4 * m * m * n + 2 * m**3) / (float(np.max(rates.peak_flops)) * float(np.max(rates.gemm_fraction)))
    assert by_hand < seconds < 1.3 * by_hand  # beside the products, their edges and what vector units stream
    assert float(newton_schulz_s(n, m, rates)) == seconds


def test_the_busiest_owner_has_whole_matrices() -> None:
    assert owned_share(8.0, 4.0) == 2 / 8
    assert owned_share(9.0, 4.0) == 3 / 9
    assert owned_share(2.0, 64.0) == 1 / 2
    assert owned_share(100.0, 1.0) == 1.0


def test_a_matrix_has_one_momentum_and_whole_gradients_are_reduced() -> None:
    form = OptimizerFormat.of(frozenset({"muon"}))
    assert float(state_bytes(1, distributed_optimizer=True, optimizer=form).optimizer) == 4 + 4
    spec = parse_spec(document())
    context = spec_context(spec, profile_of(spec.cluster), frozenset({"flash_attention"}))
    group, tiers = context.machine.group(np.ones(1), np.array([8.0])), context.machine.tiers
    plain, whole = (
        synchronisation(1e9, group, tiers, distributed_optimizer=True, gradient_bytes=4.0, whole_gradients=each)
        for each in (False, True)
    )
    assert float(np.max(whole.reduce_s)) == pytest.approx(2 * float(np.max(plain.reduce_s)))
    assert np.array_equal(whole.gather_s, plain.gather_s)


def predicted(spec: Spec, strategy: Strategy) -> tuple[dict[str, float], list[float]]:
    context = spec_context(
        spec,
        profile_of(spec.cluster),
        frozenset({"flash_attention"}),
        distributed_optimizer=strategy.distributed_optimizer,
    )
    found = estimated(strategy, context).estimate
    return found.breakdown, [float(each) for each in found.memory["optimizer"]]


def test_states_of_every_stage_by_hand() -> None:
    # Qwen3-8B: 36 layers of six matrices, 4096 x (32 + 2 x 8 + 32) x 128 + 3 x 4096 x 12288; ends of 151,936 x 4,096.
    layer = 4096 * (32 + 2 * 8 + 32) * 128 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
    ends = 151_936 * 4096
    strategy = Strategy(tp=1, pp=2, dp=8, micro_batch_size=1, distributed_optimizer=True)
    _, states = predicted(parse_spec(document()), strategy)
    share = 14 / (18 * 6)  # 108 matrices of a stage, dealt to 8 ranks
    assert states[0] == pytest.approx(18 * layer * 8 * share + 12 * ends, rel=1e-6)
    alone = Strategy(tp=1, pp=2, dp=8, micro_batch_size=1, distributed_optimizer=False)
    _, whole = predicted(parse_spec(document()), alone)
    assert whole[0] == pytest.approx(18 * layer * 8 + 12 * ends, rel=1e-6)


def test_orthogonalising_takes_most_of_the_update_and_owners_share_it() -> None:
    spec, adam = parse_spec(document()), parse_spec(document(optimizer="adam"))
    shared, alone = (
        predicted(spec, Strategy(tp=1, pp=2, dp=8, micro_batch_size=1, distributed_optimizer=each))[0]["optimizer_s"]
        for each in (True, False)
    )
    plain = predicted(adam, Strategy(tp=1, pp=2, dp=8, micro_batch_size=1, distributed_optimizer=True))[0]
    assert 4 * shared < alone < 8 * shared
    assert shared > 5 * plain["optimizer_s"]


def test_a_training_with_muon_has_plans_that_say_so() -> None:
    few = {"allow": {"pp": [1, 2], "cp": [1], "micro_batch_size": [1]}, "risk": "neutral", "top_k": 2}
    spec = parse_spec(document("qwen3-30b-a3b") | {"search": {"effort": 0.02, "target": "mindspeed-llm", **few}})
    assert spec.search.features["muon"] == "on"
    found = planner.plan(spec)
    assert found.plans
    for plan in found.plans:
        assert "muon" in plan.strategy.features
        assert not plan.strategy.swap_optimizer
        assert not plan.strategy.reuse_fp32_param
        text = export(found, plan, "mindspeed-llm").text
        assert "--optimizer muon" in text
        back = import_document(text, "plan.sh")
        assert back.diagnostics.unmodelled == ()
        assert back.spec().training.optimizer == "muon"
        again = parse_spec(back.spec().model_dump(mode="json") | {"cluster": spec.cluster.model_dump(mode="json")})
        assert planner.estimate(again).step_time_s == pytest.approx(plan.step_time_s)


def test_other_ways_to_orthogonalise_are_told() -> None:
    flags = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 1000 --swiglu"
    batch = "--global-batch-size 8 --micro-batch-size 1 --bf16"
    muon = "--optimizer dist_muon --muon-tp-mode duplicated --muon-momentum 0.9"
    read = import_document(f"torchrun --nproc_per_node 8 pretrain_gpt.py {flags} {batch} {muon}", "a.sh")
    assert read.document["training"]["optimizer"] == "muon"
    assert [note.source.partition(": ")[2] for note in read.diagnostics.unmodelled] == ["--muon-tp-mode"]


@pytest.mark.parametrize(
    "change", [{"precision": "fp16"}, {"kind": "sft", "lora": {"rank": 8}}, {"kind": "dpo"}, {"precision": "fp8"}]
)
def test_trainings_that_muon_is_not_modelled_in_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="muon is not modelled with"):
        parse_spec(document(**change))


@pytest.mark.parametrize("target", ["mindformers", "torchtitan-npu", "mindspeed-llm-fsdp2"])
def test_targets_without_it_are_refused_by_name(target: str) -> None:
    with pytest.raises(SpecError, match="can't launch it"):
        planner.plan(parse_spec(document() | {"search": {"effort": 0.02, "target": target}}))


def test_a_checkpoint_has_one_momentum_of_a_matrix() -> None:
    spec = parse_spec(document())
    plan: Any = SimpleNamespace(strategy=Strategy(tp=1, features=("muon",)))
    ends = 2 * 151_936 * 4096
    assert saved_bytes(spec, plan) == (2 + 4 + 4) * spec.model.total_params() + 4 * ends
