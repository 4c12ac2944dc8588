"""Cards that may stay idle: fewer are used where they are faster, and what is said of odd numbers is true."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.search.branch_and_bound.search_space import card_counts
from autodeploy.search.planner import plan
from autodeploy.search.ranking.infeasible import _near_cards
from autodeploy.specs.reading import read_spec_document

SEARCH: dict[str, Any] = {"risk": "neutral", "gap": 0.0, "top_k": 1, "allow": {"schedule": ["1f1b"], "cp": [1]}}


@cache
def step_s(model: str, profile: str, batch: int, cards: int, use: str) -> float:
    """The fastest plan's step; infinite where there is none."""
    document = {
        "model": model,
        "cluster": {"profile": profile, "num_npus": cards, "use": use},
        "training": {"seq_length": 2048, "global_batch_size": batch},
        "search": SEARCH,
    }
    fastest = plan(read_spec_document(document)).fastest
    return float("inf") if fastest is None else fastest.step_time_s


@pytest.mark.parametrize(
    ("model", "profile", "batch", "cards"),
    [
        ("qwen3-0.6b", "ascend-800t-a2", 32, 3),
        ("qwen3-0.6b", "ascend-800t-a2", 40, 7),
        ("qwen3-1.7b", "nvidia-h100", 48, 5),
        ("llama2-7b", "nvidia-h100", 60, 7),
        ("qwen3-8b", "cloudmatrix-384", 24, 7),
    ],
)
def test_cards_that_may_stay_idle_are_never_slower_than_fewer_of_a_node(
    model: str, profile: str, batch: int, cards: int
) -> None:
    free = step_s(model, profile, batch, cards, "at_most")
    fewer = [step_s(model, profile, batch, count, "exactly") for count in range(cards - 1, max(0, cards - 4), -1)]
    assert free <= min(fewer) * (1.0 + 1e-9)
    assert free <= step_s(model, profile, batch, cards, "exactly") * (1.0 + 1e-9)


@given(st.integers(1, 60_000), st.sampled_from([4, 8, 16]))
def test_counts_are_distinct_within_the_cluster_and_start_with_all_of_it(cards: int, per_node: int) -> None:
    counts = card_counts(cards, per_node)
    assert counts[0] == cards
    assert counts == sorted(set(counts), reverse=True)
    assert counts[-1] >= 1
    assert len(counts) <= max(per_node + 1, 7)  # all, three parts of the last node, three of whole nodes
    if cards <= per_node:
        assert counts == list(range(cards, 0, -1))


@pytest.mark.parametrize(
    ("cards", "better"), [(7, [6]), (13, [12]), (15, [12]), (11, [8]), (3, [2]), (8, []), (16, []), (376, [352])]
)
def test_advice_names_a_number_with_more_divisors_or_none(cards: int, better: list[int]) -> None:
    assert _near_cards(cards, 8) == better
