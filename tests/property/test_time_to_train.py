"""The objective `time_to_train`: recovery where failures are worth it, and none where they are not."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.messages import in_language
from autodeploy.search.planner import plan, reestimate
from autodeploy.search.run_planning import RECOVERIES, days_of
from autodeploy.specs.planset import Timing
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


SPACE = {"tp": [2], "pp": [1], "cp": [1], "micro_batch_size": [1]}


def spec_of(
    card_hours: float = 20_000.0, cards: int = 16, *, run: Any = None, model: str = "llama2-7b", **search: Any
) -> Spec:
    """A model on `cards`, of which one fails every `card_hours`."""
    return read_spec_document(
        {
            "model": model,
            "cluster": {"profile": "ascend-800t-a2", "num_npus": cards},
            "training": {"seq_length": 4096, "global_batch_size": 4 * cards, "tokens": 1e12},
            "run": {"npu_failure_interval_h": card_hours, **(run or {})},
            "search": {"effort": "fast", "top_k": 3, "objective": "time_to_train", "allow": SPACE, **search},
        }
    )


@cache
def fastest(way: str, cards: int) -> Plan:
    """Of step times, with this recovery."""
    spec = spec_of(cards=cards, features=RECOVERIES[way], objective="step_time", risk="neutral", top_k=1)
    return plan(spec, alone=True).plans[0]


@cache
def planned(card_hours: float, cards: int) -> PlanSet:
    """By regret where the same spec is searched twice, and by time alone elsewhere."""
    return plan(spec_of(card_hours, cards, risk="averse" if card_hours == 2_000.0 else "neutral"), search_id="s")


def recovery_of(found: PlanSet) -> str:
    assert found.plans[0].run is not None
    return found.plans[0].run.recovery


# Each way wins somewhere: recovery where cards fail often, none where they seldom do.
@pytest.mark.parametrize(("card_hours", "cards"), [(500.0, 16), (10_000.0, 64), (1e6, 16)])
def test_the_first_plan_ends_first_and_none_is_below_the_bound(card_hours: float, cards: int) -> None:
    found = planned(card_hours, cards)
    days = [days_of(each) for each in found.plans]
    assert found.optimality.objective == "time_to_train"
    assert found.optimality.bound is not None
    assert found.optimality.bound <= min(days)
    assert found.optimality.gap == pytest.approx(1.0 - found.optimality.bound / days[0])
    for name in RECOVERIES:
        alone = reestimate(spec_of(card_hours, cards, features=RECOVERIES[name]), fastest(name, cards))
        assert days_of(alone) >= days[0] * (1.0 - 1e-9), name


def test_more_failures_never_end_a_run_sooner() -> None:
    days = [days_of(planned(card_hours, 16).plans[0]) for card_hours in (500.0, 2_000.0, 10_000.0, 1e6)]
    assert all(seldom <= often * (1.0 + 1e-9) for often, seldom in pairwise(days))
    assert days[-1] < days[0]


def test_recovery_is_preferred_where_cards_fail_often_and_not_where_they_seldom_do() -> None:
    assert recovery_of(planned(500.0, 16)) != "none"
    assert recovery_of(planned(1e6, 16)) == "none"


def test_more_cards_fail_more_often() -> None:
    """Where recovery pays on few cards, it pays on more."""
    paid = [recovery_of(planned(10_000.0, cards)) != "none" for cards in (16, 64)]
    assert paid == sorted(paid)


def test_every_recovery_is_there_to_compare() -> None:
    found = planned(2_000.0, 16)
    ways = {each.run.recovery for each in found.plans if each.run is not None}
    assert ways == set(RECOVERIES)
    assert len({each.plan_id for each in found.plans}) == len(found.plans)
    assert [each.rank for each in found.plans] == [1, 2, 3]
    said = [note for note in found.warnings if note.startswith("recovery ")]
    assert len(said) == 2
    assert all(in_language(note, "zh") != note for note in said)


def test_plans_are_those_of_the_spec_that_was_asked() -> None:
    spec, found = spec_of(2_000.0), planned(2_000.0, 16)
    assert found.search.spec["search"]["objective"] == "time_to_train"
    for each in found.plans:
        again = reestimate(spec, each)
        assert again.plan_id == each.plan_id
        assert again.step_time_s == pytest.approx(each.step_time_s, rel=1e-9)
        assert again.run is not None
        assert again.run.days == pytest.approx(days_of(each), rel=1e-9)


def test_two_searches_give_the_same_bytes() -> None:
    again = plan(spec_of(2_000.0), search_id="s")
    first, second = (
        each.model_copy(update={"timing": Timing()}).model_dump_json() for each in (again, planned(2_000.0, 16))
    )
    assert first == second


def test_what_is_asked_for_is_kept() -> None:
    on = plan(spec_of(1e6, risk="neutral", features={"high_availability": "on"}))
    assert recovery_of(on) != "none"
    off = plan(spec_of(500.0, risk="neutral", features={"high_availability": "off"}))
    assert all(each.run is not None and each.run.recovery == "none" for each in off.plans)


def test_targets_without_recovery_are_planned_without() -> None:
    found = plan(spec_of(500.0, risk="neutral", target="mindformers", model="qwen3-8b"))
    assert found.plans
    assert recovery_of(found) == "none"


def test_formats_that_exclude_recovery_leave_none() -> None:
    found = plan(spec_of(500.0, risk="neutral", run={"checkpoint_format": "torch_dist"}))
    assert found.plans
    assert recovery_of(found) == "none"


def test_a_spec_without_a_run_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        read_spec_document(
            {
                "model": "llama2-7b",
                "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
                "training": {"seq_length": 4096, "global_batch_size": 64},
                "search": {"objective": "time_to_train"},
            }
        )
    assert caught.value.errors[0].path == "/search/objective"
    assert "training.tokens" in caught.value.errors[0].hint
