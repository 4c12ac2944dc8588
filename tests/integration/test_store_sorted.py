"""Sorted lists: every column, both directions, every filter, page by page, as sorting the whole history would give."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.service.store import search_list
from autodeploy.service.store.base import first_id_at
from autodeploy.service.store.search_list import NEWEST, SORTS, WORDS, SearchFilter, page
from autodeploy.service.store.searches import Searches
from autodeploy.service.store.tables import SearchRow
from tests.integration.test_store_searches import NOW, new_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.service.store.database import Database

pytestmark = pytest.mark.integration

EQUAL = ("model", "profile", "status", "team", "author")
FILTERS = (
    SearchFilter(),
    SearchFilter(model="model 1"),
    SearchFilter(status="feasible"),
    SearchFilter(tag="even"),
    SearchFilter(model="model 1", tag="even", status="queued"),
    SearchFilter(created_after=NOW + timedelta(hours=5), created_before=NOW + timedelta(hours=20)),
    SearchFilter(model="nothing"),
    SearchFilter(team="red", author="ann"),
    SearchFilter(team="blue", tag="even", created_after=NOW + timedelta(hours=9)),
)


def fill(database: Database) -> list[dict[str, Any]]:
    dice = random.Random(11)
    known = []
    with database.write() as session:
        for n in range(30):
            # Two in a millisecond, whose ids are in the other order than their moments.
            at = NOW + timedelta(hours=n - n % 2, microseconds=300 * (n % 2))
            row = new_row(f"{first_id_at(at)}{99 - n:06}", model=f"model {n % 2}", at=at)
            row.status = dice.choice(("queued", "feasible"))
            row.num_npus = dice.choice((None, 8, 16, 16, 384))
            row.seq_length, row.global_batch_size = dice.choice((4096, 8192)), dice.choice((64, 15_360))
            found = dice.random() < 0.6
            row.best_step_time_s = dice.choice((1.1, 2.2, 0.3)) if found else None
            row.best_tokens_per_s_per_npu = dice.uniform(1, 9) if found else None
            row.team, row.author = dice.choice(("red", "blue")), dice.choice(("ann", "bob", ""))
            row.best_mfu, row.gap = (dice.random(), None) if found else (None, None)
            tags = ("even",) if n % 2 == 0 else ()
            known.append(
                {name: getattr(row, column.key) for name, column in SORTS.items()}
                | {"id": row.id, "at": at, "tags": tags, "team": row.team, "author": row.author}
            )
            Searches(session).add(row, tags)
    return known


def expected(known: list[dict[str, Any]], where: SearchFilter, sort: str) -> list[str]:
    name, down = sort.removeprefix("-"), sort.startswith("-")
    kept = [
        row
        for row in known
        if all(
            row[f] == v
            for f in ("model", "profile", "status", "team", "author")
            if (v := getattr(where, f)) is not None
        )
        and (where.tag is None or where.tag in row["tags"])
        and (where.created_after is None or row["at"] >= where.created_after)
        and (where.created_before is None or row["at"] < where.created_before)
    ]
    by_id = sorted(kept, key=lambda row: row["id"], reverse=down)
    # Equal figures are in the order of moments, words and searches without a value in that of ids.
    equal = (
        by_id if name in {*WORDS, NEWEST.removeprefix("-")} else sorted(by_id, key=lambda row: row["at"], reverse=down)
    )
    valued = sorted((row for row in equal if row[name] is not None), key=lambda row: row[name], reverse=down)
    # A stable sort keeps the order of the ids among equal values, also in reverse.
    return [row["id"] for row in (*valued, *(row for row in by_id if row[name] is None))]


def paged(database: Database, where: SearchFilter, sort: str) -> list[str]:
    seen: list[str] = []
    with database.read() as session:
        while True:
            after = seen[-1] if seen else None
            rows: Sequence[Any] = page(session, (SearchRow.id,), where, sort, limit=11, after=after)
            seen += [row.id for row in rows]
            if len(rows) < 11:
                return seen


@pytest.mark.parametrize("few", [0, 1000], ids=["many have a tag", "few have a tag"])
@pytest.mark.parametrize(
    ("walked", "ranges"),
    [(3, 1000), (3, 20), (1000, 1000)],
    ids=["walks end early", "walks end early, few ranges", "walks see all"],
)
def test_pages_are_the_sorted_history(
    database: Database, monkeypatch: pytest.MonkeyPatch, few: int, walked: int, ranges: int
) -> None:
    for name, value in (
        ("MAX_RANGES", ranges),
        ("MAX_RARE", few),
        ("MAX_TAGGED_LOOKUPS", few),
        ("WALKED_NEWEST", walked),
        ("WALKED_FIGURES", walked),
        ("MAX_WORDS", walked // 3),
    ):
        monkeypatch.setattr(search_list, name, value)
    known = fill(database)
    # Each filter with half of the six here and with the others there: what they decide is decided before a statement is
    # sent.
    filters = FILTERS[(few > 0) ^ (walked > 3) ^ database.is_sqlite :: 2]
    for name in SORTS:
        for sort in (name, f"-{name}"):
            for where in filters:
                assert paged(database, where, sort) == expected(known, where, sort), (sort, where)


def test_a_page_after_a_search_that_is_gone_is_refused(database: Database) -> None:
    fill(database)
    with database.read() as session, pytest.raises(SpecError) as caught:
        page(session, (SearchRow.id,), SearchFilter(), "gap", limit=3, after="srch_gone")
    assert caught.value.errors[0].path == "after"
