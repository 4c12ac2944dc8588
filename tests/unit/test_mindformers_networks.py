"""Exports are what MindFormers' own code builds, and what it refuses is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import UnsupportedError
from autodeploy.specs.launched import network_of
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset, preset_names
from autodeploy.specs.text_files import load_yaml
from autodeploy.stack.releases import release_named
from hardware_profiles.shipped_yaml import load_shipped_yaml
from tests.launch_check.mindformers_networks import RECORDS, RELEASE, Outcome, digest_of, exported, outcomes

pytestmark = pytest.mark.unit

BUILT = [each for each in outcomes() if each.network]
REFUSED = [each for each in outcomes() if not each.network]
DENSE: dict[str, Any] = {
    "name": "made-up",
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "vocab_size": 32_000,
}
GROUPED = DENSE | {"num_key_value_heads": 4, "qk_norm": True}
WIDE = {"intermediate_size": 4096}
EXPERTS = {"n_routed_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
LATENT = DENSE | {"kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}


def test_the_records_are_of_every_preset_and_of_the_release() -> None:
    commit = load_shipped_yaml(RECORDS.read_text(encoding="utf-8"))["commit"]
    assert commit == release_named(RELEASE).components["mindformers"].commit
    assert [each.preset for each in outcomes()] == list(preset_names())
    assert {each.network for each in BUILT} == {
        "TrainingDeepseekV3ForCausalLM",
        "TrainingQwen3ForCausalLM",
        "TrainingQwen3MoeForCausalLM",
    }


@pytest.mark.parametrize("outcome", BUILT, ids=lambda each: each.preset)
def test_what_is_exported_is_what_mindformers_built(outcome: Outcome) -> None:
    text = exported(outcome.preset)
    again = "another export than on record: run python -m tests.launch_check.mindformers_networks"
    assert digest_of(text) == outcome.digest, again
    model = load_preset(outcome.preset)
    assert outcome.parameters == model.total_params() + model.mtp_params
    network = network_of(model)
    assert network is not None
    assert outcome.network == f"Training{network.architectures}"


@pytest.mark.parametrize("outcome", BUILT, ids=lambda each: each.preset)
def test_a_model_comes_back_from_its_network_s_keys(outcome: Outcome) -> None:
    model = load_preset(outcome.preset)
    found = ModelSpec.model_validate(import_document(exported(outcome.preset), "plan.yaml").document["model"])
    assert found.model_dump(exclude={"name", "recipe"}) == model.model_dump(exclude={"name", "recipe"})


@pytest.mark.parametrize("outcome", REFUSED, ids=lambda each: each.preset)
def test_what_mindformers_refuses_is_refused_by_name(outcome: Outcome) -> None:
    assert "in class registry" in outcome.refused or "Train mode is not supported" in outcome.refused
    with pytest.raises(UnsupportedError) as caught:
        exported(outcome.preset)
    assert caught.value.errors[0].path.startswith(("/model", "/to"))
    assert caught.value.errors[0].hint


@pytest.mark.parametrize(
    ("model", "network"),
    [
        (GROUPED | WIDE, "qwen3"),
        (GROUPED | EXPERTS, "qwen3_moe"),
        (GROUPED | EXPERTS | {"n_shared_experts": 1, "tie_word_embeddings": True}, "qwen3_moe"),
        (LATENT | WIDE, "deepseek_v3"),
        (LATENT | EXPERTS | WIDE | {"first_k_dense_replace": 1, "num_nextn_predict_layers": 1}, "deepseek_v3"),
        (DENSE | WIDE, None),
        (GROUPED | WIDE | {"num_nextn_predict_layers": 1}, None),
        (GROUPED | EXPERTS | WIDE | {"first_k_dense_replace": 1}, None),
        (GROUPED | WIDE | {"norm_layout": "sandwich"}, None),
        (GROUPED | WIDE | {"recipe": {"partial_rotary_factor": 0.5}}, None),
        (LATENT | WIDE | {"tie_word_embeddings": True}, None),
    ],
)
def test_a_model_has_the_network_that_computes_it(model: dict[str, Any], network: str | None) -> None:
    found = network_of(ModelSpec.model_validate(model))
    assert (found.model_type if found else None) == network


@pytest.mark.parametrize("preset", ["qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v2-lite", "deepseek-v3", "kimi-k2"])
def test_no_default_of_a_network_stays_in_silence(preset: str) -> None:
    model, keys = load_preset(preset), load_yaml(exported(preset))["model"]["model_config"]
    assert keys["routed_scaling_factor"] == (model.recipe_or_default.routed_scaling_factor or 1.0)
    assert keys["moe_router_score_function"] == model.recipe_or_default.scoring_func
    assert (keys["n_group"], keys["topk_group"]) == (model.n_group, model.topk_group)
    assert keys.get("q_lora_rank") == model.q_lora_rank
    assert ("q_lora_rank" in keys) == (model.kv_lora_rank is not None)
    assert {"num_experts", "n_routed_experts"} & keys.keys() == {
        "num_experts" if keys["model_type"] == "qwen3_moe" else "n_routed_experts"
    }


# Public configurations of these networks in other words, as MindFormers' configs/ have them.
PUBLIC = {
    "qwen3": "{hidden_act: swiglu, num_key_value_heads: 4, head_dim: 64, qk_layernorm: true, intermediate_size: 4096}",
    "qwen3_moe": "{num_experts: 16, num_experts_per_tok: 2, moe_intermediate_size: 512, router_dense_type: float32,"
    " routed_scaling_factor: 1.5, num_key_value_heads: 4, router_aux_loss_coef: 0.001}",
    "telechat3": "{kv_lora_rank: 256, qk_nope_head_dim: 64, qk_rope_head_dim: 32, v_head_dim: 64, n_group: 0,"
    " topk_group: 0, n_routed_experts: 16, num_experts_per_tok: 2, moe_intermediate_size: 512, scoring_func: sigmoid,"
    " intermediate_size: 4096, first_k_dense_replace: 1, moe_router_enable_expert_bias: true, q_lora_rank: null}",
    "deepseek_v3": "{kv_lora_rank: 256, qk_nope_head_dim: 64, qk_rope_head_dim: 32, v_head_dim: 64, n_group: 8,"
    " topk_group: 4, n_routed_experts: 16, num_experts_per_tok: 2, moe_intermediate_size: 512, q_lora_rank: 768,"
    " moe_router_score_function: sigmoid, num_nextn_predict_layers: 1}",
    "glm4_moe": "{n_routed_experts: 16, num_experts_per_tok: 2, moe_intermediate_size: 512, head_dim: 64,"
    " num_key_value_heads: 4, moe_router_score_function: sigmoid}",
}


@pytest.mark.parametrize("model_type", PUBLIC)
def test_configurations_of_the_families_are_read_by_their_names(model_type: str) -> None:
    shape = {key: value for key, value in DENSE.items() if key != "name"}
    keys = {"model_type": model_type, "seq_length": 4096} | shape | load_yaml(PUBLIC[model_type])
    found = import_document(
        json.dumps({"parallel_config": {"data_parallel": 8}, "model": {"model_config": keys}}), "a.yaml"
    )
    model = ModelSpec.model_validate(found.document["model"])
    assert model.name == model_type
    assert found.diagnostics.unmodelled == ()
    assert model.n_routed_experts == keys.get("num_experts", keys.get("n_routed_experts"))
    assert model.recipe_or_default.routed_scaling_factor == keys.get("routed_scaling_factor")
    assert (model.kv_lora_rank is not None) == ("kv_lora_rank" in keys)
    assert model.qk_norm == (model_type in {"qwen3", "qwen3_moe"})  # by their code, whether a key says it or not
    assert model.n_group == (keys.get("n_group") or None)
