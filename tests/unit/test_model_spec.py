"""The model spec: defaults that follow from other fields, refusals with a pointer and a hint, parameter counts."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from autodeploy.kit.errors import FieldError
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.model import ModelSpec

DENSE: dict[str, Any] = {
    "name": "small",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 1000,
}
EXPERTS: dict[str, Any] = DENSE | {
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
LATENT: dict[str, Any] = {k: v for k, v in EXPERTS.items() if k != "num_key_value_heads"} | {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
}


def errors_of(document: dict[str, Any]) -> tuple[FieldError, ...]:
    with pytest.raises(ValidationError) as caught:
        ModelSpec.model_validate(document)
    return field_errors(caught.value, prefix="/model", model=ModelSpec)


def test_what_is_absent_follows_from_other_fields() -> None:
    model = ModelSpec.model_validate(DENSE)
    assert model.head_dim == 8
    assert ModelSpec.model_validate({**DENSE, "num_key_value_heads": None}).num_key_value_heads == 8
    latent = ModelSpec.model_validate(LATENT)
    assert (latent.num_key_value_heads, latent.head_dim, latent.qk_head_dim, latent.value_head_dim) == (8, 16, 16, 10)


def test_what_follows_does_not_count_as_set() -> None:
    model = ModelSpec.model_validate(DENSE)
    changed = ModelSpec.model_validate(model.model_dump(exclude_unset=True) | {"hidden_size": 128})
    assert "head_dim" not in model.model_fields_set
    assert changed.head_dim == 16


def test_a_model_survives_json() -> None:
    for document in (DENSE, EXPERTS, LATENT, {**DENSE, "layer_types": "full attention"}):
        model = ModelSpec.model_validate(document)
        assert ModelSpec.model_validate_json(model.model_dump_json()) == model
        assert hash(ModelSpec.model_validate_json(model.model_dump_json())) == hash(model)


def test_alternating_layer_types_are_spelled_out() -> None:
    document = {**DENSE, "sliding_window": 128, "layer_types": "alternating sliding and full attention"}
    model = ModelSpec.model_validate(document)
    assert model.layer_types == ("sliding_attention", "full_attention") * 2
    assert [model.attention_window(i) for i in range(4)] == [128, None, 128, None]
    everywhere = ModelSpec.model_validate({**DENSE, "sliding_window": 128})
    assert [everywhere.attention_window(i) for i in range(4)] == [128] * 4


def test_dense_layers_are_the_first_and_the_named_ones() -> None:
    model = ModelSpec.model_validate({**EXPERTS, "mlp_only_layers": [3, 0, 3]})
    assert [model.is_moe_layer(i) for i in range(4)] == [False, True, True, False]
    assert (model.num_dense_layers, model.num_moe_layers) == (2, 2)


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads", "does not divide num_attention_heads 8"),
        ({"hidden_size": 60}, "hidden_size", "num_attention_heads 8 does not divide 60"),
        ({"hidden_size": 0}, "hidden_size", "0 is too small"),
        ({"hidden_size": 10**9}, "hidden_size", "is too big"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers", "is too big"),
        ({"num_hidden_layers": True}, "num_hidden_layers", "True is not a number"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok", "17 exceeds n_routed_experts 16"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok", "required by"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size", "required by"),
        ({"intermediate_size": None}, "intermediate_size", "intermediate_size is required"),
        ({"first_k_dense_replace": 4}, "n_routed_experts", "every layer is dense"),
        ({"first_k_dense_replace": 5}, "first_k_dense_replace", "5 exceeds num_hidden_layers 4"),
        ({"mlp_only_layers": [4]}, "mlp_only_layers", "4 is outside [0, 3]"),
        ({"n_group": 5, "topk_group": 2}, "n_group", "n_group 5 does not divide n_routed_experts 16"),
        ({"n_group": 4}, "topk_group", "required by n_group"),
        ({"topk_group": 4}, "topk_group", "requires n_group"),
        ({"n_group": 4, "topk_group": 5}, "topk_group", "5 exceeds n_group 4"),
        ({"n_group": 8, "topk_group": 1}, "topk_group", "num_experts_per_tok 4 exceeds topk_group 1 x 2"),
        (
            {"shared_expert_intermediate_size": 8, "n_shared_experts": 0},
            "shared_expert_intermediate_size",
            "requires n_shared_experts",
        ),
        ({"n_routed_experts": None}, "num_experts_per_tok", "requires n_routed_experts"),
        ({"q_lora_rank": 32}, "q_lora_rank", "requires kv_lora_rank"),
        ({"kv_lora_rank": 32}, "qk_nope_head_dim", "required by"),
        ({"layer_types": ["full_attention"]}, "layer_types", "expected 4 entries, got 1"),
        ({"layer_types": "every other"}, "layer_types", "invalid value 'every other'"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window", "required by"),
        ({"hidden_act": "relu"}, "hidden_act", "invalid value 'relu'"),
        ({"hiden_size": 64}, "hiden_size", "unknown key"),
        ({"capacity_factor": float("nan")}, "capacity_factor", "finite number"),
    ],
)
def test_a_bad_field_is_named(change: dict[str, Any], path: str, message: str) -> None:
    found = [e for e in errors_of(EXPERTS | change) if e.path == f"/model/{path}"]
    assert found
    assert message in found[0].message


def test_latent_attention_refuses_what_contradicts_it() -> None:
    assert [e.path for e in errors_of({**LATENT, "num_key_value_heads": 2})] == ["/model/num_key_value_heads"]
    (error,) = errors_of({**LATENT, "head_dim": 64})
    assert error == FieldError(
        "/model/head_dim",
        "64 is not qk_nope_head_dim + qk_rope_head_dim",
        "leave it out: qk_nope_head_dim + qk_rope_head_dim = 16",
    )


def test_all_faults_are_reported_at_once_with_hints() -> None:
    found = errors_of(
        EXPERTS | {"num_key_value_heads": 3, "num_experts_per_tok": 17, "layer_types": ["full_attention"]}
    )
    assert {e.path for e in found} == {"/model/num_key_value_heads", "/model/num_experts_per_tok", "/model/layer_types"}
    assert all(e.hint for e in found)


def test_missing_fields_are_reported_alone() -> None:
    found = errors_of({"name": "nothing"})
    assert {e.path.rpartition("/")[2] for e in found} == {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
    }


def test_an_absurd_total_is_refused() -> None:
    sizes = {"hidden_size": 262_144, "num_hidden_layers": 1024, "moe_intermediate_size": 1_048_576}
    (error,) = errors_of(EXPERTS | sizes | {"num_attention_heads": 2048})
    assert error.path == "/model/hidden_size"
    assert "parameters" in error.message


def test_a_model_is_immutable() -> None:
    model = ModelSpec.model_validate(DENSE)
    with pytest.raises(ValidationError, match="frozen"):
        model.hidden_size = 128  # type: ignore[misc]


def test_dense_parameters_by_hand() -> None:
    model = ModelSpec.model_validate(DENSE)
    assert model.attention_params == 64 * 64 + 2 * 64 * 16 + 64 * 64
    assert model.dense_mlp_params == 3 * 64 * 96
    assert model.vector_params_of("full_attention") == 2 * 64
    assert model.total_params() == 4 * (10_240 + 18_432 + 128) + 2 * 64_000 + 64
    assert model.active_params() == model.total_params()
    assert model.active_params(include_embedding=False) == model.total_params() - 64_000


def test_expert_parameters_by_hand() -> None:
    model = ModelSpec.model_validate(EXPERTS)
    expert, router, shared = 3 * 64 * 24, 64 * 16, 3 * 64 * 48
    assert (model.routed_expert_params, model.router_params, model.shared_expert_params) == (expert, router, shared)
    assert model.total_params() - model.active_params() == 3 * 12 * expert


def test_latent_attention_parameters_by_hand() -> None:
    model = ModelSpec.model_validate(LATENT)
    query, key_value, output = 32 * (64 + 8 * 16), 16 * (64 + 8 * (12 + 10)) + 64 * 4, 8 * 10 * 64
    assert model.attention_params == query + key_value + output
    assert model.vector_params_of("full_attention") == 2 * 64 + 32 + 16
    uncompressed = ModelSpec.model_validate({**LATENT, "q_lora_rank": None})
    assert uncompressed.attention_params == 64 * 8 * 16 + key_value + output


def test_what_adds_or_saves_parameters() -> None:
    base = ModelSpec.model_validate(EXPERTS).total_params()
    changes: list[tuple[dict[str, Any], int]] = [
        ({"tie_word_embeddings": True}, -64_000),
        ({"learned_position_embeddings": 10}, 640),
        ({"norm_layout": "sandwich"}, 4 * 2 * 64),
        ({"qk_norm": True}, 4 * 2 * 8),
        ({"v_head_dim": 6}, -4 * 64 * (8 + 2) * 2),
        ({"hidden_act": "geglu"}, 0),
        ({"shared_expert_intermediate_size": 50}, 3 * 3 * 64 * 2),
        ({"num_nextn_predict_layers": 1}, 0),
    ]
    for change, difference in changes:
        assert ModelSpec.model_validate(EXPERTS | change).total_params() - base == difference, change


def test_a_plain_mlp_has_two_matrices() -> None:
    assert ModelSpec.model_validate({**DENSE, "hidden_act": "gelu"}).dense_mlp_params == 2 * 64 * 96


def test_multi_token_prediction_is_one_more_layer_and_a_projection() -> None:
    model = ModelSpec.model_validate({**EXPERTS, "num_nextn_predict_layers": 2})
    assert model.mtp_params == 2 * (model.layer_params(3) + 2 * 64 * 64 + 3 * 64)
    assert model.total_params(include_mtp=True) == model.total_params() + model.mtp_params


def test_the_json_schema_needs_only_what_has_no_default() -> None:
    schema = ModelSpec.model_json_schema()
    assert set(schema["required"]) == {"name", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}
    assert schema["additionalProperties"] is False
