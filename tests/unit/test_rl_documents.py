"""The documents of post-training by reinforcement learning: what they read, and what they refuse and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset
from autodeploy.specs.rl import PromptLength, ResponseLength, RlStrategy, RlTraining

if TYPE_CHECKING:
    from autodeploy.specs.base import Document

TRAINING: dict[str, Any] = {
    "algorithm": "grpo",
    "prompts_per_step": 512,
    "responses_per_prompt": 16,
    "prompt_length": {"mean": 512, "max": 1024},
    "response_length": {"mean": 2500, "cv": 0.8, "max": 8192},
    "prompt_correlation": 0.5,
    "updates_per_step": 1,
    "reference_model": True,
    "critic": None,
    "reward": "rule",
    "generation_precision": "bf16",
    "token_count": "mean",
}
STRATEGY: dict[str, Any] = {
    "placement": "colocated",
    "generation_npus": None,
    "generation": {
        "tp": 4,
        "dp": 16,
        "ep": 64,
        "precision": "bf16",
        "engine": "vllm-ascend",
        "mode": "eager",
        "memory_fraction": 0.7,
        "max_num_seqs": 128,
    },
    "staleness": 0,
    "partial_rollout": False,
    "offload": ["optimizer", "gradients", "parameters"],
    "pack_tokens": 16384,
}


def refused(kind: type[Document], document: Any) -> tuple[str, str, str]:
    """Path, message and hint of the only complaint."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(document)
    (error,) = field_errors(caught.value, model=kind)
    return error.path, error.message, error.hint


@pytest.mark.parametrize(("kind", "document"), [(RlTraining, TRAINING), (RlStrategy, STRATEGY)])
def test_a_full_document_comes_back_as_it_went(kind, document):
    read = kind.model_validate(document)
    assert kind.model_validate(read.model_dump(mode="json")) == read
    assert kind.model_validate_json(read.model_dump_json()) == read
    assert set(kind.model_fields) == set(document)


def test_what_is_absent_has_the_documented_default():
    read = RlTraining.model_validate(
        {
            "prompts_per_step": 64,
            "responses_per_prompt": 32,
            "prompt_length": {"mean": 110},
            "response_length": {"mean": 3203, "max": 4096},
        }
    )
    assert (read.algorithm, read.reward, read.token_count, read.updates_per_step) == ("grpo", "rule", "mean", 1)
    assert (read.reference_model, read.prompt_correlation, read.generation_precision) == (True, 0.5, "bf16")
    assert read.samples == 2048
    layout = RlStrategy.model_validate({"generation": {"tp": 2}})
    assert (layout.placement, layout.staleness, layout.offload) == ("colocated", 0, ())
    assert layout.generation.mode is None


@pytest.mark.parametrize(
    "strategy",
    [
        {"placement": "async", "staleness": 1, "generation": {"tp": 2, "dp": 1, "ep": 1, "mode": None}},
        {"placement": "async", "staleness": 0, "generation": {}},
        {"placement": "separate", "generation_npus": 128, "generation": {"tp": 32, "engine": "vllm"}},
        {"placement": "colocated", "staleness": 0, "generation": {"tp": 1, "dp": 8, "ep": 8, "precision": "w8a8"}},
    ],
)
def test_strategies_of_records_are_read(strategy):
    assert RlStrategy.model_validate(strategy).placement == strategy["placement"]


def test_lengths_are_those_of_the_cost_model():
    known = ResponseLength(mean=2500, cv=0.8, max=8192).distribution()
    assert known.mean == pytest.approx(2500)
    assert known.longest == pytest.approx(8192)
    assert ResponseLength(mean=2500, max=8192).distribution() is known
    shares = ResponseLength.model_validate({"histogram": {1024: 0.3, "4096": 0.7}}).distribution()
    assert shares.tokens.tolist() == [1024.0, 4096.0]
    assumed = ResponseLength(max=2048)
    assert assumed.mean_is_assumed
    assert assumed.distribution().mean == 2048.0
    assert not ResponseLength(mean=2500, max=8192).mean_is_assumed


def test_a_prompt_length_stands_in_for_the_other():
    assert (PromptLength(mean=110.5).mean_tokens, PromptLength(mean=110.5).max_tokens) == (110.5, 111)
    assert (PromptLength(max=2048).mean_tokens, PromptLength(max=2048).max_tokens) == (2048.0, 2048)


@pytest.mark.parametrize(
    ("length", "path", "message", "hint"),
    [
        ({"mean": 9000, "max": 8192}, "/max", "mean 9000 exceeds max 8192", ""),
        ({"cv": 0.8, "max": 8192}, "/cv", "requires mean", "give mean"),
        ({"mean": 2500}, "", "at least one of max, histogram", ""),
        ({}, "", "at least one of max, histogram", ""),
        ({"mean": 2500, "histogram": {10: 1}}, "/histogram", "not allowed with mean", "leave mean out"),
        ({"histogram": {10: 0.0}}, "/histogram", "no length has a share above 0", ""),
        ({"histogram": {"ten": 1.0}}, "/histogram", "'ten' is not a whole number", "at least 1"),
        ({"histogram": {0: 1.0}}, "/histogram", "'0' is not a whole number", "at least 1"),
        ({"histogram": {"7": 1.0, 7: 1.0}}, "/histogram", "7 is given twice", ""),
        ({"mean": 0.5, "max": 10}, "/mean", "0.5 is too small", "at least 1"),
        ({"max": 8192, "median": 4}, "/median", "unknown key 'median'", ""),
    ],
)
def test_lengths_that_contradict_are_refused(length, path, message, hint):
    found = refused(RlTraining, TRAINING | {"response_length": length})
    assert found[0] == "/response_length" + path
    assert found[1].startswith(message)
    assert hint in found[2]


@pytest.mark.parametrize(
    ("change", "path", "message", "hint"),
    [
        ({"prompt_length": {"mean": 2048, "max": 1024}}, "/prompt_length/max", "mean 2048 exceeds max 1024", ""),
        ({"prompt_length": {}}, "/prompt_length", "at least one of mean, max", ""),
        ({"updates_per_step": 3}, "/updates_per_step", "3 does not divide prompts_per_step 512", ""),
        ({"critic": "same"}, "/critic", "requires algorithm: ppo", "algorithm: ppo"),
        ({"algorithm": "ppo", "critic": "no-such-model"}, "/critic", "", "same, or a model"),
        ({"reward": {"preset": "no-such-model"}}, "/reward", "", "rule, or a model"),
        ({"reward": {"hidden_size": 5120}}, "/reward", "", "a model, as under /model"),
        ({"algorithm": "rloo"}, "/algorithm", "invalid value 'rloo'", "grpo"),
        ({"prompt_correlation": 1.5}, "/prompt_correlation", "1.5 is too big", "at most 1"),
        ({"responses_per_prompt": 0}, "/responses_per_prompt", "0 is too small", "at least 1"),
    ],
)
def test_training_that_contradicts_itself_is_refused(change, path, message, hint):
    found = refused(RlTraining, TRAINING | change)
    assert found[0] == path
    assert found[1].startswith(message)
    assert hint in found[2]


@pytest.mark.parametrize(
    ("change", "path", "message", "hint"),
    [
        ({"staleness": 1}, "/staleness", "requires placement: async", "placement: async"),
        ({"placement": "separate", "staleness": 2, "offload": []}, "/staleness", "requires placement: async", "async"),
        ({"staleness": -1}, "/staleness", "-1 is too small", "at least 0"),
        ({"generation_npus": 64}, "/generation_npus", "not allowed with placement: colocated", "separate, async"),
        ({"placement": "async"}, "/offload", "requires placement: colocated", "leave it out"),
        ({"offload": ["optimizer", "optimizer"]}, "/offload", "optimizer is given twice", ""),
        ({"offload": ["activations"]}, "/offload/0", "invalid value 'activations'", "optimizer"),
        ({"generation": {"tp": 4, "dp": 16, "ep": 32}}, "/generation", "ep 32 is neither 1 nor tp x dp = 64", ""),
        ({"generation": {"memory_fraction": 1.1}}, "/generation/memory_fraction", "1.1 is too big", "at most 1"),
        ({"generation": {"mode": "fast"}}, "/generation/mode", "invalid value 'fast'", "eager"),
        ({"generation": {"precision": "int4"}}, "/generation/precision", "invalid value 'int4'", "w8a8"),
    ],
)
def test_strategies_that_contradict_themselves_are_refused(change, path, message, hint):
    found = refused(RlStrategy, STRATEGY | change)
    assert found[0] == path
    assert found[1].startswith(message)
    assert hint in found[2]


def test_models_by_name_or_inline():
    preset = load_preset("deepseek-v3")
    for given in (preset, preset.model_dump(exclude_unset=True)):
        read = RlTraining.model_validate(TRAINING | {"algorithm": "ppo", "critic": given, "reward": given})
        assert isinstance(read.critic, ModelSpec)
        assert read.reward.hidden_size == preset.hidden_size
    read = RlTraining.model_validate(TRAINING | {"reward": {"preset": "deepseek-v3", "num_hidden_layers": 8}})
    assert read.reward.num_hidden_layers == 8
    assert RlTraining.model_validate(TRAINING | {"reward": "deepseek-v3"}).reward == load_preset("deepseek-v3")
    assert RlTraining.model_validate(TRAINING | {"algorithm": "ppo", "critic": "same"}).critic == "same"


@pytest.mark.parametrize("kind", [RlTraining, RlStrategy])
def test_a_schema_says_the_same(kind):
    schema = kind.model_json_schema()
    assert set(schema["properties"]) == set(kind.model_fields)
    assert schema["additionalProperties"] is False
