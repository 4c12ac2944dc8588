"""Cards for a budget of card-hours or money, alone and beside a deadline; valleys of the table are marked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autodeploy.analysis.what_if.recommend import budget_in_hours, recommend
from autodeploy.cli.what_if import _budget_hours
from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from autodeploy.specs.questions import Budget
from autodeploy.specs.reading import read_spec_document
from tests import factories

TOKENS = 1e12


def spec_of(**more: Any) -> Any:
    training = {"seq_length": 4096, "global_batch_size": 512, "tokens": TOKENS}
    cluster = {"profile": "ascend-800t-a2", "num_npus": 8}
    return read_spec_document({"model": "llama2-7b", "cluster": cluster, "training": training, **more})


def rate(cards: int) -> float:
    """Tokens a second: ever less of a card, and half of it on 5, 7, 10, ... nodes, which divide nothing."""
    nodes = cards // 8
    return 5000.0 * cards * (0.97**nodes) * (0.5 if nodes % 5 == 0 or nodes % 7 == 0 else 1.0)


class Planner:
    """Knows the rate of every number of cards; what searches find is 5 % better than estimates."""

    def __init__(self) -> None:
        self.searched: list[int] = []

    def fastest_s(self, spec: Any) -> float:
        batch = spec.training.global_batch_size.value * spec.training.seq_length
        return float(batch / rate(spec.cluster.num_npus))

    def plan(self, spec: Any, *, alone: bool = False) -> Any:
        self.searched.append(spec.cluster.num_npus)
        return SimpleNamespace(plans=(factories.plan(1, tokens_per_s=1.05 * rate(spec.cluster.num_npus)),))


def hours_of(cards: int) -> float:
    return TOKENS / (1.05 * rate(cards)) / 3600.0 * cards


def brute_force(budget: float) -> int | None:
    nodes = [n for n in range(1, 17) if n in {1, 2, 3, 4, 6, 8, 9, 12, 16}]
    fit = [8 * n for n in nodes if hours_of(8 * n) <= budget]
    return max(fit, key=rate, default=None)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.06, 1.1, 1.3, 1.7, 5.0])
def test_a_budget_buys_the_fastest_training(factor: float) -> None:
    budget, planner = factor * hours_of(8), Planner()
    answer = recommend(spec_of(), Budget(npu_hours=budget), planner=planner)  # type: ignore[arg-type]
    assert answer.num_npus == brute_force(budget)
    assert len(planner.searched) <= 6
    assert answer.npu_hours == budget
    assert answer.days is None


def test_a_deadline_and_a_budget_hold_both() -> None:
    days = TOKENS / (1.05 * rate(64)) / 86_400.0 * 1.001
    rich = recommend(spec_of(), Budget(days=days, npu_hours=2 * hours_of(64)), planner=Planner())  # type: ignore[arg-type]
    assert rich.num_npus == 64
    poor = recommend(spec_of(), Budget(days=days, npu_hours=0.5 * hours_of(64)), planner=Planner())  # type: ignore[arg-type]
    assert poor.num_npus is None
    assert poor.message.key == "what_if.deadline_costs"  # type: ignore[attr-defined]


def test_rows_that_are_slower_than_fewer_cards_say_so() -> None:
    rows = recommend(spec_of(), Budget(days=4.0, npu_hours=1e9), planner=Planner()).scaling  # type: ignore[arg-type]
    best = 0.0
    for row in rows:
        assert (row.note is not None) == (row.tokens_per_s < best)
        best = max(best, row.tokens_per_s)


def test_neither_is_refused_and_money_needs_a_price() -> None:
    with pytest.raises(SpecError):
        recommend(spec_of(), Budget(), planner=Planner())  # type: ignore[arg-type]
    with pytest.raises(SpecError):
        budget_in_hours(spec_of(), 1e6)
    assert budget_in_hours(spec_of(run={"price_per_npu_hour": 2.0}), 1e6) == 5e5
    assert _budget_hours(spec_of(), "200k card-hours") == _budget_hours(spec_of(), "200k-npu-hours") == 2e5
    assert _budget_hours(spec_of(run={"price_per_npu_hour": 2.0}), "1M") == 5e5
    with pytest.raises(SpecError):
        _budget_hours(spec_of(), "much")


def test_numbers_of_cards_that_no_strategy_divides_have_no_fastest_strategy() -> None:
    spec = read_spec_document(
        {
            "model": "qwen3-30b-a3b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 1000},
            "training": {"seq_length": 4096, "global_batch_size": 512},
        }
    )
    assert planner.fastest_s(spec) is None
