"""The order of the queue over minutes of simulated time, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError

from autodeploy.service.store import queue_state
from autodeploy.service.store.database import Database
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.queue_state import SlotRules
from autodeploy.service.store.searches import Searches
from autodeploy.service.store.tables import ApiKeyRow, WorkerRow
from tests.integration.test_store_searches import NOW, new_row
from tests.support.queue_simulation import Asked, Started, p95_s, simulate

pytestmark = pytest.mark.integration

SHORT_S, DEEP_S, EVERY_S = 2.0, 75.0, 20.0
NINE = tuple(f"key_{number}" for number in range(1, 10))
TENTH = "key_10"


def shorts(minutes: float) -> list[Asked]:
    """Nine keys ask for a short search every 20 s, each at its own moment."""
    random_ = random.Random(20261123)
    first_s = {key: random_.uniform(0.0, EVERY_S) for key in NINE}
    turns = range(int(minutes * 60 / EVERY_S))
    return [Asked(first_s[key] + turn * EVERY_S, key, SHORT_S) for key in NINE for turn in turns]


def of_the_nine(started: list[Started]) -> list[float]:
    return [each.waited_s for each in started if each.asked.key in NINE]


def test_forty_deep_searches_of_a_tenth_key_hardly_delay_the_nine(database):
    minutes = 2.0
    alone = simulate(database, shorts(minutes), num_slots=2, new_row=new_row)
    before_s = p95_s(of_the_nine(alone))
    with database.write() as session:
        session.execute(text("DELETE FROM searches"))
    deep = [Asked(1.0, TENTH, DEEP_S) for _ in range(40)]
    together = simulate(database, [*shorts(minutes), *deep], num_slots=2, new_row=new_row)
    assert len(of_the_nine(together)) == len(of_the_nine(alone)) == 9 * 60.0 / EVERY_S * minutes
    assert p95_s(of_the_nine(together)) <= 2.0 * before_s + 5.0
    # And the tenth is not starved meanwhile: a slot of two is its own.
    of_tenth = [each.at_s for each in together if each.asked.key == TENTH]
    assert sum(at_s < minutes * 60.0 for at_s in of_tenth) >= 0.7 * minutes * 60.0 / DEEP_S
    assert len(of_tenth) == 40


def test_keys_take_turns_in_one_slot(database):
    asked = [Asked(0.0, "a", 3.0) for _ in range(10)] + [
        Asked(0.1, "b", 3.0),
        Asked(0.2, "c", 3.0),
        Asked(0.3, "b", 3.0),
    ]
    order = "".join(each.asked.key for each in simulate(database, asked, num_slots=1, new_row=new_row))
    assert order == "abcabaaaaaaaa"


def test_slots_are_shared_by_time_not_by_searches(database):
    """One key's searches take ten times as long; over six minutes both have half of the slot."""
    asked = [Asked(0.0, "long", 20.0) for _ in range(9)] + [Asked(0.0, "quick", 2.0) for _ in range(100)]
    started = simulate(database, asked, num_slots=1, new_row=new_row)
    used_s = Counter[str]()
    for each in started:
        if each.at_s < 360.0:
            used_s[each.asked.key] += each.asked.takes_s
    assert used_s["quick"] == pytest.approx(180.0, rel=0.1)


def test_a_long_search_is_not_passed_for_ever(database):
    asked = [Asked(0.0, "a", DEEP_S), *(Asked(0.8 * number, "a", 1.0) for number in range(1, 110))]
    started = simulate(database, [Asked(0.0, "a", 1.0), *asked], num_slots=1, new_row=new_row)
    deep = next(each for each in started if each.asked.takes_s == DEEP_S)
    assert 30.0 < deep.waited_s < 2.0 * DEEP_S


def test_what_the_command_line_left_behind_waits_for_what_was_asked(database):
    asked = [Asked(0.0, "", 2.0, origin="cli"), *(Asked(0.1 * number, "a", 2.0) for number in range(4))]
    started = simulate(database, [Asked(0.0, "a", 2.0), *asked], num_slots=1, new_row=new_row)
    assert [each.asked.origin for each in started][-1] == "cli"


def add(database: Database, search_id: str, **columns: object) -> None:
    with database.write() as session:
        row = new_row(search_id)
        for name, value in columns.items():
            setattr(row, name, value)
        Searches(session).add(row)


def claimed(database: Database, **rules: float) -> str | None:
    with database.write() as session:
        found = Queue(session).claim_next("me", now=NOW, rules=SlotRules(**rules))  # type: ignore[arg-type]
        return None if found is None else found.search_id


def test_slots_are_those_of_live_workers(database):
    """Two workers of a slot each: one is kept, so a second long search waits although nobody else does."""
    with database.write() as session:
        for number, age_s in enumerate((0.0, 5.0, 60.0)):
            seen_at = NOW - timedelta(seconds=age_s)
            session.add(
                WorkerRow(
                    id=f"w{number}",
                    started_at=NOW,
                    seen_at=seen_at,
                    slots=1,
                    busy=0,
                    rss_bytes=1,
                    engine_version="1",
                )
            )
    add(database, "srch_1", expected_s=90.0)
    add(database, "srch_2", expected_s=90.0)
    assert claimed(database, own=1, alive_s=15.0) == "srch_1"
    assert claimed(database, own=1, alive_s=15.0) is None
    assert claimed(database, own=1, alive_s=120.0) == "srch_2"


def test_a_key_that_may_run_one_runs_one(database):
    with database.write() as session:
        session.add(ApiKeyRow(id="key_1", name="one", key_hash="0", scope="write", max_running=1, created_at=NOW))
    for number in range(4):
        add(database, f"srch_{number}", principal="key_1" if number < 2 else "key_2", expected_s=2.0)
    assert [claimed(database, own=8) for _ in range(4)] == ["srch_0", "srch_2", "srch_3", None]


def test_what_runs_on_the_command_line_takes_no_slot(database):
    add(database, "srch_0", origin="cli")
    with database.write() as session:
        assert Queue(session).claim("srch_0", "a terminal", now=NOW)
    add(database, "srch_1", expected_s=90.0)
    assert claimed(database, own=2) == "srch_1"


def test_two_claims_at_once_do_not_both_take_the_last_turn(database):
    """Many threads, one search allowed: the rule is read and followed in one turn."""
    for number in range(12):
        add(database, f"srch_{number:02}", principal="key_1", expected_s=2.0)
    found: list[str] = []

    def work() -> None:
        if (search_id := claimed(database, own=12, max_running=1)) is not None:
            found.append(search_id)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["srch_00"]


def test_a_turn_that_is_not_given_back_ends(migrated_postgres_dsn, monkeypatch):
    """On PostgreSQL: a writer of SQLite is alone."""
    database = Database(migrated_postgres_dsn, pool_size=5)
    monkeypatch.setattr(queue_state, "TURN_LIMIT_S", 0.4)
    add(database, "srch_1")
    found = None
    # The connection that fell silent is gone, which it hears of at the end.
    with contextlib.suppress(DBAPIError), database.write() as silent:
        queue_state.take_turn(silent)
        for _ in range(5):
            with contextlib.suppress(OperationalError):  # nor does anybody wait for ever
                found = claimed(database)
                break
    database.close()
    assert found == "srch_1"
