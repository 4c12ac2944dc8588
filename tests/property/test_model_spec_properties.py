"""What holds of the parameter counts of every model."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autodeploy.specs.model import ModelSpec


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Valid models: dense or with experts, grouped or latent attention."""
    heads = 2 ** draw(st.integers(0, 6))
    layers = draw(st.integers(1, 40))
    document: dict[str, Any] = {
        "name": "drawn",
        "hidden_size": heads * draw(st.integers(1, 128)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": draw(st.integers(1, 200_000)),
        "intermediate_size": draw(st.integers(1, 20_000)),
        "hidden_act": draw(st.sampled_from(["silu", "gelu", "geglu"])),
        "tie_word_embeddings": draw(st.booleans()),
        "norm_layout": draw(st.sampled_from(["pre", "sandwich"])),
        "qk_norm": draw(st.booleans()),
        "num_nextn_predict_layers": draw(st.integers(0, 2)),
    }
    if draw(st.booleans()):
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        document |= {name: draw(st.integers(1, 512)) for name in names}
        document["q_lora_rank"] = draw(st.none() | st.integers(1, 2048))
    else:
        document["num_key_value_heads"] = 2 ** draw(st.integers(0, heads.bit_length() - 1))
    if draw(st.booleans()):
        groups = draw(st.integers(1, 8))
        experts = groups * draw(st.integers(1, 16))
        first = draw(st.integers(0, layers - 1))
        document |= {
            "n_routed_experts": experts,
            "num_experts_per_tok": draw(st.integers(1, experts)),
            "moe_intermediate_size": draw(st.integers(1, 4096)),
            "n_shared_experts": draw(st.integers(0, 4)),
            "first_k_dense_replace": first,
            "mlp_only_layers": draw(st.lists(st.integers(0, layers - 1).filter(lambda i: i != first), max_size=4)),
            "n_group": groups,
            "topk_group": groups,
        }
    return document


@given(documents())
def test_layers_and_ends_sum_to_the_total(document: dict[str, Any]) -> None:
    model = ModelSpec.model_validate(document)
    layers = sum(model.layer_params(i) for i in range(model.num_hidden_layers))
    ends = model.embedding_params + model.head_params + model.final_norm_params
    assert model.total_params() == layers + ends
    assert model.total_params(include_mtp=True) == layers + ends + model.mtp_params
    assert sum(model.is_moe_layer(i) for i in range(model.num_hidden_layers)) == model.num_moe_layers


@given(documents())
def test_a_token_uses_no_more_than_there_is(document: dict[str, Any]) -> None:
    model = ModelSpec.model_validate(document)
    assert 0 < model.active_params(include_embedding=False) < model.active_params() <= model.total_params()
    everything = not model.is_moe or model.num_experts_per_tok == model.n_routed_experts
    assert (model.active_params() == model.total_params()) == everything


@given(documents(), st.sampled_from(["num_hidden_layers", "vocab_size", "intermediate_size", "moe_intermediate_size"]))
def test_a_larger_model_has_more_parameters(document: dict[str, Any], field: str) -> None:
    if field not in document:
        return
    smaller = ModelSpec.model_validate(document)
    larger = ModelSpec.model_validate(document | {field: document[field] + 1})
    has_it = field != "intermediate_size" or smaller.num_dense_layers > 0
    assert (larger.total_params() > smaller.total_params()) == has_it


@given(documents())
def test_one_more_layer_adds_the_last_layer(document: dict[str, Any]) -> None:
    smaller = ModelSpec.model_validate(document)
    larger = ModelSpec.model_validate(document | {"num_hidden_layers": smaller.num_hidden_layers + 1})
    assert larger.total_params() - smaller.total_params() == larger.layer_params(smaller.num_hidden_layers)


@given(documents())
def test_a_model_survives_its_own_dump(document: dict[str, Any]) -> None:
    model = ModelSpec.model_validate(document)
    assert ModelSpec.model_validate(model.model_dump(mode="json")) == model
    assert ModelSpec.model_validate(model.model_dump(mode="json", exclude_unset=True)) == model
