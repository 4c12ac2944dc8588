"""What a search is expected to take, held against what searches took."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from autodeploy.analysis.intake import read_network_spec
from autodeploy.search import planner
from autodeploy.search.branch_and_bound import search_space as module
from autodeploy.search.branch_and_bound.search_space import SearchSize, search_size
from autodeploy.service.searches.submissions import AFTER_LIMIT_S, expected_s
from autodeploy.service.store.tables import SHORT_S
from autodeploy.specs.search import SearchSpec

pytestmark = pytest.mark.unit

LLAMA = {"preset": "llama2-70b", "name": "longer", "num_hidden_layers": 160}
A2, MATRIX = "ascend-800t-a2", "cloudmatrix-384"
# Model, profile, cards, batch, search, processor seconds on one core of an AMD EPYC machine. None was fitted to.
MEASURED = [
    ("qwen3-0.6b", A2, 16, 64, {"effort": 2}, 1.2),
    ("llama3-8b", A2, 64, 512, {}, 2.5),
    ("llama3-70b", A2, 512, 1024, {"effort": "deep"}, 18.2),
    ("deepseek-v3", A2, 1024, 4096, {}, 4.5),
    ("deepseek-v3", MATRIX, 384, 3840, {"effort": "deep", "target": "any", "time_limit_s": 600}, 67.5),
    ("qwen3-235b-a22b", A2, 256, 1024, {"effort": 0.5}, 5.9),
    ("qwen3-235b-a22b", A2, 256, 1024, {"top_k": 20}, 12.3),
    (LLAMA, A2, 256, 1024, {}, 5.6),
]


def expected(model: Any, profile: str, cards: int, batch: int, search: dict[str, Any], **more: Any) -> float:
    document = {
        "model": model,
        "cluster": {"profile": profile, "num_npus": cards},
        "training": {"seq_length": 4096, "global_batch_size": batch},
        "search": search,
        **more,
    }
    spec = read_network_spec(document, planner)
    return expected_s(planner.search_size(spec), spec.search)


def test_it_is_within_about_a_factor_of_two():
    ratios = [expected(*case) / took_s for *case, took_s in MEASURED]
    assert all(0.4 <= ratio <= 2.5 for ratio in ratios), ratios
    assert math.exp(statistics.fmean(abs(math.log(ratio)) for ratio in ratios)) < 1.6
    assert 0.7 < statistics.median(ratios) < 1.4


def test_what_takes_long_is_not_taken_for_short():
    assert expected(*MEASURED[4][:5]) >= SHORT_S
    assert all(expected(*case) < SHORT_S for *case, took_s in MEASURED if took_s < 15.0)


def test_no_more_than_the_time_limit():
    assert expected("deepseek-v3", MATRIX, 384, 3840, {"effort": 10_000, "time_limit_s": 50}) == 50 + AFTER_LIMIT_S


@pytest.mark.parametrize(
    "more",
    [
        {"candidates": 1_000_000},
        {"layers": 160},
        {"effort": 3.0},
        {"phases": 2},
    ],
)
def test_more_of_anything_takes_longer(more):
    usual: dict[str, Any] = {"candidates": 50_000, "layers": 80, "effort": 1.0, "phases": 0}
    search = SearchSpec(time_limit_s=86_400)
    assert expected_s(SearchSize(**usual | more), search) > 1.3 * expected_s(SearchSize(**usual), search)


def test_phases_that_may_change_the_layout_are_searches_too():
    phases = [{"tokens": 1e12}, {"tokens": 1e11, "seq_length": 8192}, {"tokens": 1e11, "seq_length": 16384}]
    case = ("llama2-70b", A2, 64, 256, {})
    alone = expected(*case)
    assert expected(*case, run={"phases": phases}) == alone
    assert expected(*case, run={"phases": phases, "layout_changes": "allowed"}) == pytest.approx(1.8 * alone)


def test_a_large_grid_is_guessed_not_judged(monkeypatch):
    document = {
        "model": "deepseek-v3",
        "cluster": {"profile": MATRIX, "num_npus": 384},
        "training": {"seq_length": 4096, "global_batch_size": 3840},
    }
    prepared = planner.prepare(read_network_spec(document, planner))
    judged = search_size(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    monkeypatch.setattr(module, "MOST_JUDGED", 0)
    monkeypatch.setattr(module, "legal_tree", None)
    guessed = search_size(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    assert 0.3 < guessed.candidates / judged.candidates < 3.0
