"""Selective recomputation by operator: what it keeps, what it computes again, and where it is refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from autodeploy.costs.inputs.build_context import spec_context
from autodeploy.costs.steps.one_strategy import Estimated, estimated
from autodeploy.kit.errors import SpecError
from autodeploy.specs.presets import load_preset
from autodeploy.specs.record_words import RECOMPUTE_MODULES
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import RecomputeModule, Strategy
from hardware_profiles.loader import load_profile

SHARDED = frozenset({"flash_attention", "fsdp", "torch_fsdp2", "transformers_loss", "fused_swiglu", "fused_rmsnorm"})


def run(model: str, strategy: dict[str, Any], on: frozenset[str] = SHARDED) -> Estimated:
    spec = Spec.model_validate(
        {
            "model": load_preset(model),
            "cluster": {"profile": "nvidia-h100", "num_npus": 8},
            "training": {"seq_length": 8192, "global_batch_size": 16},
            "search": {"target": "any"},
        }
    )
    given = Strategy.model_validate({"micro_batch_size": 2, "fsdp": "fsdp" in on, **strategy})
    return estimated(given, spec_context(spec, load_profile("nvidia-h100"), on))


def selective(*modules: str) -> dict[str, Any]:
    return {"recompute": {"granularity": "selective", "modules": modules}}


def test_llama_3_8b_keeps_attention_and_every_first_product_of_two() -> None:
    every, some = run("llama3-8b", {}), run("llama3-8b", selective("by_operator"))
    cost = some.classes.layers[0].cost
    tokens, h, kv, wide = 2 * 8192, 4096, 1024, 14336
    # Kept, 2 bytes each: layer input, query, value, attention's output, gate, and down, which an eager layer keeps in
    # vain; statistics of 32 heads in FP32.
    kept = 2 * tokens * (h + h + kv + h + wide + h) + 4 * 32 * tokens
    freed = float(cost.choices["by_operator"].saved_bytes[0])
    assert float(cost.activation_bytes[0]) - freed == pytest.approx(kept)
    compiled = run("llama3-8b", selective("by_operator"), SHARDED | {"torch_compile"}).classes.layers[0].cost
    assert float(compiled.choices["by_operator"].saved_bytes[0]) - freed == pytest.approx(2 * tokens * h)
    # Key, output and up projections: 2 x (h kv + h h + h f) FLOPs a token again, at 60 to 80 % of the peak.
    again = 32 * 2.0 * tokens * h * (kv + h + wide)
    seconds = some.estimate.breakdown["recompute_s"]
    assert again / 989e12 / 0.85 < seconds < 1.4 * again / 989e12 / 0.6
    assert some.estimate.step_time_s - every.estimate.step_time_s == pytest.approx(seconds)
    # Between norms with activations, which multiply nothing again, and whole layers.
    assert run("llama3-8b", selective("norm", "activation")).estimate.step_time_s < some.estimate.step_time_s
    assert some.estimate.step_time_s < run("llama3-8b", {"recompute": {"granularity": "full"}}).estimate.step_time_s


def test_a_reduced_output_is_kept_and_inputs_are_gathered_again() -> None:
    plain = {"tp": 4, "sequence_parallel": True}
    cost = run("llama3-8b", plain | selective("by_operator")).classes.layers[0].cost
    layer = cost.choices["by_operator"]
    tokens, h, kv, wide = 2 * 8192, 4096, 256, 3584
    # The residual too, and down before and after its reduce-scatter.
    kept = 2 * tokens * (2 * h / 4 + h / 4 + kv + h / 4 + wide + h + h / 4) + 4 * 8 * tokens
    assert float((cost.activation_bytes - layer.saved_bytes)[0]) == pytest.approx(kept)
    message = 2 * tokens * h * 3 / 4 / (450e9 * 0.8)
    assert float(layer.recompute_s[0]) > 2 * message


@pytest.mark.parametrize("other", ["norm", "activation", "mlp"])
def test_no_other_module_goes_with_it(other: str) -> None:
    with pytest.raises(SpecError, match="can't be combined with") as caught:
        run("llama3-8b", selective("by_operator", other))
    assert [error.path for error in caught.value.errors] == ["/strategy/recompute"]


def test_other_layers_of_a_stage_may_recompute_otherwise() -> None:
    stage = [{"by_operator": 20, "full": 12}]
    mixed = run("llama3-8b", {"recompute": {"granularity": "selective", "per_stage": stage}})
    assert mixed.estimate.breakdown["recompute_s"] > 0.0
    with pytest.raises(SpecError, match="can't be combined with full"):
        run("llama3-8b", {"recompute": {"granularity": "selective", "per_stage": [{"by_operator": 20, "full": 13}]}})


@pytest.mark.parametrize(
    ("model", "on"),
    [("llama3-8b", SHARDED - {"torch_fsdp2"}), ("deepseek-v2-lite", SHARDED), ("mixtral-8x7b", SHARDED)],
)
def test_it_is_refused_where_nothing_knows_it(model: str, on: frozenset[str]) -> None:
    with pytest.raises(SpecError, match="by_operator recomputation is only modelled for dense layers"):
        run(model, selective("by_operator"), on)


def test_records_may_name_every_module() -> None:
    assert set(get_args(RecomputeModule)) == set(RECOMPUTE_MODULES.values())
    assert RECOMPUTE_MODULES["per_op_sac"] == "by_operator"
