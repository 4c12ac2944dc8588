"""Export, import and retention on SQLite and PostgreSQL, and from one to the other."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select

from autodeploy.kit.errors import SpecError
from autodeploy.service.session import open_services
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.database import Database
from autodeploy.service.store.dump import export_lines, import_lines
from autodeploy.service.store.events import Events
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.retention import prune
from autodeploy.service.store.search_list import SearchFilter
from autodeploy.service.store.searches import Searches
from autodeploy.service.store.tables import Base
from tests import factories
from tests.integration.conftest import QUICK, named, quick_settings
from tests.integration.test_store_searches import NOW, listed, new_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autodeploy.service.session import Services

pytestmark = pytest.mark.integration


@pytest.fixture
def target(tmp_path: Path, migrated_file: Path) -> Iterator[Database]:
    """A migrated SQLite database without rows beside the one under test."""
    path = tmp_path / "target.db"
    shutil.copy(migrated_file, path)
    database = Database(f"sqlite:///{path}")
    yield database
    database.close()


def fill(services: Services) -> list[str]:
    """A finished, a copied, an infeasible, a queued and a running search, with tags, note and key."""
    finished = services.searches.plan_and_store(named("done"), tags=["keep", "Größe"], note="数\n'").search.id
    copied = services.searches.submit(named("done"), idempotency_key="k").search.id
    infeasible = services.searches.plan_and_store(named("infeasible")).search.id
    queued = services.searches.submit(named("waits")).search.id
    running = services.searches.submit(named("runs")).search.id
    return [finished, copied, infeasible, queued, running]


def claim(database: Database, search_id: str) -> None:
    with database.write() as session:
        assert Queue(session).claim(search_id, "somebody", now=utc_now()) is not None


def content(database: Database) -> list[dict[str, Any]]:
    """Every row as exported, through JSON as in a file."""
    return [json.loads(json.dumps(line)) for line in export_lines(database)]


def test_everything_comes_back_on_another_database(services, database, target):
    ids = fill(services)
    lines = content(database)
    inserted = import_lines(target, lines)
    assert inserted["searches"] == 5
    assert sum(inserted.values()) == lines[-1]["rows"] == len(lines) - 2
    assert content(target)[1:] == lines[1:]
    assert import_lines(target, lines) == {}
    assert content(target)[1:] == lines[1:]
    with open_services(quick_settings(str(target.url)), planner=QUICK) as other:
        assert other.searches.get(ids[0]) == services.searches.get(ids[0])


def test_it_comes_back_where_it_came_from(services, database, target):
    """From SQLite or PostgreSQL to SQLite and back into the emptied database."""
    fill(services)
    before = content(database)
    import_lines(target, before)
    with database.write() as session:
        for table in reversed(Base.metadata.sorted_tables):
            session.execute(table.delete())
    import_lines(database, content(target))
    assert content(database)[1:] == before[1:]


def test_a_search_that_ran_waits_after_the_import(services, database, target):
    running = fill(services)[-1]
    claim(database, running)
    import_lines(target, content(database))
    with target.read() as session:
        row = Searches(session).get(running)
        assert row is not None
        assert (row.status, row.owner, row.attempts) == ("queued", None, 0)
        assert Events(session).after(running, 0)[-1].data == {"status": "queued", "reason": "imported"}


def test_a_search_that_is_there_stays_as_it_is(services, database, target):
    queued = fill(services)[3]
    import_lines(target, content(database))
    claim(target, queued)
    services.searches.cancel(queued)
    before = content(target)
    assert import_lines(target, content(database)) == {}
    assert content(target)[1:] == before[1:]


# An export is the same of every database, and what is imported into is SQLite anyway.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("spoil", "path", "message"),
    [
        (lambda lines: [], "line 0", "is truncated"),
        (lambda lines: lines[:-1], "line", "is truncated"),
        (lambda lines: lines[:2] + lines[3:], "the file", "cannot be stored"),
        (lambda lines: [*lines[:-2], lines[-1]], "line", "is truncated"),
        (lambda lines: lines[1:], "line 1", "not an export"),
        (lambda lines: [lines[0] | {"version": 2}, *lines[1:]], "line 1", "version 2"),
        (lambda lines: [*lines, lines[1]], "line", "after the end"),
        (lambda lines: [lines[0], {"table": "passwords", "row": {}}, lines[-1]], "line 2", "known table"),
        (
            lambda lines: [lines[0], {"table": "searches", "row": {"x": 1}}, lines[-1]],
            "line 2",
            "unknown key x, missing id",
        ),
        (
            lambda lines: [lines[0], {"table": "searches", "row": {"id": "s", "created_at": "today"}}, lines[-1]],
            "line 2",
            "not a timestamp",
        ),
    ],
)
def test_a_spoiled_file_changes_nothing(services, database, target, spoil, path, message):
    fill(services)
    with pytest.raises(SpecError, match=message) as caught:
        import_lines(target, spoil(content(database)))
    assert caught.value.errors[0].path.startswith(path)
    assert content(target)[-1] == {"end": True, "rows": 0}


def test_an_export_is_a_snapshot(services, database):
    fill(services)
    lines = export_lines(database)
    first = [next(lines), next(lines)]  # the second line has read a row
    services.searches.submit(named("after the export began"))
    rest = list(lines)
    searches = [line for line in [*first, *rest] if line.get("table") == "searches"]
    assert len(searches) == 5


def ages(database: Database, days: dict[str, int]) -> None:
    with database.write() as session:
        for search_id, age in days.items():
            at = NOW - timedelta(days=age)
            Searches(session).add(new_row(search_id, at=at), ["best"] if age % 2 else [])
            plan_set = factories.plan_set(2, search_id=search_id)
            if search_id != "srch_waits":
                Searches(session).store_result(search_id, plan_set, now=at)


@pytest.mark.parametrize(
    ("keep_tagged", "left"), [(False, ["srch_new", "srch_waits"]), (True, ["srch_new", "srch_tagged", "srch_waits"])]
)
def test_old_finished_searches_are_pruned_with_all_of_theirs(database, keep_tagged, left):
    ages(database, {"srch_new": 1, "srch_old": 100, "srch_tagged": 101, "srch_waits": 200})
    assert prune(database, before=NOW - timedelta(days=90), keep_tagged=keep_tagged) == 4 - len(left)
    with database.read() as session:
        assert sorted(row.id for row in listed(session, SearchFilter(), limit=10)) == left
        plans = Base.metadata.tables["plans"]
        assert session.scalar(select(func.count()).select_from(plans)) == 2 * (len(left) - 1)
    assert prune(database, before=NOW - timedelta(days=90), keep_tagged=keep_tagged) == 0


def test_more_than_one_batch_is_pruned(database, monkeypatch):
    monkeypatch.setattr("autodeploy.service.store.retention.DELETED_AT_ONCE", 2)
    ages(database, {f"srch_{n}": 100 + n for n in range(5)})
    assert prune(database, before=NOW) == 5
