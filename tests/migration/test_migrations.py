"""Migrations on SQLite and PostgreSQL: up from empty, idempotent, equal to the tables, down again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from procrastinate import App, SyncPsycopgConnector
from procrastinate.schema import SchemaManager
from sqlalchemy import inspect, text

from autodeploy.kit.errors import ConflictError
from autodeploy.service.runner.procrastinate_queue import SCHEMA_VERSION
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import (
    HEAD_REVISION,
    alembic_config,
    current_revision,
    is_current,
    require_current,
    upgrade,
)
from autodeploy.service.store.searches import Searches
from autodeploy.service.store.tables import Base, SearchRow
from autodeploy.specs.planset import Optimality
from tests import factories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.planset import PlanSet

pytestmark = pytest.mark.migration

REVISIONS = [script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()][::-1]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database without a table."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'new' / 'autodeploy.db'}" if sqlite else request.getfixturevalue("empty_postgres_dsn")
    database = Database(url, pool_size=4)
    yield database
    database.close()


def own_tables(database: Database) -> set[str]:
    return {name for name in inspect(database.engine).get_table_names() if not name.startswith("procrastinate_")}


@pytest.mark.filterwarnings("ignore:.*expression-based index")
def test_up_from_empty_gives_the_tables_of_the_program(empty):
    assert current_revision(empty) is None
    upgrade(empty)
    assert current_revision(empty) == HEAD_REVISION == REVISIONS[-1]
    assert own_tables(empty) == {*Base.metadata.tables, "alembic_version"}
    with empty.engine.connect() as connection:
        command.check(alembic_config(connection))


@pytest.mark.parametrize("revision", REVISIONS)
def test_up_from_each_revision(empty, revision):
    upgrade(empty, revision)
    upgrade(empty)
    assert is_current(empty)
    upgrade(empty)
    assert is_current(empty)


def test_down_to_nothing_and_up_again(empty):
    upgrade(empty)
    with empty.write_engine.begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    assert inspect(empty.engine).get_table_names() == ["alembic_version"]
    upgrade(empty)
    assert is_current(empty)


def test_postgresql_has_the_installed_job_queue(empty_postgres_dsn):
    database = Database(empty_postgres_dsn, pool_size=2)
    upgrade(database)
    app = App(connector=SyncPsycopgConnector(conninfo=database.conninfo))
    with app.open():
        assert app.check_connection()
    database.close()


def test_revisions_bring_the_job_queue_of_the_installed_library():
    """A newer library with migrations of its own needs a revision that runs them."""
    newest = sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))[-1]
    assert newest.name.startswith(SCHEMA_VERSION)


def test_constraints_have_names(empty):
    upgrade(empty)
    found = inspect(empty.engine)
    for table in Base.metadata.tables:
        assert found.get_pk_constraint(table)["name"] == f"pk_{table}"
        assert all(key["name"] for key in found.get_foreign_keys(table))
    assert {check["name"] for check in found.get_check_constraints("searches")} == {
        "ck_searches_status",
        "ck_searches_attempts",
    }


def test_several_processes_may_migrate_at_once(empty):
    errors = []

    def migrate() -> None:
        try:
            upgrade(empty)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=migrate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert is_current(empty)


def test_an_old_database_is_refused_by_name(empty):
    with pytest.raises(ConflictError, match="at revision none") as caught:
        require_current(empty)
    assert caught.value.hint == "autodeploy db upgrade"


def test_searches_from_before_clusters_had_names_are_named_after_their_profile(empty):
    upgrade(empty, "0001")
    columns = {
        **dict.fromkeys(("id", "model_name", "spec_hash", "profile_hash", "engine_version"), "x"),
        **dict.fromkeys(("created_at", "updated_at"), "2026-11-20 12:00:00+00:00"),
        **{"status": "optimal", "profile": "ascend-800t-a2", "seq_length": 1, "global_batch_size": 1, "spec": "{}"},
        **{"num_plans": 0, "note": "", "attempts": 0},
    }
    names, values = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    insert_search = text(f"INSERT INTO searches ({names}, cancel_requested) VALUES ({values}, false)")
    insert_event = text("INSERT INTO events VALUES ('x', 1, '2026-11-20 12:00:00+00:00', 'status', '{}')")
    with empty.write_engine.begin() as connection:
        connection.execute(insert_search, columns)
        connection.execute(insert_event)
    upgrade(empty)
    with empty.engine.connect() as connection:
        assert connection.scalar(text("SELECT cluster FROM searches")) == "ascend-800t-a2"
        assert connection.scalar(text("SELECT count(*) FROM events")) == 1
    with empty.write_engine.begin() as connection:
        command.downgrade(alembic_config(connection), "0001")
    with empty.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM events")) == 1


def before_it_was_the_recommended_plan_s(first: float | None, fastest: float | None) -> PlanSet:
    """A result as it was stored: a gap of each plan, and the fastest's as that of the whole."""
    found = factories.plan_set(2)
    plans = [plan.model_copy(update={"gap": gap}) for plan, gap in zip(found.plans, (first, fastest), strict=True)]
    return found.model_copy(
        update={"plans": tuple(plans), "optimality": Optimality(objective="step_time", gap=fastest)}
    )


@pytest.mark.parametrize("own", [0.076, 0.0, 0.5, 1.0, None])
def test_the_gap_of_a_stored_search_becomes_that_of_its_first_plan(empty, own):
    upgrade(empty)
    found, moment = before_it_was_the_recommended_plan_s(own, 0.063), utc_now()
    spec = found.search.spec
    row = SearchRow(
        **dict.fromkeys(("model_name", "profile", "spec_hash", "profile_hash", "engine_version"), "x"),
        **{"id": found.search.id, "created_at": moment, "updated_at": moment, "status": "queued", "spec": spec},
        **{"seq_length": 1, "global_batch_size": 1, "note": ""},
    )
    with empty.write() as session:
        Searches(session).add(row)
        Searches(session).store_result(found.search.id, found, now=moment)
    gaps = []
    for revision in ("0006", "0007"):
        with empty.write_engine.begin() as connection:
            (command.downgrade if revision == "0006" else command.upgrade)(alembic_config(connection), revision)
            gaps.append(connection.scalar(text("SELECT gap FROM searches")))
    assert gaps == [0.063, None if own == 1.0 else own]
