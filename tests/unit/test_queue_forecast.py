"""When searches that wait will start: by the order of the queue, the slots and what each takes."""

from __future__ import annotations

import pytest

from autodeploy.service.searches.views import Start, forecast
from autodeploy.service.store.queue_state import Running, Slots, Waiting

pytestmark = pytest.mark.unit

NOW_S = 1_000_000.0


def waiting(name: str, key: str = "a", expected_s: float | None = 10.0, came_s: float = 0.0) -> Waiting:
    return Waiting(name, key, NOW_S + came_s, expected_s)


def test_nobody_waits():
    assert forecast([], Slots(2), NOW_S) == {}


def test_position_over_slots_times_what_each_takes():
    starts = forecast([waiting(str(number), came_s=number) for number in range(6)], Slots(2), NOW_S)
    assert [starts[str(number)].position for number in range(6)] == [1, 2, 3, 4, 5, 6]
    assert [starts[str(number)].wait_s for number in range(6)] == [0.0, 0.0, 10.0, 10.0, 20.0, 20.0]


def test_what_runs_has_to_end_first():
    slots = Slots(1, (Running("b", NOW_S - 4.0, 10.0),))
    assert forecast([waiting("1")], slots, NOW_S)["1"] == Start(1, 6.0)
    overdue = Slots(1, (Running("b", NOW_S - 40.0, 10.0),))
    assert forecast([waiting("1")], overdue, NOW_S)["1"] == Start(1, 10.0)


def test_on_a_slow_machine_everything_takes_longer():
    slots = Slots(1, (Running("b", NOW_S - 4.0, 10.0),))
    starts = forecast([waiting("1"), waiting("2", came_s=1.0)], slots, NOW_S, pace=2.0)
    assert [starts["1"].wait_s, starts["2"].wait_s] == [16.0, 36.0]


def test_keys_take_turns_there_too():
    first = [waiting(f"a{number}", "a", came_s=number) for number in range(5)]
    starts = forecast([*first, waiting("b", "b", came_s=9.0)], Slots(1), NOW_S)
    assert starts["b"] == Start(2, 10.0)
    assert starts["a4"] == Start(6, 50.0)


def test_a_long_search_waits_for_the_slot_that_it_may_have():
    long_ones = [waiting("1", expected_s=100.0), waiting("2", expected_s=100.0, came_s=1.0)]
    starts = forecast([*long_ones, waiting("3", expected_s=5.0, came_s=2.0)], Slots(2), NOW_S)
    assert (starts["3"].wait_s, starts["1"].wait_s, starts["2"].wait_s) == (0.0, 0.0, 100.0)


def test_without_a_slot_nobody_knows():
    assert forecast([waiting("1"), waiting("2")], Slots(0), NOW_S) == {"1": Start(1, None), "2": Start(2, None)}
