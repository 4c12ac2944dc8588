"""The store: what goes in comes out, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from autodeploy.service.store.base import new_search_id, to_json
from autodeploy.service.store.events import PROGRESS, STATUS, Events, IdempotencyKeys
from autodeploy.service.store.plan_rows import Plans, StoredSearch, plan_rows, result_columns
from autodeploy.service.store.search_list import NEWEST, SearchFilter, page
from autodeploy.service.store.searches import Searches
from autodeploy.service.store.tables import EventRow, PlanRow, SearchRow
from autodeploy.specs.planset import PlanSet
from autodeploy.specs.resources import iso
from tests import factories

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from autodeploy.service.store.database import Database

pytestmark = pytest.mark.integration

NOW = datetime(2026, 11, 20, 12, 0, 0, 123_000, tzinfo=UTC)


def new_row(search_id: str = factories.SEARCH_ID, *, model: str = "DeepSeek-V3", at: datetime = NOW) -> SearchRow:
    spec = factories.spec()
    info = factories.search_info(spec)
    return SearchRow(
        id=search_id,
        created_at=at,
        updated_at=at,
        status="queued",
        model_name=model,
        profile=spec.cluster.profile,
        num_npus=spec.cluster.num_npus,
        seq_length=4096,
        global_batch_size=15_360,
        spec=info.spec,
        spec_hash=info.spec_hash,
        profile_hash=info.profile_hash,
        engine_version=info.engine_version,
        note="",
    )


def stored(database: Database, plan_set: PlanSet) -> PlanSet:
    """The PlanSet after a round trip through the database."""
    search_id = plan_set.search.id
    with database.write() as session:
        Searches(session).add(new_row(search_id))
        Searches(session).store_result(search_id, plan_set, now=NOW)
    with database.read() as session:
        found = Searches(session).stored(search_id)
        assert found is not None
        assert PlanSet.model_validate_json(found[0].json()) == found[0].plan_set()
        return found[0].plan_set()


def listed(session: Session, where: SearchFilter, *, limit: int, after: str | None = None) -> Sequence[Any]:
    """The newest of these searches."""
    return page(session, (SearchRow.id,), where, NEWEST, limit=limit, after=after)


@pytest.mark.parametrize(
    "plan_set",
    [
        factories.plan_set(),
        factories.plan_set(100),
        factories.plan_set(0, "cancelled", error="stopped"),
        factories.infeasible_plan_set(),
        factories.plan_set(created_at="2026-11-20T12:00:00Z"),
    ],
    ids=["three", "hundred", "cancelled", "infeasible", "other_clock"],
)
def test_a_plan_set_comes_back_equal(database, plan_set):
    found = stored(database, plan_set)
    assert found == plan_set
    assert found.model_dump_json() == plan_set.model_dump_json()


@settings(max_examples=60)
@given(st.floats(min_value=5e-324, max_value=1.7e308), st.floats(min_value=0.0, allow_infinity=False))
def test_floats_come_back_bit_for_bit_from_json(tmp_path_factory, step_time_s, part_s):
    plan = factories.plan(step_time_s=step_time_s, breakdown={"compute_s": part_s}, run=None)
    plan_set = factories.plan_set(plans=(plan,))
    columns = result_columns(plan_set)
    info = plan_set.search
    stored_search = StoredSearch(
        id=info.id,
        created_at=NOW,
        updated_at=NOW,
        status=plan_set.status,
        error=None,
        spec_hash=info.spec_hash,
        profile_hash=info.profile_hash,
        engine_version=info.engine_version,
        spec=to_json(columns["spec"]),
        result=to_json(columns["result"]),
        plans=tuple(to_json(row.document) for row in plan_rows(info.id, plan_set.plans)),
    )
    assert stored_search.plan_set() == plan_set
    assert json.loads(stored_search.json()) == json.loads(plan_set.model_dump_json())


def test_extreme_floats_survive_the_database(database):
    values = [5e-324, 2.2250738585072014e-308, 0.1 + 0.2, math.nextafter(1.0, 2.0), 1.7976931348623157e308, 1e22]
    plans = tuple(
        factories.plan(rank, step_time_s=value, plan_id=f"p_{rank}", run=None)
        for rank, value in enumerate(values, start=1)
    )
    found = stored(database, factories.plan_set(plans=plans))
    assert [plan.step_time_s for plan in found.plans] == values
    with database.read() as session:
        column = session.scalars(select(PlanRow.step_time_s).order_by(PlanRow.position)).all()
    assert column == values


def test_a_search_without_a_result_is_a_plan_set_that_says_so(database):
    with database.write() as session:
        Searches(session).add(new_row())
    with database.read() as session:
        stored_search = Searches(session).stored(factories.SEARCH_ID)
        assert stored_search is not None
        found = stored_search[0].plan_set()
    assert (found.status, found.plans) == ("queued", ())
    assert found.search == factories.search_info(factories.spec(), created_at=iso(NOW))


def test_pages_continue_after_the_last_one_seen(database):
    ids = [new_search_id(NOW + timedelta(hours=n)) for n in range(7)]
    with database.write() as session:
        for n, search_id in enumerate(ids):
            Searches(session).add(
                new_row(search_id, model=f"model {n % 2}", at=NOW + timedelta(hours=n)), ["even"][n % 2 :]
            )
    with database.read() as session:
        first = listed(session, SearchFilter(), limit=3)
        second = listed(session, SearchFilter(), limit=10, after=first[-1].id)
        assert [row.id for row in (*first, *second)] == ids[::-1]
        assert [row.id for row in listed(session, SearchFilter(model="model 1"), limit=9)] == ids[5::-2]
        assert [row.id for row in listed(session, SearchFilter(tag="even"), limit=9)] == ids[::-2]
        window = SearchFilter(created_after=NOW + timedelta(hours=2), created_before=NOW + timedelta(hours=4))
        assert [row.id for row in listed(session, window, limit=9)] == [ids[3], ids[2]]
        assert listed(session, SearchFilter(status="failed"), limit=9) == []
        assert Searches(session).count_by_status() == {"queued": 7}


@pytest.mark.parametrize("few", [0, 1000], ids=["many have the tag", "few have the tag"])
def test_a_tag_is_a_filter_like_any_other(database, monkeypatch, few):
    """Common and rare tags are looked up in different ways, with the same answer."""
    monkeypatch.setattr("autodeploy.service.store.search_list.MAX_TAGGED_LOOKUPS", few)
    ids = [new_search_id(NOW + timedelta(hours=n)) for n in range(8)]
    with database.write() as session:
        for n, search_id in enumerate(ids):
            row = new_row(search_id, model=f"model {n // 4}", at=NOW + timedelta(hours=n))
            Searches(session).add(row, ["even"] if n % 2 == 0 else ["odd", "even too"])
    with database.read() as session:
        tagged = SearchFilter(tag="even", model="model 1")
        assert [row.id for row in listed(session, tagged, limit=9)] == [ids[6], ids[4]]
        assert [row.id for row in listed(session, tagged, limit=9, after=ids[6])] == [ids[4]]
        assert [row.id for row in listed(session, SearchFilter(tag="odd"), limit=2, after=ids[7])] == [ids[5], ids[3]]
        since = SearchFilter(tag="odd", created_after=NOW + timedelta(hours=3))
        assert [row.id for row in listed(session, since, limit=9)] == [ids[7], ids[5], ids[3]]
        assert listed(session, SearchFilter(tag="unknown", model="model 1"), limit=9) == []


def test_only_finished_equal_searches_are_reused(database):
    info = factories.search_info(factories.spec())
    content = (info.spec_hash, info.profile_hash, info.engine_version)
    with database.write() as session:
        searches = Searches(session)
        searches.add(new_row("srch_1"))
        assert searches.reusable(*content) is None
        searches.store_result("srch_1", factories.plan_set(search_id="srch_1", reproducible=False), now=NOW)
        assert searches.reusable(*content) is None
        searches.add(new_row("srch_2"))
        searches.store_result("srch_2", factories.infeasible_plan_set("srch_2"), now=NOW)
        found = searches.reusable(*content)
        assert found is not None
        assert found.id == "srch_2"
        assert searches.reusable(info.spec_hash, info.profile_hash, "0.2.0") is None


def test_the_newest_search_answers_for_a_plan(database):
    for search_id in ("srch_1", "srch_2"):
        stored(database, factories.plan_set(search_id=search_id))
    with database.read() as session:
        row = Plans(session).newest(factories.plan(2).plan_id)
        assert row is not None
        assert (row.id, json.loads(row.document)["rank"]) == ("srch_2", 2)
        assert Plans(session).newest("p_none") is None


def test_deleting_a_search_deletes_what_hangs_on_it(database):
    stored(database, factories.plan_set())
    with database.write() as session:
        Searches(session).set_tags(factories.SEARCH_ID, ["a"])
        Events(session).append(factories.SEARCH_ID, STATUS, [{"status": "optimal"}], now=NOW)
        IdempotencyKeys(session).add("", "k", body_hash="b", search_id=factories.SEARCH_ID, now=NOW)
    with database.write() as session:
        Searches(session).delete(factories.SEARCH_ID)
    with database.read() as session:
        for table in (PlanRow, EventRow, SearchRow):
            assert session.scalars(select(table)).all() == []
        assert IdempotencyKeys(session).get("", "k") is None


def test_events_are_numbered_without_gaps(database):
    with database.write() as session:
        Searches(session).add(new_row())
        events = Events(session)
        events.append(factories.SEARCH_ID, STATUS, [{"status": "queued"}], now=NOW)
        events.append(factories.SEARCH_ID, PROGRESS, [{"solved": 1}, {"solved": 2}], now=NOW)
        events.append(factories.SEARCH_ID, PROGRESS, [], now=NOW)
    with database.read() as session:
        found = Events(session).after(factories.SEARCH_ID, 1)
        assert [(event.seq, event.data) for event in found] == [(2, {"solved": 1}), (3, {"solved": 2})]
        assert found[0].created_at == NOW
        assert Events(session).latest_progress(factories.SEARCH_ID) == {"solved": 2}


def test_an_idempotency_key_is_taken_once(database):
    with database.write() as session:
        Searches(session).add(new_row())
        IdempotencyKeys(session).add("me", "k", body_hash="b", search_id=factories.SEARCH_ID, now=NOW)
    with pytest.raises(IntegrityError), database.write() as session:
        IdempotencyKeys(session).add("me", "k", body_hash="c", search_id=factories.SEARCH_ID, now=NOW)
    with database.write() as session:
        IdempotencyKeys(session).add("you", "k", body_hash="c", search_id=factories.SEARCH_ID, now=NOW)
        assert IdempotencyKeys(session).forget_before(NOW + timedelta(seconds=1)) == 2


def test_a_failed_write_leaves_nothing(database):
    def half() -> None:
        with database.write() as session:
            Searches(session).add(new_row())
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        half()
    with database.read() as session:
        assert not Searches(session).exists(factories.SEARCH_ID)


def test_search_ids_sort_by_time():
    ids = [new_search_id(NOW + timedelta(milliseconds=37 * n)) for n in range(200)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 200
