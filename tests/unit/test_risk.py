"""Ranking by expected cost, regret, and gains that no run has shown."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.search.ranking.regret import WORTH_TIE, cautious_order, regrets, with_unproven_gains


def test_regret_is_against_the_best_plan_of_each_draw() -> None:
    log_times = np.log([[10.0, 11.0], [12.0, 11.0]])
    assert regrets(log_times) == pytest.approx(np.array([[0.0, 0.1], [12.0 / 11.0 - 1.0, 0.0]]))


def test_the_least_cost_comes_first_whatever_else_is_said() -> None:
    none = np.zeros(3)
    assert cautious_order(np.array([1.2, 1.0, 1.1]), none, none).tolist() == [1, 2, 0]


def test_headroom_decides_between_plans_of_equal_cost() -> None:
    costs = np.array([1.0, 1.0 + 0.5 * WORTH_TIE, 1.0 + 2.0 * WORTH_TIE])
    none = np.zeros(3)
    assert cautious_order(costs, none, np.array([0.91, 0.99, 1.0])).tolist() == [1, 0, 2]
    assert cautious_order(costs, none, np.array([0.991, 0.992, 1.0])).tolist() == [0, 1, 2]


def test_of_equal_cost_the_plan_that_rests_on_less_comes_first() -> None:
    costs = np.array([1.0, 1.0 + 0.5 * WORTH_TIE, 1.0 + 2.0 * WORTH_TIE])
    assert cautious_order(costs, np.array([2, 1, 0]), np.array([0.99, 0.91, 1.0])).tolist() == [1, 0, 2]


def test_a_gain_that_no_run_has_shown_counts_by_its_share() -> None:
    nominal = np.log([100.0, 90.0])
    log_times = np.tile(nominal, (3, 1))
    shares = {"ep": np.array([0.0, 0.5, 1.0])}
    found = np.exp(with_unproven_gains(log_times, nominal, [frozenset(), frozenset({"ep"})], shares))
    assert found[:, 0] == pytest.approx(100.0)
    assert found[:, 1] == pytest.approx([100.0, np.sqrt(100.0 * 90.0), 90.0])


def test_gains_come_on_top_of_each_other_and_each_counts_once() -> None:
    nominal = np.log([100.0, 90.0, 80.0])
    shares = {"ep": np.array([0.5]), "dualpipev": np.array([0.25])}
    rests = [frozenset(), frozenset({"ep"}), frozenset({"ep", "dualpipev"})]
    found = with_unproven_gains(nominal[None], nominal, rests, shares)[0]
    assert found[2] == pytest.approx(nominal[2] + 0.5 * np.log(100 / 90) + 0.75 * np.log(90 / 80))


def test_what_all_plans_rest_on_and_what_is_slower_anyway_change_nothing() -> None:
    nominal = np.log([100.0, 90.0])
    both = [frozenset({"ranks"}), frozenset({"ranks"})]
    assert with_unproven_gains(nominal[None], nominal, both, {"ranks": np.zeros(1)})[0] == pytest.approx(nominal)
    slower = np.log([100.0, 110.0])
    found = with_unproven_gains(slower[None], slower, [frozenset(), frozenset({"ep"})], {"ep": np.zeros(1)})
    assert found[0] == pytest.approx(slower)


def test_shares_of_one_draw_are_shared_by_all_plans() -> None:
    nominal = np.log([100.0, 90.0, 90.0])
    log_times = np.tile(nominal, (5, 1))
    rests = [frozenset(), frozenset({"ep"}), frozenset({"ep"})]
    found = with_unproven_gains(log_times, nominal, rests, {"ep": np.linspace(0.0, 1.0, 5)})
    assert found[:, 1] == pytest.approx(found[:, 2])
