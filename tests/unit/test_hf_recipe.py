"""What a `config.json` says besides the shape travels with the model."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.specs.hf_config import read_hf_config
from autodeploy.specs.hf_recipe import NOT_CARRIED
from autodeploy.specs.presets import load_preset
from autodeploy.specs.recipe import Recipe, RopeScaling

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def recipe_of(**keys: Any) -> Recipe:
    return read_hf_config(SHAPE | keys)[0].recipe_or_default


def test_qwen3_moe_as_its_file_says() -> None:
    config = SHAPE | EXPERTS | {"architectures": ["Qwen3MoeForCausalLM"]}
    config |= {"rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "norm_topk_prob": True, "router_aux_loss_coef": 0.001}
    config |= {"initializer_range": 0.02, "max_position_embeddings": 40960, "attention_bias": False}
    model, diagnostics = read_hf_config(config | {"rope_scaling": None, "attention_dropout": 0.0})
    told, preset = model.recipe_or_default, load_preset("qwen3-30b-a3b").recipe_or_default
    assert told == preset.model_copy(update={"scoring_func": None, "attention_dropout": 0.0})
    carried = {note.source for note in diagnostics.taken if note.field.startswith("recipe/")}
    assert carried >= {"/rope_theta", "/rms_norm_eps", "/norm_topk_prob", "/router_aux_loss_coef"}
    assert [note.source for note in diagnostics.ignored] == ["/intermediate_size"]


def test_deepseek_v3_scores_and_scales() -> None:
    scaling = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
    keys = EXPERTS | {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "routed_scaling_factor": 2.5}
    told = recipe_of(
        architectures=["DeepseekV3ForCausalLM"],
        rope_scaling=scaling | {"mscale": 1.0, "mscale_all_dim": 1.0},
        seq_aux=True,
        aux_loss_alpha=0.001,
        **keys,
    )
    assert told.rope_scaling == load_preset("deepseek-v3").recipe_or_default.rope_scaling
    assert (told.scoring_func, told.has_expert_bias, told.routed_scaling_factor) == ("sigmoid", True, 2.5)
    assert (told.seq_aux, told.router_aux_loss_coef, told.rope_theta) == (True, 0.001, 10_000)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, {"attention_bias": True}),
        ({"attention_bias": True}, {"attention_bias": True, "attention_out_bias": True, "rope_theta": 10_000}),
        ({"architectures": ["Glm4MoeForCausalLM"], "attention_bias": True}, {"attention_bias": True}),
        (
            {"architectures": ["Glm4MoeForCausalLM"], "partial_rotary_factor": 0.5, "n_routed_experts": 8, **EXPERTS},
            {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "partial_rotary_factor": 0.5},
        ),
        (
            {"architectures": ["ChatGLMModel"], "rope_ratio": 500, "layernorm_epsilon": 1.5e-5, "add_qkv_bias": True},
            {
                "rope_theta": 5_000_000,
                "rms_norm_eps": 1.5e-5,
                "attention_bias": True,
                "rope_interleave": True,
                "partial_rotary_factor": 0.5,
            },
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}},
            {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
        ),
        (
            {"rope_theta": 5e5, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
            {"rope_theta": 5e5, "rope_scaling": RopeScaling(rope_type="linear", factor=4)},
        ),
        ({"rope_scaling": {"rope_type": "default"}}, {"rope_theta": 10_000}),
        ({"norm_topk_prob": True}, {"rope_theta": 10_000}),
    ],
)
def test_keys_and_what_the_code_of_an_architecture_fixes(keys: dict[str, Any], expected: dict[str, Any]) -> None:
    assert recipe_of(**keys) == Recipe.model_validate(expected)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4, "truncate": False}},
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
        {"rope_scaling": "linear"},
        {"topk_method": "routing_by_hash", **EXPERTS},
        {"rope_theta": [1, 2]},
    ],
)
def test_what_is_not_understood_is_said(keys: dict[str, Any]) -> None:
    _, diagnostics = read_hf_config(SHAPE | keys)
    assert [note.reason for note in diagnostics.unmodelled] == [NOT_CARRIED]


def test_a_bad_value_is_named_where_it_stands() -> None:
    with pytest.raises(SpecError) as raised:
        read_hf_config(SHAPE | {"rms_norm_eps": -1})
    assert [error.path for error in raised.value.errors] == ["/rms_norm_eps"]


def test_two_names_that_disagree() -> None:
    _, diagnostics = read_hf_config(SHAPE | {"rms_norm_eps": 1e-5, "layer_norm_eps": 1e-6})
    assert [note.source for note in diagnostics.contradicted] == ["/layer_norm_eps"]
