"""Current models read from the keys of their `config.json`: parameters against published ones, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.specs.hf_config import read_hf_config
from hardware_profiles.shipped_yaml import load_shipped_yaml

ROWS = load_shipped_yaml((Path(__file__).parents[1] / "support/hf_models.yaml").read_text(encoding="utf-8"))
READ = [row for row in ROWS if "refused" not in row]
REFUSED = [row for row in ROWS if "refused" in row]


def agrees(counted: float, published: float, tolerance_pct: float = 1.0) -> bool:
    """Within 1 %, or what is published is the count rounded to its last digit (3B of 3.35)."""
    digits = len(str(published).partition(".")[2])
    return abs(counted / published - 1.0) <= tolerance_pct / 100 or abs(counted - published) <= 0.5 * 10**-digits


@pytest.mark.parametrize("row", READ, ids=lambda row: row["name"])
def test_parameters_are_the_published_ones(row: dict[str, Any]) -> None:
    model, _ = read_hf_config(row["config"], name=row["name"])
    assert model.name == row["name"]
    sizes = {"embedding": model.embedding_params, "head": model.head_params}
    without, tolerance = row.get("without", []), row.get("tolerance_pct", 1.0)
    total = (model.total_params() - sum(sizes[part] for part in row.get("total_without", []))) / 1e9
    assert agrees(total, row["total_b"], tolerance), total
    if "active_b" in row:
        idle = sum(size for part, size in sizes.items() if part in without)
        idle += model.embedding_params if "active_embedding" in without else 0
        counted = (model.active_params() - idle) / 1e9
        assert agrees(counted, row["active_b"], tolerance), counted


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["name"])
def test_what_is_not_modelled_is_refused_by_name(row: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=row["refused"] or "not modelled yet"):
        read_hf_config(row["config"])


def test_most_current_models_are_read() -> None:
    assert len(ROWS) >= 50
    assert len(READ) >= 43


def test_types_of_layers_are_read_from_every_way_to_say_them() -> None:
    by_name = {row["name"]: read_hf_config(row["config"])[0] for row in READ}
    kimi = by_name["Kimi-Linear-48B-A3B"]
    assert [kimi.attention_type(i) for i in (0, 3, 25, 26)] == [
        *("linear_attention", "full_attention", "linear_attention", "full_attention")
    ]
    maverick = by_name["Llama-4-Maverick-17B-128E"]
    assert [maverick.is_moe_layer(i) for i in range(4)] == [False, True, False, True]
    assert [maverick.attention_window(i) for i in range(4)] == [8192, 8192, 8192, None]
    assert [by_name["gemma-3-27b"].attention_window(i) for i in (0, 4, 5)] == [1024, 1024, None]
    assert [by_name["gemma-2-9b"].attention_window(i) for i in (0, 1)] == [4096, None]
    assert by_name["Qwen3.5-27B"].layer_types.count("linear_attention") == 48
    assert by_name["Qwen3.5-27B"].num_nextn_predict_layers == 1


MARKED = {
    "architectures": ["OtherForCausalLM"],
    **{"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "vocab_size": 32000},
    "intermediate_size": 4096,
    "hybrid_layer_pattern": [0, 1, 1, 0],
}


def test_marks_in_a_pattern_are_windows() -> None:
    model, _ = read_hf_config(MARKED | {"sliding_window": 128})
    assert [model.attention_window(layer) for layer in range(4)] == [None, 128, 128, None]


def test_marks_without_a_window_are_incomplete() -> None:
    with pytest.raises(SpecError) as caught:
        read_hf_config(MARKED)
    assert not isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize(
    ("said", "rhythm"),
    [
        ({}, (4, 3)),
        ({"index_topk_freq": None, "index_topk_pattern": ("FFF" + "SSSF" * 19)[:78]}, (4, 3)),
        ({"index_topk_freq": None, "indexer_types": ["full", "shared"] * 39}, (2, 1)),
        ({"index_topk_freq": None, "indexer_types": ["full"] * 78}, (1, 2)),
    ],
)
def test_layers_that_share_chosen_keys_are_said_in_three_ways(said: dict[str, Any], rhythm: tuple[int, int]) -> None:
    config = next(row for row in READ if row["name"] == "GLM-5.2")["config"] | said
    indexer = read_hf_config(config)[0].sparse_attention
    assert indexer is not None
    assert (indexer.index_topk_freq, indexer.index_skip_topk_offset) == rhythm


@pytest.mark.parametrize("types", ["F" * 70 + "SSFSSSSS", ["shared"] * 78, ["full", "shared"]])
def test_layers_that_share_chosen_keys_in_no_rhythm_are_refused(types: object) -> None:
    config = next(row for row in READ if row["name"] == "GLM-5.2")["config"]
    with pytest.raises(UnsupportedError, match="share selected keys"):
        read_hf_config(config | {"indexer_types": types})
