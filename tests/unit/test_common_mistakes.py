"""Common slips in valid specs: refused where surely wrong, told where they look wrong."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.messages import in_language
from autodeploy.specs.reading import common_mistakes, read_spec_document


def document(cluster: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    return {
        "model": "llama2-70b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 512, **(cluster or {})},
        "training": {"seq_length": 4096, "global_batch_size": 1024, **training},
    }


def told(given: dict[str, Any]) -> list[str]:
    """What is told before the search; it travels with the spec."""
    said: list[str] = []
    spec = read_spec_document(given, doubt=said.append)
    assert tuple(said) == spec.doubts
    again = read_spec_document(spec.model_dump(mode="json"))
    assert again.doubts == spec.doubts, "told once, however often the spec is read"
    return said


@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"num_npus": 4},
        {"profile": "cloudmatrix-384", "num_npus": 384},
        {"profile": "cloudmatrix-384", "num_npus": 1536},
        {"num_npus": None, "blocks": [{"supernode": 0, "nodes": 47}]},
    ],
)
def test_usual_specs_have_none(cluster: dict[str, Any]) -> None:
    assert told(document(cluster)) == []


def test_large_trainings_that_were_run_have_none() -> None:
    assert told(document({"profile": "cloudmatrix-384", "num_npus": 384}, global_batch_size=15_360)) == []
    assert told(document(seq_length=131_072, global_batch_size=1024)) == []


def test_a_batch_in_tokens() -> None:
    (said,) = told(document(global_batch_size=4_194_304))
    assert "4,194,304 sequences is 1.72e+10 tokens per step" in said
    assert said.endswith("write 1,024")
    assert "1,024" in in_language(said, "zh")
    assert in_language(said, "zh") != said


def test_a_step_longer_than_the_run_is_refused() -> None:
    with pytest.raises(SpecError, match="one step would train") as caught:
        read_spec_document(document(global_batch_size=4_194_304, tokens=1e10))
    (error,) = caught.value.errors
    assert error.path == "/training/global_batch_size"
    assert error.hint == "in sequences, not tokens"


def test_part_of_a_node() -> None:
    (said,) = told(document({"num_npus": 1004}))
    assert said.startswith("1,004 cards do not fill whole nodes of 8 (1,000 or 1,008 do)")
    assert list(told(document({"num_npus": 1004, "use": "at_most"}))) == []
    assert in_language(said, "zh") != said


def test_dies_counted_as_cards() -> None:
    given = document({"profile": "cloudmatrix-384", "num_npus": 768})
    (said,) = told(given)
    assert said == "768 cards are 2 supernodes: if the 768 dies of one were meant, write 384"
    assert in_language(said, "zh") != said
    given = document({"profile": "cloudmatrix-384", "num_npus": 256})
    given["strategy"] = {"tp": 8, "pp": 4, "dp": 8}
    (said,) = told(given)
    assert said.startswith("the strategy has 256 ranks, but 256 cards have 2 dies each")
    assert in_language(said, "zh") != said
    assert [slip.path for slip in common_mistakes(read_spec_document(given))] == ["/cluster/num_npus"]
