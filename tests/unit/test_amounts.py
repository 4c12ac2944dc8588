"""Amounts as people write them, in files, forms and pasted text."""

from __future__ import annotations

from typing import Any

import pytest

from api.ui.new_search_form import sections, spec_document
from api.ui.views import pasted_document
from autodeploy.kit.errors import SpecError
from autodeploy.messages import in_language
from autodeploy.specs.reading import card_count, read_spec_document, resolved, token_amount, whole_amount


def spec_of(cluster: dict[str, Any] | None = None, **training: Any) -> Any:
    return read_spec_document(
        {
            "model": "llama2-7b",
            "cluster": {"profile": "ascend-800t-a2", **(cluster or {"num_npus": 16})},
            "training": {"seq_length": 4096, "global_batch_size": 64} | training,
        }
    )


@pytest.mark.parametrize(("text", "value"), [("4k", 4096), ("1.5K", 1536), ("1m", 1_048_576), ("384", 384)])
def test_lengths_and_batches_are_counted_by_powers_of_two(text: str, value: int) -> None:
    assert whole_amount(text) == value


@pytest.mark.parametrize("text", ["", "k", "4kk", "1.0001k", "4t", "-4k", "9" * 30 + "k"])
def test_what_is_no_whole_amount(text: str) -> None:
    assert whole_amount(text) is None


def test_tokens_are_counted_by_tens() -> None:
    assert token_amount("1T") == 1e12
    assert token_amount("500b") == 5e11


@pytest.mark.parametrize(
    ("text", "profile", "cards"),
    [
        ("16 nodes", "ascend-800t-a2", 128),
        ("16 节点", "ascend-800t-a2", 128),
        ("1 node", "cloudmatrix-384", 8),
        ("4k", None, 4096),
        ("16 nodes", "no-such-profile", None),
        ("some", "ascend-800t-a2", None),
    ],
)
def test_cards_by_nodes_of_the_profile(text: str, profile: str | None, cards: int | None) -> None:
    assert card_count(text, profile) == cards


def test_a_spec_is_read_with_its_amounts() -> None:
    spec = spec_of({"nodes": 16}, seq_length="8k", global_batch_size="1k", tokens="1T")
    assert spec == spec_of({"num_npus": 128}, seq_length=8192, global_batch_size=1024, tokens=1e12)
    assert spec_of({"num_npus": "2 nodes"}).cluster.num_npus == 16


@pytest.mark.parametrize(
    ("cluster", "training", "path"),
    [
        ({"nodes": 16, "num_npus": 16}, {}, "/cluster/nodes"),
        ({"nodes": 0}, {}, "/cluster/num_npus"),
        ({"num_npus": "16"}, {}, "/cluster/num_npus"),
        ({"num_npus": "many"}, {}, "/cluster/num_npus"),
        (None, {"seq_length": "long"}, "/training/seq_length"),
        (None, {"global_batch_size": "4t"}, "/training/global_batch_size"),
    ],
)
def test_what_is_no_amount_is_refused_where_it_stands(
    cluster: dict[str, Any] | None, training: dict[str, Any], path: str
) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(cluster, **training)
    assert path in [error.path for error in caught.value.errors]


def test_the_form_and_a_pasted_file_say_the_same() -> None:
    typed = {
        "/model": "llama2-7b",
        "/cluster/profile": "ascend-800t-a2",
        "/cluster/num_npus": "2 nodes",
        "/training/seq_length": "4k",
        "/training/global_batch_size": "64",
    }
    assert read_spec_document(spec_document(sections([], []), typed)) == spec_of()
    text = "model: llama2-7b\ntraining: {seq_length: 4k, global_batch_size: 64}\n"
    pasted, _ = pasted_document(text, {"cluster": "ascend-800t-a2", "num_npus": "2 nodes"})
    assert read_spec_document(pasted) == spec_of()


CONFIG = (
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, '
    '"num_attention_heads": 32, "intermediate_size": 11008, "vocab_size": 32000}'
)


@pytest.mark.parametrize(
    ("beside", "path", "hint"),
    [
        ({}, "/cluster/profile", "选择集群"),
        ({"cluster": "ascend-800t-a2"}, "/cluster/num_npus", "16 节点"),
    ],
)
def test_a_pasted_file_is_told_of_the_fields_beside_it(beside: dict[str, str], path: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        pasted_document(CONFIG, beside)
    (error,) = caught.value.errors
    assert error.path == path
    assert "--" not in error.hint
    assert hint in in_language(error.hint, "zh")


def test_nodes_of_a_pasted_spec_hold_on_the_chosen_cluster() -> None:
    text = "model: llama2-7b\ncluster: {nodes: 2}\ntraining: {seq_length: 4k, global_batch_size: 64}\n"
    pasted, _ = pasted_document(text, {"cluster": "ascend-800t-a2"})
    assert read_spec_document(pasted) == spec_of()
    pasted, _ = pasted_document(text, {"cluster": "ascend-800t-a2", "num_npus": "8"})
    assert read_spec_document(pasted).cluster.num_npus == 8


def test_phases_of_a_run_are_written_as_people_do() -> None:
    phases: list[Any] = [{"tokens": "1T", "seq_length": "32k"}, "x"]
    read = resolved({"run": {"phases": phases}})
    assert read["run"]["phases"] == [{"tokens": 1e12, "seq_length": 32 * 1024}, "x"]
    assert phases[0]["tokens"] == "1T"
