"""Strategies that the rankings choose in groups of measured runs, and what the choice cost."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from autodeploy.calibration.families import family_of
from autodeploy.calibration.profile_fit import Calibration, calibrate
from autodeploy.calibration.shipped.strategy_groups import Gain, StrategyGroup, gains, strategy_groups
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.costs.prediction_spread import coverage
from docs.accuracy_page.aims import shipped_start
from docs.accuracy_page.errors import layout_groups, runs_of
from docs.backtest import page
from docs.backtest_groups import Backtest, Choice, backtest, layout_words, lines, summary, table_without, weights_of

A100 = "nvidia-a100-80g"


@cache
def group(model: str = "GPT-18.4B", cards: int = 256) -> StrategyGroup:
    every = strategy_groups(shipped_records())
    return next(g for g in every if g.model == model and g.records[0].cluster.num_npus == cards)


@cache
def fitted() -> Calibration:
    records = [r for r in shipped_records() if r.cluster.profile == A100 and "_multi_" in r.id]
    return calibrate(sorted(records, key=lambda r: r.id)[::2], A100, start=shipped_start(A100), iterations=1)


def chosen(
    *times: tuple[float, float], order: tuple[int, ...] | None = None, of: StrategyGroup | None = None
) -> Backtest:
    """A group whose strategies have these predicted and measured seconds."""
    of = of or group()
    choices = [Choice((of.records[n],), p, m, frozenset()) for n, (p, m) in enumerate(times)]
    return Backtest(of, tuple(choices), order or tuple(range(len(times))))


def test_regret_is_what_the_chosen_strategy_took_beyond_the_fastest_measured() -> None:
    found = chosen((1.0, 2.2), (2.0, 2.0), (3.0, 4.0), order=(1, 0, 2))
    assert (found.neutral, found.averse) == (0, 1)
    assert found.regret(found.neutral) == pytest.approx(0.1)
    assert found.regret(found.averse) == 0.0
    assert found.tau("averse") == 1.0
    assert found.tau("neutral") == pytest.approx(1.0 / 3.0)


def test_the_same_layouts_on_other_cards_count_once_where_asked() -> None:
    small, large = (group("nemotron4-15b", cards) for cards in (64, 128))
    assert small.records[0].training.precision == large.records[0].training.precision
    lost = [chosen((1.0, 1.1), (2.0, 1.0), of=each) for each in (small, large)]
    won = chosen((1.0, 1.0), (2.0, 2.0))
    assert weights_of([*lost, won]) == [0.5, 0.5, 1.0]
    assert summary([*lost, won], "averse") == pytest.approx((0.2 / 3.0, 0.1))
    assert summary([*lost, won], "averse", weights_of([*lost, won])) == pytest.approx((0.05, 0.1))


def test_the_aims_are_two_percent_and_six() -> None:
    assert lines([chosen((1.0, 1.05), (2.0, 1.0)), *[chosen((1.0, 1.0), (2.0, 2.0))] * 4])[0].met
    assert lines([chosen((1.0, 1.07), (2.0, 1.0)), *[chosen((1.0, 1.0), (2.0, 2.0))] * 9])[0].met is False
    assert lines([chosen((1.0, 1.03), (2.0, 1.0))])[0].met is False


def test_a_group_leaves_the_evidence_and_its_own_gains() -> None:
    of = group()
    families = frozenset(family_of(record) for record in of.records)
    gain = Gain("g", "other", "910B2", "tp", 8, 0.1, 0.1, 50)
    promised = [
        gain,
        Gain("g", "third", "910B2", "tp", 8, 0.1, 0.0, 50),
        Gain("g", of.model, "A", "tp", 8, 0.1, 9.0, 50),
    ]
    table = table_without(families, of, promised)
    ids = {row["id"] for row in table["records"]}
    assert not ids & {record.id for record in of.records}
    assert len(ids) == len(coverage()["records"]) - len(of.records)
    assert set(table["realised"]["of_model"]) == {"other on 910B2", "third on 910B2"}


def test_a_group_is_predicted_by_a_fit_that_has_not_seen_its_family() -> None:
    found = backtest(group(), [fitted()], gains(shipped_records()[:1], [fitted()]))
    assert found is not None
    assert sum(len(choice.records) for choice in found.choices) == len(group().records)
    assert sorted(found.averse_order) == list(range(len(found.choices)))
    left_out = {r.id: float(x) for r, x in zip(fitted().records, runs_of(fitted()).left_out, strict=True)}
    for choice in found.choices:
        residual = left_out.get(choice.records[0].id)
        if residual is not None:
            assert np.log(choice.predicted_s / choice.measured_s) == pytest.approx(residual, abs=0.03)
    page_group = next(g for g in layout_groups(runs_of(fitted())) if g.name.startswith("GPT-18.4B"))
    assert found.regret(found.averse) <= max(0.05, page_group.regret)


def test_layouts_in_words_name_what_is_used() -> None:
    words = {layout_words(record) for record in group().records}
    assert "TP8, micro batch 8, full recomputation" in words
    assert any(word.startswith("PP8, micro batch 4") for word in words)


def test_the_page_lists_groups_and_gains() -> None:
    gain = Gain("some group", "a model", "910B2", "tp", 8, 0.1, 0.07, 50)
    text = page([chosen((1.0, 1.1), (2.0, 1.0))], [gain])
    assert "| 10.0 % | 10.0 % |" in text
    assert "| some group | tp 8 | 50 | 10.0 % | 7.0 % |" in text
    assert "each model once: 0.70" in text
