"""What an operator or a key allows one search to ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.kit.settings import Settings
from autodeploy.service.requests.callers import ANYONE, Principal
from autodeploy.service.searches.submissions import within_caps
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

SETTINGS = Settings(max_time_limit_s=100.0, max_effort=5.0, max_cards=1024)


def spec(cluster: dict[str, Any] | None = None, **search: Any) -> Spec:
    document = {
        "model": "llama2-70b",
        "cluster": {"profile": "ascend-800t-a2", **(cluster or {"num_npus": 512})},
        "training": {"seq_length": 4096, "global_batch_size": 1024},
        "search": search,
    }
    return read_spec_document(document)


def test_what_is_allowed_stays_as_it_is() -> None:
    given = spec(time_limit_s=100.0, effort=5.0)
    assert within_caps(given, SETTINGS, ANYONE) is given
    assert within_caps(spec(effort="deep"), Settings(), ANYONE) == spec(effort="deep")


def test_every_field_beyond_its_cap_is_named() -> None:
    with pytest.raises(SpecError) as caught:
        within_caps(spec({"num_npus": 2048}, time_limit_s=101.0, effort=6.0), SETTINGS, ANYONE)
    assert {(error.path, error.message) for error in caught.value.errors} == {
        ("/search/time_limit_s", "this server allows at most 100"),
        ("/search/effort", "this server allows at most 5"),
        ("/cluster/num_npus", "this server plans for at most 1,024 cards"),
    }


def test_blocks_count_their_cards() -> None:
    with pytest.raises(SpecError) as caught:
        within_caps(spec({"blocks": [{"supernode": 0, "nodes": 129}]}), SETTINGS, ANYONE)
    assert caught.value.errors[0].path == "/cluster/blocks"


def test_a_time_limit_that_nobody_chose_is_lowered() -> None:
    assert within_caps(spec(), SETTINGS, ANYONE).search.time_limit_s == 100.0


def test_a_key_has_a_time_limit_of_its_own() -> None:
    key = Principal(key_id="key_1", scope="write", max_time_limit_s=30.0)
    assert within_caps(spec(), SETTINGS, key).search.time_limit_s == 30.0
    with pytest.raises(SpecError, match="this key allows at most 30"):
        within_caps(spec(time_limit_s=31.0), SETTINGS, key)
