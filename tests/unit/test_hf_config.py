"""Hugging Face `config.json`: every architecture by its own keys, diagnostics, and refusal of hostile files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.specs.hf_architectures import ARCHITECTURES, MODEL_TYPES
from autodeploy.specs.hf_config import read_hf_config
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset
from autodeploy.specs.recipe import Recipe
from tests.support.cpu_time import least_cpu_s

if TYPE_CHECKING:
    from autodeploy.specs.diagnostics import Diagnostics

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
}
EXPERTS: dict[str, Any] = LLAMA | {"num_experts_per_tok": 2, "moe_intermediate_size": 24}


def qwen_moe(**changes: Any) -> dict[str, Any]:
    return EXPERTS | {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "decoder_sparse_step": 1} | changes


def deepseek(**changes: Any) -> dict[str, Any]:
    latent = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10}
    experts = {"n_routed_experts": 16, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2}
    head = {"architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 8, "moe_layer_freq": 1}
    return EXPERTS | latent | experts | head | {"num_nextn_predict_layers": 1} | changes


def model_of(config: dict[str, Any]) -> ModelSpec:
    return read_hf_config(config)[0]


def diagnostics_of(config: dict[str, Any]) -> Diagnostics:
    return read_hf_config(config)[1]


def test_a_dense_llama() -> None:
    model, diagnostics = read_hf_config(json.dumps(LLAMA).encode(), name="mine")
    assert model == ModelSpec(
        name="mine",
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1000,
        recipe=Recipe(rope_theta=500_000),
    )
    assert {n.field for n in diagnostics.taken} >= {"hidden_size", "vocab_size", "num_key_value_heads"}
    assert not diagnostics.ignored
    assert not diagnostics.contradicted


def test_mistral_slides_and_llama_has_as_many_key_value_heads_when_silent() -> None:
    config = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 4096, "num_key_value_heads": None}
    model, diagnostics = read_hf_config(config)
    assert [model.attention_window(i) for i in range(4)] == [4096] * 4
    assert model.num_key_value_heads == 8
    assert "num_key_value_heads" in {n.field for n in diagnostics.defaulted}


def test_mixtral_experts_have_the_intermediate_size() -> None:
    config = LLAMA | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2}
    model, diagnostics = read_hf_config(config)
    assert (model.n_routed_experts, model.moe_intermediate_size, model.intermediate_size) == (8, 160, None)
    assert ("/intermediate_size", "moe_intermediate_size") in {(n.source, n.field) for n in diagnostics.taken}


def test_qwen2_switches_its_window_on_and_off() -> None:
    config = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 128, "max_window_layers": 1}
    off, diagnostics = read_hf_config(config | {"use_sliding_window": False})
    assert off.sliding_window is None
    assert ("/sliding_window", "use_sliding_window=false") in {(n.source, n.reason) for n in diagnostics.ignored}
    on = model_of(config | {"use_sliding_window": True})
    assert [on.attention_window(i) for i in range(4)] == [None, 128, 128, 128]


def test_qwen3_norms_its_queries_and_keys() -> None:
    model = model_of(LLAMA | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16})
    assert (model.qk_norm, model.head_dim) == (True, 16)
    assert model_of(LLAMA | {"architectures": None, "model_type": "qwen3"}).qk_norm


def test_qwen_moe_places_dense_layers_by_step_and_by_name() -> None:
    assert model_of(qwen_moe()).num_moe_layers == 4
    assert model_of(qwen_moe()).intermediate_size is None
    every_other = model_of(qwen_moe(decoder_sparse_step=2))
    assert [every_other.is_moe_layer(i) for i in range(4)] == [False, True, False, True]
    assert (every_other.first_k_dense_replace, every_other.mlp_only_layers) == (1, (2,))
    leading = model_of(qwen_moe(mlp_only_layers=[0, 1]))
    assert (leading.first_k_dense_replace, leading.mlp_only_layers, leading.intermediate_size) == (2, (), 160)


def test_qwen2_moe_counts_its_shared_experts_by_width() -> None:
    config = qwen_moe(architectures=["Qwen2MoeForCausalLM"])
    four = model_of(config | {"shared_expert_intermediate_size": 96})
    assert (four.n_shared_experts, four.shared_expert_width) == (4, 96)
    odd = model_of(config | {"shared_expert_intermediate_size": 100})
    assert (odd.n_shared_experts, odd.shared_expert_width) == (1, 100)


def test_deepseek_has_latent_attention_and_a_dense_start() -> None:
    model, diagnostics = read_hf_config(deepseek(head_dim=4))
    assert model.kv_lora_rank is not None
    assert (model.num_dense_layers, model.num_moe_layers, model.num_nextn_predict_layers) == (1, 3, 1)
    assert (model.n_group, model.topk_group, model.head_dim) == (4, 2, 16)
    assert {n.source for n in diagnostics.ignored} >= {"/head_dim", "/num_key_value_heads"}
    assert model_of(deepseek(q_lora_rank=None)).q_lora_rank is None
    every_other = model_of(deepseek(moe_layer_freq=2))
    assert [every_other.is_moe_layer(i) for i in range(4)] == [False, False, True, False]


def test_a_deepseek_without_experts_is_dense() -> None:
    config = deepseek(n_routed_experts=None, n_group=None, topk_group=None, first_k_dense_replace=0)
    model, diagnostics = read_hf_config(config)
    assert not model.is_moe
    assert ("/num_experts_per_tok", "no effect on the time or memory of a step") in {
        (n.source, n.reason) for n in diagnostics.ignored
    }


def test_kimi_reads_as_deepseek_does() -> None:
    kimi = deepseek(architectures=["KimiK2ForCausalLM"], n_group=1, topk_group=1, num_nextn_predict_layers=0)
    assert (
        read_hf_config(kimi, name="k")[0]
        == read_hf_config(kimi | {"architectures": ["DeepseekV3ForCausalLM"]}, name="k")[0]
    )


def test_glm_norms_by_key_and_dense_glm4_sandwiches() -> None:
    config = qwen_moe(architectures=["Glm4MoeForCausalLM"], use_qk_norm=True, n_shared_experts=1)
    config["n_routed_experts"] = config.pop("num_experts")
    assert model_of(config).qk_norm
    assert not model_of(config | {"use_qk_norm": False}).qk_norm
    assert model_of(LLAMA | {"architectures": ["Glm4ForCausalLM"]}).norm_layout == "sandwich"


def test_chatglm_has_its_own_keys() -> None:
    config = {
        "architectures": ["ChatGLMModel"],
        "hidden_size": 64,
        "ffn_hidden_size": 214,
        "kv_channels": 8,
        "num_attention_heads": 8,
        "num_layers": 28,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "padded_vocab_size": 65024,
    }
    model = model_of(config)
    assert (model.num_hidden_layers, model.intermediate_size, model.vocab_size) == (28, 214, 65024)
    assert (model.num_key_value_heads, model.head_dim) == (2, 8)
    assert model_of(config | {"multi_query_attention": False}).num_key_value_heads == 8


def test_gpt_oss_alternates_windows_and_has_experts_everywhere() -> None:
    config = {
        "architectures": ["GptOssForCausalLM"],
        "hidden_size": 2880,
        "head_dim": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 24,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "experts_per_token": 4,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "vocab_size": 201_088,
    }
    model = model_of(config)
    assert model.attention_window(0) == 128
    assert model.attention_window(1) is None
    assert model.total_params() / 1e9 == pytest.approx(20.9, rel=0.01)
    assert model.active_params(include_embedding=False) / 1e9 == pytest.approx(3.6, rel=0.01)


def test_pangu_ultra_moe_has_its_own_keys_and_is_the_preset() -> None:
    config = {
        "model_type": "pangu_ultra_moe",
        "vocab_size": 153_600,
        "hidden_size": 7680,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_mtp_layers": 1,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "num_shared_experts": 1,
        "num_routed_experts": 256,
        "attention_kv_lora_dim": 512,
        "attention_q_lora_dim": 1536,
        "attention_qk_rope_dim": 64,
        "attention_v_dim": 128,
        "attention_qk_dim": 128,
        "num_experts_per_tok": 8,
        "num_dense_layers": 3,
        "sandwich_norm": True,
        "rope_theta": 25_600_000,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "max_position_embeddings": 131_072,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    }
    preset = load_preset("pangu-ultra-moe-718b")
    assert read_hf_config(config, name=preset.name)[0] == preset


def test_pangu_pro_moe_versions() -> None:
    first = model_of(qwen_moe(architectures=["PanguProMoEForCausalLM"], shared_expert_intermediate_size=96))
    assert (first.n_routed_experts, first.n_shared_experts, first.norm_layout) == (8, 4, "pre")
    wide = {"qk_nope_dim": 12, "qk_rope_dim": 4, "v_channels": 10, "sandwich_norm": True, "num_mtp_layers": 1}
    second = model_of(qwen_moe(architectures=["PanguProMoEV2ForCausalLM"], mlp_only_layers=[0], **wide))
    assert (second.qk_head_dim, second.value_head_dim, (second.kv_lora_rank is not None)) == (16, 10, False)
    assert (second.first_k_dense_replace, second.norm_layout, second.num_nextn_predict_layers) == (1, "sandwich", 1)


def test_gpt2_learns_positions_and_has_a_plain_mlp() -> None:
    config = {"architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257}
    model = model_of(config | {"n_positions": 1024, "activation_function": "gelu_new", "n_inner": None})
    assert (model.hidden_act, model.intermediate_size, model.learned_position_embeddings) == ("gelu", 3072, 1024)
    assert model.tie_word_embeddings
    assert model.total_params() / 1e6 == pytest.approx(124.4, rel=0.002)


def test_a_gated_gelu_is_geglu() -> None:
    assert model_of(LLAMA | {"hidden_act": "gelu_pytorch_tanh"}).hidden_act == "geglu"


def test_the_language_part_of_a_multimodal_model() -> None:
    config = {"architectures": ["SomethingForConditionalGeneration"], "vision_config": {"hidden_size": 9}}
    text = {k: v for k, v in LLAMA.items() if k not in {"architectures", "tie_word_embeddings"}}
    model, diagnostics = read_hf_config(
        config | {"text_config": text | {"model_type": "qwen3"}, "tie_word_embeddings": True}
    )
    assert (model.hidden_size, model.qk_norm, model.tie_word_embeddings) == (64, True, True)
    assert ("/vision_config", "left out of the prediction") in {(n.source, n.reason) for n in diagnostics.ignored}
    assert "/text_config/hidden_size" in {n.source for n in diagnostics.taken}
    with pytest.raises(SpecError) as caught:
        read_hf_config(config | {"text_config": text | {"num_key_value_heads": 3}})
    assert caught.value.errors[0].path == "/text_config/num_key_value_heads"


def test_an_unknown_architecture_is_read_and_said_so() -> None:
    diagnostics = diagnostics_of(LLAMA | {"architectures": ["NewForCausalLM"], "some_new_thing": 3})
    assert "NewForCausalLM" in diagnostics.defaulted[0].reason
    assert [n.reason for n in diagnostics.ignored if n.source == "/some_new_thing"] == [
        "unknown, check that it does not change the prediction"
    ]


def test_two_names_for_one_thing_that_disagree() -> None:
    (note,) = diagnostics_of(qwen_moe(num_local_experts=64)).contradicted
    assert (note.source, note.field, note.value, note.reason) == (
        "/num_local_experts",
        "n_routed_experts",
        "64",
        "/num_experts says 8",
    )


def test_the_name_comes_from_the_file() -> None:
    assert model_of(LLAMA | {"_name_or_path": "somewhere/private/Llama-X/"}).name == "Llama-X"
    assert model_of(LLAMA).name == "LlamaForCausalLM"


def test_every_model_type_stands_for_a_known_architecture() -> None:
    assert set(MODEL_TYPES.values()) <= set(ARCHITECTURES)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"linear_attn_config": {"kda_layers": [1]}}, "/linear_attn_config"),
        ({"index_topk": 2048}, "/index_topk"),
        ({"attention_chunk_size": 8192}, "/attention_chunk_size"),
        ({"is_encoder_decoder": True}, "/is_encoder_decoder"),
        ({"num_attention_heads": [8, 4, 8, 4]}, "/num_attention_heads"),
        ({"hidden_act": "xielu"}, "/hidden_act"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(change: dict[str, Any], path: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_hf_config(LLAMA | change)
    assert caught.value.errors[0].path == path
    assert caught.value.errors[0].hint


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"num_key_value_heads": 3}, "/num_key_value_heads"),
        ({"hidden_size": None}, "/hidden_size"),
        ({"hidden_size": "wide"}, "/hidden_size"),
        ({"hidden_size": 10**12}, "/hidden_size"),
        ({"hidden_size": 10**40}, "/hidden_size"),
        ({"hidden_size": float("nan")}, "/hidden_size"),
        ({"num_hidden_layers": 10**9}, "/num_hidden_layers"),
        ({"num_hidden_layers": -1}, "/num_hidden_layers"),
        ({"num_hidden_layers": True}, "/num_hidden_layers"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "/num_experts_per_tok"),
        ({"num_experts": 1.5}, "/num_experts"),
        ({"mlp_only_layers": 3}, "/mlp_only_layers"),
        ({"mlp_only_layers": ["a"]}, "/mlp_only_layers"),
        ({"moe_layer_freq": [0, 1]}, "/moe_layer_freq"),
        ({"decoder_sparse_step": -2}, "/decoder_sparse_step"),
        ({"layer_types": ["full_attention", "other"] * 2}, "/layer_types/1"),
        ({"intermediate_size": None}, "/intermediate_size"),
        ({"extra": {"deep": [1, float("inf")]}}, "/extra/deep/1"),
    ],
)
def test_a_bad_value_is_named_where_it_stands(change: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_hf_config(LLAMA | change)
    assert path in {e.path for e in caught.value.errors}


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 200 + "1" + "}" * 200,
        '{"hidden_size": NaN}',
        '{"hidden_size": -Infinity}',
        '{"hidden_size": 1e999}',
        '{"hidden_size": 1' + "0" * 5000 + "}",
        '{"hidden_size": 1, "hidden_size": 2}',
        b"\xff\xfe\x00",
        "[1, 2]",
        "null",
        "",
        "not json",
        " " * 1_000_001,
        json.dumps({"a": list(range(120_000))}),
    ],
    ids=range(14),
)
def test_a_hostile_file_is_refused_quickly(content: str | bytes) -> None:
    def refuse() -> None:
        with pytest.raises(SpecError):
            read_hf_config(content)

    assert least_cpu_s(refuse, limit_s=0.5) < 0.5


ERNIE = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "hidden_size": 2560,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "intermediate_size": 12_288,
    "vocab_size": 103_424,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_intermediate_size": 1536,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 27,
    "moe_layer_interval": 1,
    "moe_num_shared_experts": 2,
    "tie_word_embeddings": True,
}


def test_ernie_has_its_own_names_for_experts() -> None:
    model = model_of(ERNIE)
    assert (model.n_routed_experts, model.num_experts_per_tok, model.n_shared_experts) == (64, 6, 2)
    assert (model.first_k_dense_replace, model.num_moe_layers) == (1, 27)
    assert model.total_params() == pytest.approx(21.8e9, rel=0.01)
    last = model_of(ERNIE | {"moe_layer_end_index": -1, "moe_layer_interval": 2})
    assert (last.num_moe_layers, last.is_moe_layer(27), last.is_moe_layer(26)) == (14, True, False)


def test_the_first_qwen_counts_gate_and_up_together() -> None:
    config = LLAMA | {"architectures": ["QWenLMHeadModel"], "intermediate_size": 2048}
    assert model_of(config).intermediate_size == 1024


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"hybrid_override_pattern": "M-M*"}, "/hybrid_override_pattern"),
        ({"share_q_dim": 2048, "moe_top_k": 3}, "/share_q_dim"),
        ({"attn_type_list": [1, 0, 1, 1]}, "/attn_type_list/1"),
        ({"layer_types": ["full_attention", "conv", "full_attention", "conv"]}, "/layer_types/1"),
        ({"ssm_state_size": 128}, "/ssm_state_size"),
    ],
)
def test_layers_of_another_kind_are_refused_by_name(change: dict[str, Any], path: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_hf_config(LLAMA | {"architectures": ["SomeForCausalLM"]} | change)
    assert caught.value.errors[0].path == path


@pytest.mark.parametrize(
    "change",
    [
        {"moe_layers_enum": "4,5"},
        {"null_expert_num": 2},
        {"conv_kernel": 4},
        {"use_linear_attention": True},
        {"is_hybrid": True},
        {"recurrent_width": 64},
        {"ffn_config": {"moe_num_experts": 16}},
    ],
)
def test_an_unknown_architecture_with_a_telling_key_is_refused(change: dict[str, Any]) -> None:
    (key,) = change
    with pytest.raises(UnsupportedError, match="the architecture is unknown, and") as caught:
        read_hf_config(LLAMA | {"architectures": ["SomeForCausalLM"]} | change)
    assert caught.value.errors[0].path.startswith(f"/{key}")
    assert read_hf_config(LLAMA | change)[1].to_check, "a known architecture is read, the key told"


def test_an_unknown_architecture_may_say_how_it_routes_and_what_is_off() -> None:
    harmless = {"moe_router_bias": True, "linear_layers": 0, "expert_dropout": 0.1, "conv_bias": False}
    assert (
        model_of(LLAMA | {"architectures": ["SomeForCausalLM"]} | harmless).hidden_size == model_of(LLAMA).hidden_size
    )


@pytest.mark.parametrize(("said", "told"), [({}, True), ({"tie_word_embeddings": True}, False)])
def test_an_unknown_architecture_that_does_not_say_whether_its_ends_are_tied_is_a_doubt(
    said: dict[str, bool], told: bool
) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    _, notes = read_hf_config(config | {"architectures": ["CohereForCausalLM"], "model_type": "cohere"} | said)
    assert any("missing tie_word_embeddings" in each for each in notes.assumptions) is told


def test_an_empty_configuration_is_refused_for_what_it_lacks():
    with pytest.raises(SpecError) as refused:
        read_hf_config({})
    assert "hidden_size" in str(refused.value)
    assert "moe_layer_end_index" not in str(refused.value)


def test_a_width_that_no_layer_has_is_ignored_and_not_taken_too() -> None:
    config = {
        **{"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 4, "vocab_size": 1000},
        **{"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128},
        **{"num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144},
    }
    diagnostics = diagnostics_of(config)
    assert [n.source for n in diagnostics.ignored].count("/intermediate_size") == 1
    assert "/intermediate_size" not in {n.source for n in diagnostics.taken}
