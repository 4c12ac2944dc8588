"""Whatever is listed, counted, claimed or reused is found along an index, never by reading all searches."""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, select, update

from autodeploy.service.requests.callers import AuditEntries, AuditFilter
from autodeploy.service.store import runs, search_list
from autodeploy.service.store.base import new_search_id
from autodeploy.service.store.keys import ApiKeys
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.queue_state import Waiting, used_s
from autodeploy.service.store.runs import Runs
from autodeploy.service.store.search_list import SORTS, SearchFilter, page
from autodeploy.service.store.searches import Searches
from autodeploy.service.store.tables import SearchRow
from tests.integration.test_store_searches import NOW, new_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.orm import Session

    from autodeploy.service.store.database import Database

pytestmark = pytest.mark.integration

FILTERS = (
    SearchFilter(),
    SearchFilter(author="ann"),
    SearchFilter(team="red", status="optimal"),
    SearchFilter(profile="cloudmatrix-384", status="failed"),
    SearchFilter(model="model 1", profile="nothing"),
    SearchFilter(team="red", model="model 1", status="feasible", author="ann"),
)
# Reads of all rows; SQLite says SCAN of an index, too, then with its name.
READS_ALL = re.compile(r"Seq Scan on (searches|audit)|SCAN (searches|audit)(?! USING)")


@pytest.fixture
def filled(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A few searches, of which walks see fewer."""
    for name in ("WALKED_NEWEST", "WALKED_FIGURES"):
        monkeypatch.setattr(search_list, name, 3)
    with database.write() as session:
        for n in range(12):
            at = NOW + timedelta(hours=n)
            row = new_row(new_search_id(at), model=f"model {n % 3}", at=at)
            row.status, row.team, row.author = ("queued", "optimal")[n % 2], ("red", "blue")[n % 3 == 0], "ann"
            row.principal, row.best_mfu = f"key_{n % 2}", 0.1 * n if n % 2 else None
            Searches(session).add(row, ("common",))
    if not database.is_sqlite:
        with database.write() as session:
            session.connection().exec_driver_sql("ANALYZE")  # else plans hang on whether autovacuum came by
    return database


@contextmanager
def plans_of(session: Session) -> Iterator[list[tuple[str, str]]]:
    """The plan of each statement in the block, beside it."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().upper().startswith(("SELECT", "WITH", "UPDATE")):
            asked.append((statement, parameters))

    connection = session.connection()
    is_sqlite = connection.dialect.name == "sqlite"
    if not is_sqlite:
        connection.exec_driver_sql("SET enable_seqscan = off")  # of so few rows it would be cheapest
    event.listen(connection.engine, "before_cursor_execute", note)
    plans: list[tuple[str, str]] = []
    try:
        yield plans
    finally:
        event.remove(connection.engine, "before_cursor_execute", note)
    for statement, parameters in asked:
        rows = connection.exec_driver_sql(f"EXPLAIN {'QUERY PLAN ' * is_sqlite}{statement}", parameters).all()
        plans.append((statement, "\n".join(str(row[-1]) for row in rows)))


def indexed(plans: list[tuple[str, str]]) -> str:
    """All plans, none of which reads every row."""
    for statement, plan in plans:
        assert READS_ALL.search(plan) is None, f"{statement}\n{plan}"
    return "\n".join(plan for _, plan in plans)


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_lists_walk_an_index_or_gather_from_one(filled: Database, where: SearchFilter) -> None:
    for name, sign in product(SORTS, ("", "-")):
        with filled.read() as session, plans_of(session) as plans:
            page(session, (SearchRow.id,), where, f"{sign}{name}", limit=5, after=None)
        found = indexed(plans)
        assert "searches" in found


def test_what_is_rare_is_gathered_from_the_index_that_lists_have(filled: Database, monkeypatch) -> None:
    """The index holds all that the statement asks for; of so few rows, any other may be as cheap to PostgreSQL."""
    monkeypatch.setattr(search_list, "MAX_RARE", 0)
    with filled.write() as session:
        with plans_of(session) as plans:
            page(session, (SearchRow.id,), SearchFilter(team="red", model="model 2"), "-best_mfu", limit=5, after=None)
            if not filled.is_sqlite:
                leave_one_index(session, "ix_searches_listed")
        session.rollback()
    ranged = next(plan for statement, plan in plans if "team IN" in statement)
    assert "ix_searches_listed" in ranged
    assert READS_ALL.search(ranged) is None, ranged
    ranges = [re.search(rf"\b{name}(\)::text)? ?=", ranged) for name in ("team", "profile", "model_name")]
    assert all(ranges), ranged


def leave_one_index(session: Session, name: str) -> None:
    """Drops every index of searches that PostgreSQL could take in its place, until the transaction is rolled back."""
    others = "SELECT indexname FROM pg_indexes WHERE tablename = 'searches' AND indexname NOT IN (%s, 'pk_searches')"
    connection = session.connection()
    for other in connection.exec_driver_sql(others, (name,)).scalars().all():
        connection.exec_driver_sql(f"DROP INDEX {other}")


def test_a_far_page_of_words_reads_none_of_the_words_before(filled: Database, monkeypatch) -> None:
    monkeypatch.setattr(search_list, "MAX_RARE", 0)
    gathered: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "searches.team IN" in statement:
            gathered.append(str(parameters))

    with filled.read() as session:
        ids = list(session.scalars(select(SearchRow.id).order_by(SearchRow.model_name, SearchRow.id)))
        event.listen(filled.engine, "before_cursor_execute", note)
        try:
            found = page(session, (SearchRow.id,), SearchFilter(), "model", limit=5, after=ids[5])
        finally:
            event.remove(filled.engine, "before_cursor_execute", note)
    assert [row.id for row in found] == ids[6:11]
    assert gathered
    assert not any("model 0" in parameters for parameters in gathered)


def test_a_claim_asks_little_while_many_wait(filled: Database) -> None:
    with filled.write() as session:
        session.execute(update(SearchRow).values(status="queued"))
        with plans_of(session) as plans:
            assert Queue(session).claim_next("me", now=NOW) is not None
    asked = len([statement for statement, _ in plans])
    assert asked == (7 if filled.is_sqlite else 8), [statement for statement, _ in plans]


def test_counts_claims_and_reuse_have_their_indexes(filled: Database) -> None:
    with filled.write() as session, plans_of(session) as plans:
        Searches(session).count_by_status()
        Searches(session).oldest_queued_at()
        Searches(session).is_planned("a" * 64, "b" * 64, "1.0.0")
        ApiKeys(session).count_unfinished("key_1")
        used_s(session, [Waiting("a", "key_0", 0.0), Waiting("b", "key_1", 0.0)], (), now=NOW)
        assert Queue(session).claim_next("me", now=NOW) is not None
    found = indexed(plans)
    assert all(f"ix_searches_{name}" in found for name in ("status", "content", "finished_at", "queued_lane")), found


def test_the_newest_of_a_cluster_are_walked_or_gathered_from_its_index(filled: Database, monkeypatch) -> None:
    monkeypatch.setattr(runs, "WALKED_NEWEST", 3)
    with filled.write() as session:
        session.execute(update(SearchRow).values(num_plans=1, cluster="there"))
        newest = session.scalars(
            select(SearchRow.id).where(SearchRow.status == "optimal").order_by(SearchRow.id.desc())
        ).all()
        with plans_of(session) as plans:
            found = [Runs(session).planned_ids("there", limit=limit) for limit in (1, 4, 100)]
        assert found == [newest[:1], newest[:4], newest]
        assert Runs(session).planned_ids("elsewhere", limit=4) == []
    assert "ix_searches_cluster" in indexed(plans)


def test_the_audit_log_has_an_index_of_its_filters(filled: Database, monkeypatch) -> None:
    monkeypatch.setattr("autodeploy.service.requests.callers.WALKED", 0)
    with filled.read() as session, plans_of(session) as plans:
        for said in ({}, {"action": "x"}, {"author": "ann"}, {"team": "red", "author": "ann"}, {"object_id": "y"}):
            AuditEntries(session).page(AuditFilter(**said), limit=5)
    indexed(plans)
