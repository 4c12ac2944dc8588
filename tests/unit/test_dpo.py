"""Preference tuning: the reference's forward pass, its weights, both models' logits, and what a pair counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.stages.step_parts import p2p_bytes
from autodeploy.costs.steps.one_strategy import candidate_of, estimated
from autodeploy.costs.workload.adapters import REFERENCE
from autodeploy.costs.workload.flops import forward_flops_per_token, step_flops_per_token
from autodeploy.costs.workload.layers import head_table, layer_table
from autodeploy.costs.workload.operators import OperatorFeatures
from autodeploy.kit.errors import SpecError
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Strategy
from tests.support.sharding import shard

PARAMS = 8.19e9  # of Qwen3-8B
STRATEGY = Strategy(tp=4, pp=2, micro_batch_size=1, schedule="1f1b")


def document(**training: object) -> dict[str, object]:
    return {
        "model": "qwen3-8b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
        "training": {"kind": "dpo", "seq_length": 4096, "global_batch_size": 64, **training},
    }


def estimate(document: dict[str, object]) -> tuple[float, dict[str, float]]:
    spec = parse_spec(document)
    context = spec_context(spec, profile_of(spec.cluster), frozenset({"flash_attention", "distributed_optimizer"}))
    found = estimated(STRATEGY, context).estimate
    return found.step_time_s, {name: float(np.max(part)) for name, part in found.memory.items()}


def test_the_reference_runs_forward_alone_and_keeps_nothing() -> None:
    model = load_preset("qwen3-8b")
    alone, both = (
        layer_table(model, shard(tp=4), OperatorFeatures(reference=reference), ("dense", None))
        for reference in (False, True)
    )
    added = {op.name: op for op in both.operators if op.name.startswith(REFERENCE)}
    assert {name.removeprefix(REFERENCE) for name in added} == {
        op.name for op in alone.operators if op.name != "gradient_accumulation"
    }
    assert all(op.passes == (1.0, 0.0, 0.0) and op.issued_backward == 0.0 for op in added.values())
    assert [t.name for t in both.tensors] == [t.name for t in alone.tensors]
    assert both.frozen_params == alone.dense_params
    sent = [each for each in both.exchanges if each.name.startswith(REFERENCE)]
    assert sent
    assert all(np.all(each.backward_count == 0.0) for each in sent)


def test_logits_of_both_models_are_kept_in_fp32_beside_the_exponents() -> None:
    model = load_preset("qwen3-8b")
    on = OperatorFeatures(reference=True, logit_bytes=12.0, loss_bytes=8.0)
    kept = {t.name: t.kept_bytes for t in head_table(model, shard(tp=4), on).tensors}
    assert kept["logits"] == 12 * 4096 * model.vocab_size / 4


def test_a_pair_is_two_sequences_and_stages_send_those_of_both_models() -> None:
    spec = parse_spec(document())
    context = spec_context(spec, profile_of(spec.cluster), frozenset())
    one = candidate_of(STRATEGY, world=context.world, global_batch=64, moe=False, vendor="huawei")
    assert context.sample_tokens == spec.training.sample_tokens == 2 * 4096
    assert p2p_bytes(one, context)[0] == 2 * 4 * 4096 * 4096 / 4  # 4 sequences, sequence parallel over 4 ranks


def test_a_step_of_pairs_against_one_of_as_many_sequences() -> None:
    pairs_s, pairs = estimate(document())
    plain_s, plain = estimate(document(kind="sft", global_batch_size=128))
    # 4 passes of the model's work instead of 3, and the sends of two models.
    assert 1.25 * plain_s < pairs_s < 1.5 * plain_s
    copy_gib = 2 * PARAMS / 8 / 2**30
    more = (pairs["weights"] - plain["weights"]) / 2**30
    assert more == pytest.approx(copy_gib, rel=0.1)
    assert pairs["optimizer"] == plain["optimizer"]
    assert pairs["gradients"] == plain["gradients"]


def test_with_adapters_the_reference_is_a_second_frozen_model() -> None:
    _, pairs = estimate(document(lora={"rank": 16}))
    _, single = estimate(document(kind="sft", lora={"rank": 16}))
    assert pairs["weights"] == pytest.approx(2 * single["weights"], rel=0.01)
    assert pairs["optimizer"] == single["optimizer"]


def test_flops_count_the_reference_once() -> None:
    model = load_preset("qwen3-8b")
    assert step_flops_per_token(model, 4096, reference=True) == 4 * forward_flops_per_token(model, 4096)


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"model": "qwen3-30b-a3b"}, "/training/kind", "experts"),
        (
            {"training": {"sequence_length_histogram": {"512": 1.0}}},
            "/training/sequence_length_histogram",
            "kind: dpo is not modelled",
        ),
        ({"training": {"precision": "fp8"}}, "/training", "fp8"),
        ({"training": {"kind": "sft", "dpo": {"beta": 0.2}}}, "/training/dpo", "requires kind: dpo"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(changes: dict[str, Any], path: str, message: str) -> None:
    given = document(**changes.get("training", {})) | {k: v for k, v in changes.items() if k != "training"}
    with pytest.raises(SpecError) as caught:
        parse_spec(given)
    assert [(e.path, message in e.message) for e in caught.value.errors] == [(path, True)]
