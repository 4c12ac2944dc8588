"""Reinforcement learning in a spec: what follows from it, what it can pin, and what contradicts it and where."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.messages import in_language
from autodeploy.specs.planset import Breakdown
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.search import RL_AXES, value_of
from autodeploy.specs.spec import Spec, parse_spec, spec_hash
from autodeploy.specs.strategy import Strategy

RL: dict[str, Any] = {
    "prompts_per_step": 16,
    "responses_per_prompt": 4,
    "prompt_length": {"mean": 200, "max": 256},
    "response_length": {"mean": 512, "cv": 0.8, "max": 2048},
}
GENERATION: dict[str, Any] = {"tp": 2, "dp": 4, "engine": "vllm-ascend", "mode": "eager", "memory_fraction": 0.7}


def document(**changes: Any) -> dict[str, Any]:
    """A spec of Llama2-7B on one node of eight."""
    return {
        "model": "llama2-7b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
        "training": {"kind": "rl_post_training", "rl": RL},
        **changes,
    }


def refused(**changes: Any) -> dict[str, tuple[str, str]]:
    """Message and hint of every complaint by its path."""
    with pytest.raises(SpecError) as caught:
        read_spec_document(document(**changes))
    assert all(
        any("\u4e00" <= sign <= "\u9fff" for sign in in_language(error.message, "zh")) for error in caught.value.errors
    )
    return {error.path: (error.message, error.hint) for error in caught.value.errors}


def test_lengths_batch_and_target_follow() -> None:
    spec = read_spec_document(document(training={"kind": "rl_post_training", "rl": {**RL, "updates_per_step": 2}}))
    assert spec.training.seq_length == 256 + 2048
    assert spec.training.global_batch_size.value == 16 * 4 // 2
    assert spec.search.target == "verl"
    assert read_spec_document(document(search={"target": "any"})).search.target == "any"


def test_a_spec_is_written_as_it_is_read() -> None:
    strategy = {"tp": 2, "rl": {"placement": "async", "generation_npus": 4, "staleness": 1, "generation": GENERATION}}
    spec = read_spec_document(document(strategy=strategy, search={"fix": {"rl.staleness": 1}}))
    written = spec.model_dump(mode="json")
    assert not {"seq_length", "global_batch_size"} & set(written["training"])
    assert parse_spec(written) == spec
    assert spec_hash(parse_spec(written)) == spec_hash(spec)


def test_documents_of_pre_training_say_nothing_of_it() -> None:
    assert "rl" not in Strategy().model_dump()
    assert not {"generation_s", "hand_over_s"} & set(Breakdown().model_dump())
    plain = read_spec_document(document(training={"seq_length": 4096, "global_batch_size": 64}))
    assert "rl" not in plain.model_dump(mode="json")["training"]


def test_the_schema_tells_both_kinds_apart() -> None:
    training = Spec.model_json_schema()["$defs"]["TrainingSpec"]
    assert training["then"]["required"] == ["rl"]
    assert training["else"]["required"] == ["seq_length", "global_batch_size"]


@pytest.mark.parametrize(
    ("training", "path", "message"),
    [
        ({"kind": "rl_post_training"}, "/training/rl", "rl is required"),
        ({"rl": RL, "kind": "pretrain"}, "/training/rl", "requires kind: rl_post_training"),
        (
            {"rl": RL, "kind": "rl_post_training", "seq_length": 4096},
            "/training/seq_length",
            "not allowed with kind: rl_post_training",
        ),
        (
            {"rl": RL, "kind": "rl_post_training", "global_batch_size": 64},
            "/training/global_batch_size",
            "not allowed with kind: rl_post_training",
        ),
        (
            {"rl": RL, "kind": "rl_post_training", "tokens": 1e9},
            "/training/tokens",
            "not allowed with training.kind: rl_post_training",
        ),
        (
            {"rl": RL, "kind": "rl_post_training", "sequence_length_histogram": {"100": 1.0}},
            "/training/sequence_length_histogram",
            "not allowed with kind: rl_post_training",
        ),
        (
            {"rl": {**RL, "prompt_length": {"mean": 300, "max": 256}}, "kind": "rl_post_training"},
            "/training/rl/prompt_length/max",
            "mean 300 exceeds max 256",
        ),
    ],
)
def test_training_that_contradicts_itself(training: dict[str, Any], path: str, message: str) -> None:
    found = refused(training=training)
    assert list(found) == [path]
    assert message in found[path][0]


@pytest.mark.parametrize(
    ("changes", "path", "hint"),
    [
        ({"search": {"target": "megatron"}}, "/search/target", "one of verl, mindspeed-rl, any"),
        ({"strategy": {"tp": 2}}, "/strategy/rl", "strategy: {rl:"),
        (
            {"search": {"fix": {"rl.placement": "colocated", "rl.staleness": 1}}},
            "/search/fix/rl.staleness",
            "rl.placement: async",
        ),
        (
            {"search": {"fix": {"rl.placement": "colocated", "rl.generation_npus": 4}}},
            "/search/fix/rl.generation_npus",
            "separate, async",
        ),
        ({"search": {"fix": {"rl.generation_npus": 8}}}, "/search/fix/rl.generation_npus", "less than 8"),
        (
            {"search": {"fix": {"rl.placement": "separate", "rl.offload": "gradients"}}},
            "/search/fix/rl.offload",
            "colocated",
        ),
        (
            {"search": {"target": "mindspeed-rl", "fix": {"rl.placement": "async"}}},
            "/search/fix/rl.placement",
            "target: verl",
        ),
        (
            {"strategy": {"rl": {"placement": "separate", "generation_npus": 8, "generation": {}}}},
            "/strategy/rl/generation_npus",
            "less than 8",
        ),
        (
            {"strategy": {"rl": {"placement": "colocated", "staleness": 2, "generation": {}}}},
            "/strategy/rl/staleness",
            "placement: async",
        ),
    ],
)
def test_parts_that_contradict_each_other(changes: dict[str, Any], path: str, hint: str) -> None:
    found = refused(**changes)
    assert list(found) == [path]
    assert hint in found[path][1]


def test_pre_training_takes_nothing_of_it() -> None:
    found = refused(
        training={"seq_length": 4096, "global_batch_size": 64},
        search={"target": "verl", "fix": {"rl.placement": "colocated"}},
        strategy={"tp": 2, "rl": {"generation": {}}},
    )
    assert list(found) == ["/search/target", "/search/fix/rl.placement", "/strategy/rl"]


@pytest.mark.parametrize(
    ("axis", "value", "read"),
    [
        ("rl.placement", "async", "async"),
        ("rl.generation_npus", "4", 4),
        ("rl.generation.memory_fraction", 0.7, 0.7),
        ("rl.generation.mode", "graph", "graph"),
        ("rl.partial_rollout", True, True),
        ("rl.offload", "gradients+optimizer", "optimizer+gradients"),
        ("rl.offload", "none", "none"),
        ("rl.pack_tokens", 8192, 8192),
    ],
)
def test_an_axis_takes_its_values(axis: str, value: Any, read: Any) -> None:
    spec = read_spec_document(document(search={"fix": {axis: value}, "allow": {axis: [value]}}))
    assert dict(spec.search.fix) == {axis: read}
    assert dict(spec.search.allow) == {axis: (read,)}


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("rl.placement", "beside"),
        ("rl.generation_npus", 0),
        ("rl.generation_npus", 2.5),
        ("rl.staleness", -1),
        ("rl.generation.memory_fraction", 1.5),
        ("rl.generation.mode", "compiled"),
        ("rl.partial_rollout", 1),
        ("rl.offload", "weights"),
        ("rl.offload", "optimizer+optimizer"),
        ("rl.pack_tokens", True),
        ("tp", True),
    ],
)
def test_an_axis_refuses_other_values(axis: str, value: Any) -> None:
    found = refused(search={"fix": {axis: value}})
    assert list(found) == ["/search/fix"]
    assert f"{axis} cannot be" in found["/search/fix"][0]


def test_every_axis_is_read_off_a_strategy() -> None:
    given = {"placement": "colocated", "offload": ["gradients", "optimizer"], "generation": GENERATION}
    strategy = Strategy.model_validate({"rl": given}).rl
    assert strategy is not None
    found = {axis: value_of(strategy, axis) for axis in RL_AXES}
    assert found["rl.offload"] == "optimizer+gradients"
    assert found["rl.generation.tp"] == 2
    known = {axis: value for axis, value in found.items() if value is not None}
    search = {"fix": {axis: value for axis, value in known.items() if axis != "rl.staleness"}}
    assert dict(read_spec_document(document(search=search)).search.fix) == search["fix"]
