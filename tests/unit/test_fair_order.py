"""Which search is next: keys take turns, short before long for a while, one slot kept, the command line's last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.service.store.queue_state import (
    LENGTHS_S,
    SHORT_S,
    WINDOW_S,
    Running,
    Slots,
    Waiting,
    length_of,
    next_search,
    used_within,
)

pytestmark = pytest.mark.unit

NOW_S = 1_000_000.0
ONE = Slots(1)
TWO = Slots(2)
DEEP_S = 120.0


def waiting(name: str, key: str = "a", expected_s: float | None = 3.0, came_s: float = 0.0, **more: bool) -> Waiting:
    return Waiting(name, key, NOW_S + came_s, expected_s, **more)


def running(key: str, expected_s: float | None = 3.0, since_s: float = 0.0) -> Running:
    return Running(key, NOW_S - since_s, expected_s)


def chosen(heads: list[Waiting], slots: Slots = ONE) -> str | None:
    found = next_search(heads, slots, NOW_S)
    return None if found is None else found.id


def test_nothing_waits():
    assert chosen([]) is None


def test_of_equal_searches_the_oldest_is_next():
    assert chosen([waiting("2", came_s=1.0), waiting("1"), waiting("3", came_s=2.0)]) == "1"


def test_the_key_with_fewest_running_is_next():
    heads = [waiting("a1", "a"), waiting("b1", "b", came_s=50.0)]
    assert chosen(heads, Slots(3, (running("a"), running("a"), running("b")))) == "b1"


def test_then_the_key_that_used_its_slots_least():
    heads = [waiting("a1", "a"), waiting("b1", "b", came_s=50.0)]
    assert chosen(heads, replace(ONE, used_s={"a": 10.0})) == "b1"
    assert chosen(heads, replace(ONE, used_s={"a": 10.0, "b": 11.0})) == "a1"


def test_short_before_long_within_a_key_but_not_for_ever():
    deep = waiting("deep", expected_s=DEEP_S)
    assert chosen([deep, waiting("short", came_s=60.0)]) == "short"
    assert chosen([deep, waiting("short", came_s=DEEP_S + 1.0)]) == "deep"


def test_a_search_of_another_key_is_not_passed_by_short_ones():
    heads = [waiting("a1", "a", expected_s=DEEP_S), waiting("b1", "b", came_s=1.0)]
    assert chosen(heads, replace(ONE, used_s={"b": 5.0})) == "a1"


@pytest.mark.parametrize("expected_s", [SHORT_S, DEEP_S, None])
def test_one_slot_is_kept_for_short_searches(expected_s):
    heads = [waiting("long", expected_s=expected_s)]
    assert chosen(heads, TWO) == "long"
    busy = Slots(2, (running("b", DEEP_S),))
    assert chosen(heads, busy) is None
    assert chosen([*heads, waiting("short", "c", came_s=9.0)], busy) == "short"
    assert chosen(heads, Slots(3, (running("b", DEEP_S),))) == "long"


def test_a_search_that_turned_out_to_be_long_counts_as_long():
    assert chosen([waiting("long", expected_s=DEEP_S)], Slots(2, (running("b", 3.0, since_s=SHORT_S),))) is None
    assert chosen([waiting("long", expected_s=DEEP_S)], Slots(2, (running("b", 3.0, since_s=5.0),))) == "long"


def test_a_single_slot_runs_long_searches_too():
    assert chosen([waiting("long", expected_s=DEEP_S)], ONE) == "long"


def test_a_key_runs_no_more_than_it_may():
    heads = [waiting("a1", "a"), waiting("b1", "b", came_s=5.0)]
    slots = Slots(8, (running("a"), running("b"), running("b")), most_running=2, most_of_key={"a": 1, "b": 3})
    assert chosen(heads, slots) == "b1"
    assert chosen(heads, replace(slots, most_of_key={"a": 1})) is None
    assert chosen(heads, replace(slots, most_of_key={})) == "a1"


def test_what_the_command_line_left_behind_comes_last():
    left = waiting("left", "", left_behind=True)
    assert chosen([left, waiting("asked", expected_s=DEEP_S, came_s=9.0)]) == "asked"
    # Also where what was asked has to wait itself.
    assert chosen([left, waiting("asked", expected_s=DEEP_S)], Slots(2, (running("b", DEEP_S),))) is None
    assert chosen([left]) == "left"


def test_lengths_double_and_are_known_to_be_half_unknown():
    assert [length_of(bound_s) for bound_s in LENGTHS_S] == list(range(1, len(LENGTHS_S) + 1))
    assert length_of(0.5) == 0
    assert length_of(None) == length_of(SHORT_S)


def test_use_is_of_the_window_alone():
    spans = [(-1000.0, -WINDOW_S - 1.0), (-WINDOW_S - 20.0, -WINDOW_S + 5.0), (-10.0, -7.0), (-2.0, 30.0)]
    assert used_within(spans, 0.0) == pytest.approx(5.0 + 3.0 + 2.0)
