"""What is recommended is not beaten by its own rule: laws of small searches, and of prices alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.kit.deadline import Deadline
from autodeploy.kit.errors import SpecError
from autodeploy.search import plan_search
from autodeploy.search.planner import plan
from autodeploy.search.ranking import advice
from autodeploy.search.ranking.expected_cost import DAY_S, FLOOR, HOUR_S, RiskPrice, expected_costs, price_of
from autodeploy.search.ranking.regret import regret_order
from autodeploy.specs.reading import read_spec_document
from tests.support.joint_costs import advised, held, is_dominated

SMALL: dict[str, dict[str, Any]] = {
    "dense 8B": {"model": "llama3-8b", "npus": 8, "seq": 8192, "batch": 32, "allow": {"tp": [2, 4], "pp": [1, 2]}},
    "dense 8B, long": {"model": "qwen3-8b", "npus": 8, "seq": 32768, "batch": 8, "allow": {"tp": [4, 8], "cp": [1, 2]}},
    "dense 7B": {"model": "llama2-7b", "npus": 8, "seq": 4096, "batch": 64, "allow": {"pp": [1, 2], "vpp": [1, 2]}},
    "experts": {"model": "qwen3-30b-a3b", "npus": 16, "seq": 4096, "batch": 128, "allow": {"tp": [1], "pp": [1, 2]}},
    # Only states on the host leave the paired layout its room: with them on the device its layers can't be level.
    "tight": {
        "model": "gpt-oss-120b",
        "npus": 64,
        "seq": 4096,
        "batch": 768,
        "allow": {"tp": [1], "pp": [4, 8], "ep": [16]},
    },
    "one sequence": {"model": "qwen3-14b", "npus": 16, "seq": 65536, "batch": 1, "allow": {"tp": [4, 8], "pp": [1, 2]}},
}


def spec_of(name: str, **search: Any) -> Any:
    small = SMALL[name]
    allow = {"micro_batch_size": [1], "ep": [8, 16]} if small["model"].endswith("a3b") else {"micro_batch_size": [1]}
    document = {
        "model": small["model"],
        "cluster": {"profile": "ascend-800t-a2", "num_npus": small["npus"]},
        "training": {"seq_length": small["seq"], "global_batch_size": small["batch"]},
        "search": {"effort": "fast", "allow": allow | small["allow"], **search},
    }
    return read_spec_document(document)


@cache
def own(name: str) -> Any:
    return advised(spec_of(name))


@pytest.mark.parametrize("feature", ["swap_optimizer", "virtual_optimizer"])
@pytest.mark.parametrize("name", SMALL)
def test_what_is_recommended_costs_no_more_than_with_a_feature_forced(name: str, feature: str) -> None:
    forced = advised(spec_of(name, features={feature: "on"}))
    assert forced is not None
    assert forced.weighed[0].p_fits >= FLOOR
    assert held(own(name), forced).excess <= 0.002


@pytest.mark.parametrize("name", SMALL)
def test_what_is_recommended_costs_no_more_than_with_axes_fixed_to_its_rivals(name: str) -> None:
    for rival in own(name).weighed[:2]:
        axes = {axis: rival.axes[axis] for axis in ("tp", "pp", "vpp", "cp", "schedule")}
        fixed = advised(spec_of(name, fix=axes))
        assert fixed is not None
        assert held(own(name), fixed).excess <= 0.002


@pytest.mark.parametrize("name", SMALL)
def test_the_first_plan_is_not_dominated(name: str) -> None:
    assert not is_dominated(own(name))


@pytest.mark.parametrize("name", ["dense 8B", "dense 7B", "tight"])
def test_plans_at_the_floor_are_made_as_long_as_any_is_promising(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "AT_FLOOR", 1)
    one_by_one = advised(spec_of(name))
    assert one_by_one is not None
    assert abs(held(own(name), one_by_one).excess) <= 0.002


@pytest.mark.parametrize("name", ["dense 8B", "experts"])
def test_no_plan_at_the_floor_is_left_that_is_promising_in_the_draws(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[tuple[bool, list[int]]] = []
    look = advice.Adviser._promising

    def watched(self: advice.Adviser, seen: set[int]) -> list[int]:
        looks.append((self.so_far.responses.drawn, look(self, seen)))
        return looks[-1][1]

    monkeypatch.setattr(advice.Adviser, "_promising", watched)
    assert advised(spec_of(name)) is not None
    assert looks[-1] == (True, [])


@pytest.mark.parametrize("name", ["dense 8B", "experts", "one sequence"])
def test_plans_above_the_floor_are_made_before_any_draw(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As short of time as can be: the search's own plans are below this floor."""
    monkeypatch.setattr(advice, "responses", lambda *_plans, **_how: None)
    found = advised(spec_of(name, risk={"floor": 0.97}))
    assert found is not None
    assert found.weighed[0].p_fits >= 0.97


@pytest.mark.parametrize("polls", [0, 1, 3, 9, 27])
def test_a_limit_that_ends_the_search_keeps_the_floor(polls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Deadline] = []

    class Ending(Deadline):
        """The time limit of a search that has looked at it so many times since its first plan."""

        left: int | None = None

        def __call__(self) -> bool:
            if self.left is not None:
                self.left -= 1
                self.out_of_time |= self.left < 0
            return (self.left is not None and self.left < 0) or super().__call__()

        def has_plan(self) -> None:
            self.left = polls if self.left is None else self.left
            ended.append(self)

        def weigh(self) -> bool:
            hurried = self()
            self.left = None
            return hurried

    monkeypatch.setattr(plan_search, "Deadline", Ending)
    found = plan(spec_of("experts"))
    assert ended[0].out_of_time
    assert found.risk is not None
    assert found.risk.risk == "averse"
    chances = [each.p_fits or 0.0 for each in found.plans]
    assert chances[0] >= min(FLOOR, max(chances))


def test_a_neutral_ranking_is_never_slower_than_an_averse_one() -> None:
    for name in ("experts", "dense 8B"):
        neutral, averse = (plan(spec_of(name, risk=risk)) for risk in ("neutral", "averse"))
        assert neutral.plans[0].step_time_s <= min(each.step_time_s for each in averse.plans) * (1 + 1e-9)


def test_the_plan_to_launch_instead_stands_second() -> None:
    found = plan(spec_of("one sequence"))
    assert found.risk is not None
    first = found.plans[0]
    assert first.p_fits is not None
    surer = [each for each in found.plans[1:] if each.p_fits is not None and each.p_fits >= first.p_fits]
    assert (found.risk.instead is not None) == (first.p_fits < 0.9 and bool(surer))
    if found.risk.instead is not None:
        assert found.plans[1].plan_id == found.risk.instead
        assert found.plans[1].p_fits is not None
        assert found.plans[1].p_fits >= max(FLOOR, first.p_fits)


# Prices alone.

PLANS = st.lists(st.tuples(st.floats(10.0, 30.0), st.floats(0.05, 0.999), st.integers(0, 3)), min_size=1, max_size=8)


def costs_of(rows: list[tuple[float, float, int]], price: RiskPrice) -> Any:
    worth, fits, outer = (np.array(column) for column in zip(*rows, strict=True))
    starts = fits + 0.5 * (1.0 - fits) * fits
    return expected_costs(worth, starts, fits, outer, np.arange(len(rows)), price)


@given(PLANS)
@settings(max_examples=60, deadline=None)
def test_no_cost_is_below_the_time_of_the_fastest(rows: list[tuple[float, float, int]]) -> None:
    found = costs_of(rows, RiskPrice())
    assert (found.costs >= min(row[0] for row in rows) - 1e-9).all()


@given(PLANS)
@settings(max_examples=60, deadline=None)
def test_a_fallback_is_surer_where_any_plan_is(rows: list[tuple[float, float, int]]) -> None:
    fits = np.array([row[1] for row in rows])
    for row, fallback in enumerate(costs_of(rows, RiskPrice()).fallbacks.tolist()):
        assert fits[fallback] >= fits[row] or fits[row] > np.delete(fits, row).max()


@given(PLANS, st.floats(1.1, 20.0))
@settings(max_examples=60, deadline=None)
def test_a_dearer_launch_costs_more_and_most_where_it_fails_most(rows: list[Any], times: float) -> None:
    rows = [(20.0, each[1], number) for number, each in enumerate(rows)]  # all as fast
    cheap = costs_of(rows, RiskPrice())
    dear = costs_of(rows, RiskPrice(failed_launch_s=times * HOUR_S))
    assert (dear.costs >= cheap.costs - 1e-12).all()
    rises = (dear.costs - cheap.costs)[np.argsort([row[1] for row in rows])]
    assert rises[0] >= rises[-1] - 1e-12


@pytest.mark.parametrize("chance", [0.76, 0.8, 0.87, 0.9, 0.95])
def test_a_plan_that_is_much_faster_is_worth_a_trial_above_the_floor(chance: float) -> None:
    nominal = np.log([32.2, 17.0])
    found = regret_order(np.tile(nominal, (5, 1)), nominal, np.array([1.0, chance]), [frozenset()] * 2, FLOOR)
    assert found.order[0] == 1
    assert found.fallbacks[1] == 0
    assert 17.0 < found.expected_s[1] < 32.2


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5, 0.7, 0.749])
def test_no_gain_is_worth_a_plan_below_the_floor(chance: float) -> None:
    nominal = np.log([32.2, 3.0])
    found = regret_order(np.tile(nominal, (5, 1)), nominal, np.array([0.8, chance]), [frozenset()] * 2, FLOOR)
    assert found.order[0] == 0


@pytest.mark.parametrize("days", [0.5, 1.0, 3.0, 30.0, 300.0])
def test_a_failed_launch_weighs_more_in_a_short_run(days: float) -> None:
    nominal = np.log([10.1, 10.0])
    price = RiskPrice(run_s=days * DAY_S, failed_launch_s=12 * HOUR_S)
    found = regret_order(np.tile(nominal, (5, 1)), nominal, np.array([1.0, 0.9]), [frozenset()] * 2, FLOOR, price=price)
    assert found.order[0] == (1 if days >= 30.0 else 0)


def test_errors_shared_by_plans_make_the_fallback_one_with_more_room() -> None:
    worth, fits, price = np.array([10.0, 10.1, 11.0]), np.array([0.8, 0.81, 0.99]), RiskPrice(failed_launch_s=DAY_S)
    apart = expected_costs(worth, fits, fits, np.array([0, 1, 2]), np.arange(3), price)
    alike = expected_costs(worth, fits, fits, np.array([0, 0, 1]), np.arange(3), price)
    assert alike.fallbacks[0] == 2
    assert alike.costs[0] >= apart.costs[0]


@pytest.mark.parametrize("tokens", ["1B", "10B", "300B", "2T", "15T"])
def test_the_run_is_as_long_as_its_tokens(tokens: str) -> None:
    document = spec_of("dense 7B").model_dump(mode="json")
    document["training"]["tokens"] = tokens
    spec = read_spec_document(document)
    count = spec.training.tokens or 0.0
    assert price_of(spec, 2.0).run_s == pytest.approx(max(2.0, 2.0 * count / (64 * 4096)))


@pytest.mark.parametrize(
    ("terms", "floor", "hours"),
    [
        ("averse", 0.75, 1.0),
        ({"floor": 0.9}, 0.9, 1.0),
        ({"failed_launch_hours": 24}, 0.75, 24.0),
        ({"rule": "averse", "floor": 0.5, "failed_launch_hours": 0}, 0.5, 0.0),
        ({"rule": "neutral"}, 0.75, 1.0),
    ],
)
def test_prices_are_those_of_the_spec(terms: Any, floor: float, hours: float) -> None:
    price = price_of(spec_of("dense 7B", risk=terms), 2.0)
    assert (price.floor, price.failed_launch_s, price.run_s) == (floor, hours * HOUR_S, 30 * DAY_S)


@pytest.mark.parametrize(
    ("terms", "pointer"),
    [
        ({"floor": 1.5}, "/search/risk/floor"),
        ({"floor": -0.1}, "/search/risk/floor"),
        ({"failed_launch_hours": -1}, "/search/risk/failed_launch_hours"),
        ({"run_days": 0}, "/search/risk/run_days"),
        ({"floors": 0.8}, "/search/risk/floors"),
    ],
)
def test_wrong_prices_are_told_at_their_place(terms: Any, pointer: str) -> None:
    with pytest.raises(SpecError) as error:
        spec_of("dense 7B", risk=terms)
    assert [each.path for each in error.value.errors] == [pointer]


def test_a_first_plan_with_an_empty_chunk_meets_one_whose_chunks_are_filled() -> None:
    """The chunk holds the prediction module and the head, for which the layers of its stage make room."""
    fixed = {"tp": 1, "cp": 1, "pp": 4, "vpp": 2, "ep": 8, "micro_batch_size": 1, "schedule": "dualpipev"}
    document = {
        "model": {"preset": "glm-4.5-air", "num_hidden_layers": 13},
        "cluster": {"profile": "cloudmatrix-384", "num_npus": 16},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "search": {"effort": "fast", "fix": fixed},
    }
    found = advised(read_spec_document(document))
    assert found is not None
    filled = [each for each in found.weighed if each.solved.plan.layout.sum(axis=-1).all()]
    assert filled
    assert len(filled) < len(found.weighed)
    assert found.weighed[0].expected_s <= min(each.expected_s for each in filled)
