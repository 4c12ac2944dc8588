"""Old searches leave by themselves: one of many processes does it, tagged and waiting ones stay, and nothing else."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import text

from autodeploy.service.session import open_services
from autodeploy.service.store import retention as housekeeping
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.database import Database
from autodeploy.service.store.retention import Housekeeper, prune_audit, try_lock
from autodeploy.service.store.search_list import SearchFilter
from autodeploy.service.store.searches import Searches
from autodeploy.service.store.tables import AuditRow, BatchRow
from tests import factories
from tests.integration.conftest import QUICK, eventually, quick_settings
from tests.integration.test_store_searches import listed, new_row

pytestmark = pytest.mark.integration


def fill(database: Database, days: dict[str, int]) -> None:
    """Finished searches of that age; those named so have a tag, or wait."""
    with database.write() as session:
        for name, age in days.items():
            at = utc_now() - timedelta(days=age)
            Searches(session).add(new_row(f"srch_{name}", at=at), ["kept"] if "tagged" in name else [])
            if "waits" not in name:
                Searches(session).store_result(f"srch_{name}", factories.plan_set(1, search_id=f"srch_{name}"), now=at)


def stored(database: Database) -> list[str]:
    with database.read() as session:
        return sorted(row.id for row in listed(session, SearchFilter(), limit=100))


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, ["srch_new", "srch_old", "srch_tagged", "srch_waits"]),
        ({"keep_days": 0}, ["srch_ancient", "srch_new", "srch_old", "srch_tagged", "srch_waits"]),
        ({"keep_days": 90}, ["srch_new", "srch_tagged", "srch_waits"]),
        ({"keep_days": 90, "keep_tagged": False}, ["srch_new", "srch_waits"]),
    ],
)
def test_what_is_kept(database, database_url, settings, left):
    fill(database, {"new": 1, "old": 91, "tagged": 92, "waits": 200, "ancient": 366})
    Housekeeper(database, quick_settings(database_url, **settings)).clean()
    assert stored(database) == left


def test_batches_leave_with_their_last_search_and_the_audit_log_when_it_is_old(database, database_url):
    fill(database, {"old": 91, "waits": 91})
    now = utc_now()
    with database.write() as session:
        for name, age in (("a", 91), ("b", 91), ("c", 1)):
            at = now - timedelta(days=age)
            who = {"author": "me", "team": "default"}
            session.add(BatchRow(id=name, created_at=at, principal="k", document={}, **who))
            what = {"client": "", "action": "x", "object_id": "y", "status": 200, "detail": None}
            session.add(AuditRow(id=name, created_at=at, key_id="k", **who, **what))
        session.execute(text("UPDATE searches SET batch_id = 'a' WHERE id = 'srch_waits'"))
        session.execute(text("UPDATE searches SET batch_id = 'b' WHERE id = 'srch_old'"))
    Housekeeper(database, quick_settings(database_url, keep_days=90, keep_audit_days=30)).clean()
    with database.read() as session:
        assert sorted(session.scalars(text("SELECT id FROM batches"))) == ["a", "c"]
        assert sorted(session.scalars(text("SELECT id FROM audit"))) == ["c"]
    assert prune_audit(database, before=now) == 1


def test_one_of_many_does_it(database, database_url):
    fill(database, {f"{number:03}": 100 for number in range(20)})
    settings = quick_settings(database_url, keep_days=90)
    others = [Database(database_url, pool_size=2) for _ in range(4)]
    with try_lock(database, "housekeeping") as mine:
        assert mine
        assert [Housekeeper(other, settings).clean() for other in others] == [None] * 4
    assert len(stored(database)) == 20
    pruned: list[int | None] = []
    together = threading.Barrier(4)

    def clean(other: Database) -> None:
        together.wait()
        pruned.append(Housekeeper(other, settings).clean())

    threads = [threading.Thread(target=clean, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(count or 0 for count in pruned) == 20
    assert stored(database) == []
    for other in others:
        other.close()


def test_a_server_does_it_while_it_runs_and_stops_at_once(database, database_url, monkeypatch):
    monkeypatch.setattr(housekeeping, "FIRST_S", 0.1)
    monkeypatch.setattr(housekeeping, "EVERY_S", 0.1)
    monkeypatch.setattr(housekeeping, "DELETED_AT_ONCE", 2)
    fill(database, {f"{number}": 100 for number in range(5)})
    with open_services(quick_settings(database_url, keep_days=90), with_runner=True, planner=QUICK):
        eventually(lambda: stored(database) == [])
        fill(database, {"later": 100})
        eventually(lambda: stored(database) == [])


def test_a_database_that_is_away_does_not_end_it(database, database_url, monkeypatch):
    monkeypatch.setattr(housekeeping, "FIRST_S", 0.01)
    monkeypatch.setattr(housekeeping, "EVERY_S", 0.05)
    fill(database, {"old": 100})
    keeper = Housekeeper(database, quick_settings(database_url, keep_days=90))
    clean, asked = keeper.clean, []

    def fails_twice() -> int | None:
        asked.append(1)
        if len(asked) <= 2:
            raise OSError("away")
        return clean()

    monkeypatch.setattr(keeper, "clean", fails_twice)
    keeper.start()
    eventually(lambda: stored(database) == [])
    keeper.stop()
