"""The recipe of a model in MindFormers' keys, there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.text_files import load_yaml
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.recipe import Recipe

# No key says them, or the key says what the others imply.
LOST = {"mlp_bias", "attention_out_bias", "max_position_embeddings"}


def exported(model: ModelSpec) -> Any:
    document = factories.spec_document(model=model.model_dump(mode="json", exclude_unset=True), target="mindformers")
    spec = Spec.model_validate(document)
    layers = (model.num_hidden_layers,)
    ways = {"ep": 8, "moe_dispatcher": "alltoall"} if model.is_moe else {}
    strategy = Strategy.model_validate({"tp": 1, "pp": 1, "dp": 768, "layers_per_stage": layers, **ways})
    plan = factories.plan(1, spec=spec, strategy=strategy, stages=(), run=None)
    return export(factories.plan_set(1, spec=spec), plan, "mindformers")


def said(recipe: Recipe, *, scales: bool) -> dict[str, Any]:
    told = {name: value for name, value in recipe.model_dump(mode="json").items() if name not in LOST}
    return told | ({"routed_scaling_factor": told.get("routed_scaling_factor", 1.0)} if scales else {})


@pytest.mark.parametrize(
    "preset", ["deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "kimi-k2", "qwen3-30b-a3b", "qwen3-8b", "qwen3-0.6b"]
)
def test_a_recipe_comes_back(preset: str) -> None:
    model = load_preset(preset)
    imported = import_document(exported(model).text, "plan.yaml")
    found = ModelSpec.model_validate(imported.document["model"]).recipe_or_default
    assert said(found, scales=model.is_moe) == said(model.recipe_or_default, scales=model.is_moe)


def test_yarn_counts_from_the_context_before() -> None:
    keys = load_yaml(exported(load_preset("deepseek-v3")).text)["model"]["model_config"]
    assert (keys["position_embedding_type"], keys["rotary_scaling_factor"]) == ("yarn", 40)
    assert keys["max_position_embeddings"] == 4096
    assert (keys["moe_router_load_balancing_type"], keys["moe_router_enable_expert_bias"]) == ("seq_aux_loss", True)


def test_what_no_key_says_is_noted() -> None:
    model = load_preset("qwen3-8b")
    longer = model.recipe_or_default.model_copy(
        update={"rope_scaling": load_preset("llama3.1-8b").recipe_or_default.rope_scaling}
    )
    notes = exported(model.model_copy(update={"recipe": longer})).notes
    assert "no flag sets rope_type llama3: set it in the model's code" in notes
    bare = model.model_copy(update={"recipe": None})
    assert any("rms_norm_eps, initializer_range, rope_theta" in note for note in exported(bare).notes)


def test_keys_of_both_generations() -> None:
    keys = {"theta": 5e5, "layernorm_epsilon": 1e-6, "qkv_has_bias": True, "use_gating_sigmoid": True}
    keys |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "hidden_size": 64}
    keys |= {"num_layers": 4, "num_heads": 8, "vocab_size": 1000, "seq_length": 128, "intermediate_size": 160}
    keys |= {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096}}
    text = "parallel_config: {data_parallel: 8}\nmodel:\n  model_config: " + str(keys).replace("True", "true")
    told = ModelSpec.model_validate(import_document(text, "plan.yaml").document["model"]).recipe_or_default
    assert (told.rope_theta, told.rms_norm_eps, told.attention_bias) == (5e5, 1e-6, True)
    assert told.scoring_func == "sigmoid"
    assert told.rope_scaling is not None
    assert told.rope_scaling.rope_type == "yarn"
