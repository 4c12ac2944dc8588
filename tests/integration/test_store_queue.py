"""The queue in the search rows, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from autodeploy.service.store.queue import Claim, Queue
from autodeploy.service.store.searches import Searches
from tests import factories
from tests.integration.test_store_searches import NOW, new_row

if TYPE_CHECKING:
    from autodeploy.service.store.database import Database

pytestmark = pytest.mark.integration


def enqueue(database: Database, *search_ids: str) -> None:
    with database.write() as session:
        for search_id in search_ids:
            Searches(session).add(new_row(search_id))


def status(database: Database, search_id: str) -> str | None:
    with database.read() as session:
        return Searches(session).status(search_id)


def claim(database: Database, owner: str = "me") -> Claim | None:
    with database.write() as session:
        return Queue(session).claim_next(owner, now=NOW)


def test_every_search_is_claimed_once_by_many_threads(database):
    enqueue(database, *(f"srch_{n:02}" for n in range(30)))
    claimed: list[str] = []

    def work(owner: str) -> None:
        while (mine := claim(database, owner)) is not None:
            claimed.append(mine.search_id)

    threads = [threading.Thread(target=work, args=(f"owner {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(claimed) == dict.fromkeys((f"srch_{n:02}" for n in range(30)), 1)


def test_the_oldest_search_is_first(database):
    enqueue(database, "srch_2", "srch_1", "srch_3")
    assert [claim(database).search_id for _ in range(3)] == ["srch_1", "srch_2", "srch_3"]
    assert claim(database) is None


def test_only_the_holder_finishes(database):
    enqueue(database, "srch_1")
    first = claim(database, "first")
    assert first == Claim("srch_1", "first", 1)
    with database.write() as session:
        lost = Queue(session).recover(
            stalled_before=NOW + timedelta(seconds=1), max_attempts=2, error="it died", now=NOW
        )
    assert lost == {"srch_1": "queued"}
    second = claim(database, "second")
    result = factories.plan_set(search_id="srch_1")
    with database.write() as session:
        queue = Queue(session)
        assert not queue.finish(first, factories.infeasible_plan_set("srch_1"), now=NOW)
        assert not queue.beat(first, now=NOW)
        assert queue.cancel_requested(first)
        assert queue.finish(second, result, now=NOW)
        assert not queue.finish(second, result, now=NOW)
    assert status(database, "srch_1") == "optimal"


def test_a_search_that_dies_twice_has_failed(database):
    enqueue(database, "srch_1")
    for expected in ("queued", "failed"):
        mine = claim(database)
        assert mine is not None
        with database.write() as session:
            Queue(session).lose(mine, max_attempts=2, error="it died", now=NOW)
        assert status(database, "srch_1") == expected
    with database.read() as session:
        row = Searches(session).get("srch_1")
        assert row is not None
        assert row.error == "it died (2 attempts)"


def test_losses_of_workers_and_crashes_are_counted_apart(database):
    enqueue(database, "srch_1")
    for _ in range(3):
        mine = claim(database)
        with database.write() as session:
            later = NOW + timedelta(seconds=1)
            Queue(session).recover(stalled_before=later, max_attempts=4, error="lost", now=NOW)
        assert status(database, "srch_1") == "queued"
    for expected in ("queued", "failed"):
        mine = claim(database)
        assert mine is not None
        with database.write() as session:
            Queue(session).lose(mine, max_attempts=2, error="it died", now=NOW)
        assert status(database, "srch_1") == expected
    with database.read() as session:
        row = Searches(session).get("srch_1")
        assert row is not None
        assert (row.error, row.losses) == ("it died (2 attempts)", 3)


def test_handing_back_is_no_attempt(database):
    enqueue(database, "srch_1")
    for _ in range(5):
        mine = claim(database)
        assert mine == Claim("srch_1", "me", 1)
        with database.write() as session:
            assert Queue(session).hand_back(mine, now=NOW)


def test_a_search_that_was_to_stop_does_not_wait_again(database):
    enqueue(database, "srch_1")
    mine = claim(database)
    with database.write() as session:
        Queue(session).request_cancel("srch_1", now=NOW)
        assert Queue(session).hand_back(mine, now=NOW) == "cancelled"
        assert Queue(session).hand_back(mine, now=NOW) is None
    assert status(database, "srch_1") == "cancelled"


def test_recovery_takes_only_the_silent_and_the_dead(database):
    enqueue(database, "srch_1", "srch_2", "srch_3")
    claims = [claim(database, owner) for owner in ("silent", "dead", "alive")]
    with database.write() as session:
        for mine in claims[1:]:
            Queue(session).beat(mine, now=NOW + timedelta(minutes=1))
    with database.write() as session:
        lost = Queue(session).recover(
            stalled_before=NOW + timedelta(seconds=1),
            max_attempts=2,
            error="it died",
            now=NOW,
            knows_alive=lambda claim: False if claim.owner == "dead" else None,
        )
    assert lost == {"srch_1": "queued", "srch_2": "queued"}
    assert status(database, "srch_3") == "running"


def test_cancelling(database):
    enqueue(database, "srch_1", "srch_2")
    mine = claim(database)
    with database.write() as session:
        queue = Queue(session)
        assert not queue.cancel_requested(mine)
        assert queue.request_cancel("srch_1", now=NOW) == "running"
        assert queue.request_cancel("srch_2", now=NOW) == "queued"
        assert queue.request_cancel("srch_3", now=NOW) is None
        assert queue.cancel_requested(mine)
    assert status(database, "srch_2") == "cancelled"
    with database.write() as session:  # its process dies before it notices: cancelled, not tried again
        Queue(session).lose(mine, max_attempts=2, error="it died", now=NOW)
    assert status(database, "srch_1") == "cancelled"
