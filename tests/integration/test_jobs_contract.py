"""What every runner does, with real processes: embedded on both databases, distributed on PostgreSQL."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from autodeploy.service.session import open_services
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.service.store.queue import Queue
from tests.integration.conftest import QUICK, eventually, named, quick_settings, status_is
from tests.quick_planner import ABORTS, CRASHES, FAILS, HUNGRY, INFEASIBLE, SLOW, SLOWER_THAN_EXPECTED
from tests.support.postgresql import libpq_dsn
from tests.support.programs import Program, children_of, lives

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from autodeploy.kit.settings import Settings
    from autodeploy.service.session import Services
    from autodeploy.service.store.queue import Claim

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Runners:
    """One kind of runner on one database."""

    jobs: str
    database_url: str

    def settings(self, **changes: Any) -> Settings:
        return quick_settings(self.database_url, jobs=self.jobs, **changes)

    def running(self, **changes: Any) -> AbstractContextManager[Services]:
        """Services that run searches."""
        as_worker = self.jobs == "procrastinate"
        return open_services(self.settings(**changes), with_runner=True, as_worker=as_worker, planner=QUICK)

    def submitting(self) -> AbstractContextManager[Services]:
        """Services that submit and run nothing: another server, or a server beside workers."""
        return open_services(self.settings(), planner=QUICK)


# The embedded runner on PostgreSQL differs from SQLite in what these tests ask alone.
EVERY_DATABASE = pytest.mark.parametrize(
    "runners", ["embedded-sqlite", "embedded-postgresql", "procrastinate-postgresql"], indirect=True
)


@pytest.fixture(params=["embedded-sqlite", "procrastinate-postgresql"])
def runners(request: pytest.FixtureRequest) -> Runners:
    jobs, _, database = request.param.partition("-")
    url = request.getfixturevalue("sqlite_url" if database == "sqlite" else "migrated_postgres_dsn")
    return Runners(jobs, str(url))


def states(services: Services, search_id: str) -> list[str]:
    return [event.data["status"] for event in services.searches.events(search_id) if event.kind == "status"]


def attempts(services: Services, search_id: str) -> list[int]:
    events = services.searches.events(search_id)
    return [event.data["attempt"] for event in events if "attempt" in event.data]


def progress(services: Services, search_id: str) -> Callable[[], Any]:
    return lambda: services.searches.get(search_id).progress


@EVERY_DATABASE
def test_searches_run_in_order_of_arrival(runners):
    with runners.running() as services:
        ids = [services.searches.submit(named(f"model {n}")).search.id for n in range(3)]
        for search_id in ids:
            eventually(status_is(services, search_id, "optimal"))
            assert states(services, search_id) == ["queued", "running", "optimal"]
            events = services.searches.events(search_id)
            assert [event.data["kind"] for event in events if event.kind == "progress"] == ["enumerated", "finished"]
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
        started = [services.searches.get(search_id).plan_set.search.created_at for search_id in ids]
        assert started == sorted(started)


def test_a_slot_is_kept_for_short_searches(runners):
    """Of two slots a second long search gets none until the first is over; a short one runs meanwhile."""
    with runners.running(workers=2) as services:
        first, second = (
            services.searches.submit(named(SLOW, global_batch_size=batch)).search.id for batch in (3840, 7680)
        )
        eventually(status_is(services, first, "running"))
        short = services.searches.submit(named("short")).search.id
        eventually(status_is(services, short, "optimal"))
        assert services.searches.status(second) == "queued"
        assert services.searches.get(second).queue.position == 1
        services.searches.cancel(first)
        eventually(status_is(services, second, "running"))
        services.searches.cancel(second)
        eventually(lambda: services.searches.status(second) not in {"queued", "running"})


def test_every_end_is_stored(runners):
    with runners.running() as services:
        expected = {INFEASIBLE: "infeasible", FAILS: "failed", CRASHES: "failed"}
        ids = {name: services.searches.submit(named(name)).search.id for name in expected}
        for name, status in expected.items():
            eventually(status_is(services, ids[name], status))
        assert attempts(services, ids[FAILS]) == [1]
        assert attempts(services, ids[CRASHES]) == [1, 2]
        assert (
            services.searches.get(ids[CRASHES]).plan_set.error == "the process that ran this search died (2 attempts)"
        )
        after = services.searches.submit(named("after that")).search.id
        eventually(status_is(services, after, "optimal"))


@pytest.mark.usefixtures("products_processes")
def test_a_search_over_its_memory_fails_once_and_says_what_to_change(runners):
    with runners.running(search_memory_bytes=1 << 30) as services:
        ids = {name: services.searches.submit(named(name)).search.id for name in (HUNGRY, ABORTS)}
        for search_id in ids.values():
            eventually(status_is(services, search_id, "failed"))
            assert attempts(services, search_id) == [1]
            error = services.searches.get(search_id).plan_set.error or ""
            assert error.startswith("memory limit")
            assert "AUTODEPLOY_SEARCH_MEMORY_BYTES" in error
        assert "more than 1.0 GiB" in (services.searches.get(ids[HUNGRY]).plan_set.error or "")
        after = services.searches.submit(named("after that")).search.id
        eventually(status_is(services, after, "optimal"))


def test_queued_and_running_searches_can_be_cancelled(runners):
    with runners.running() as services:
        running = services.searches.submit(named(SLOW)).search.id
        eventually(progress(services, running))
        waiting = services.searches.submit(named("never runs")).search.id
        assert services.searches.cancel(waiting).status == "cancelled"
        services.searches.cancel(running)
        eventually(status_is(services, running, "cancelled"))
        after = services.searches.submit(named("after that")).search.id
        eventually(status_is(services, after, "optimal"))
        assert states(services, waiting) == ["queued", "cancelled"]


@pytest.mark.usefixtures("products_processes")
def test_a_killed_pool_process_costs_one_attempt(runners):
    with runners.running() as services:
        search_id = services.searches.submit(named(SLOW)).search.id
        eventually(progress(services, search_id))
        (pid,) = children_of(os.getpid())
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: attempts(services, search_id) == [1, 2])
        assert children_of(os.getpid()) != [pid]
        services.searches.cancel(search_id)
        eventually(status_is(services, search_id, "cancelled"))


@pytest.mark.usefixtures("products_processes")
def test_an_idle_process_that_is_killed_costs_nothing(runners):
    with runners.running() as services:
        first = services.searches.submit(named("first")).search.id
        eventually(status_is(services, first, "optimal"))
        (pid,) = children_of(os.getpid())
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: pid not in children_of(os.getpid()))
        second = services.searches.submit(named("second")).search.id
        eventually(status_is(services, second, "optimal"))
        assert attempts(services, second) == [1]


@pytest.mark.usefixtures("products_processes")
def test_a_process_that_dies_between_claim_and_start_costs_nothing(runners, monkeypatch):
    claimed = Queue.claim_next
    killed: list[int] = []

    def claim_and_kill(queue: Queue, *arguments: Any, **more: Any) -> Claim | None:
        claim = claimed(queue, *arguments, **more)
        if claim is not None and not killed:
            killed.extend(children_of(os.getpid()))
            os.kill(killed[0], signal.SIGKILL)
            eventually(lambda: killed[0] not in children_of(os.getpid()))
        return claim

    monkeypatch.setattr(Queue, "claim_next", claim_and_kill)
    with runners.running() as services:
        search_id = services.searches.submit(named("first")).search.id
        eventually(status_is(services, search_id, "optimal"))
        assert len(killed) == 1
        assert attempts(services, search_id) == [1]


@EVERY_DATABASE
@pytest.mark.usefixtures("products_processes")
def test_shutdown_hands_running_searches_back(runners):
    with runners.running() as services:
        search_id = services.searches.submit(named(SLOW)).search.id
        eventually(progress(services, search_id))
        waiting = services.searches.submit(named("next")).search.id
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 5
    assert children_of(os.getpid()) == []
    with runners.submitting() as services:
        assert services.searches.status(search_id) == "queued"
        assert services.searches.status(waiting) == "queued"
        assert services.searches.events(search_id)[-1].data == {"status": "queued", "reason": "shutdown"}
    with runners.running(workers=2) as services:
        eventually(status_is(services, search_id, "running"))
        assert attempts(services, search_id) == [1, 1]
        eventually(status_is(services, waiting, "optimal"))
        services.searches.cancel(search_id)
        eventually(status_is(services, search_id, "cancelled"))


def test_two_slots_run_two_searches(runners):
    with runners.running(workers=2) as services:
        # A slot of two is kept for searches that are expected to be short.
        ids = [services.searches.submit(named(name)).search.id for name in (SLOW, SLOWER_THAN_EXPECTED)]
        for search_id in ids:
            eventually(status_is(services, search_id, "running"))
        for search_id in ids:
            services.searches.cancel(search_id)
        for search_id in ids:
            eventually(status_is(services, search_id, "cancelled"))


def test_what_another_process_submits_is_run(runners):
    with runners.submitting() as other:
        early = other.searches.submit(named("before the runner")).search.id
        with runners.running() as services:
            eventually(status_is(services, early, "optimal"))
            late = other.searches.submit(named("from elsewhere")).search.id
            eventually(status_is(services, late, "optimal"))


@pytest.mark.parametrize("runners", ["embedded-postgresql", "procrastinate-postgresql"], indirect=True)
def test_cut_connections_cost_nothing(runners):
    """As when PostgreSQL restarts: every connection breaks while a search runs."""
    with runners.running() as services:
        search_id = services.searches.submit(named(SLOW)).search.id
        eventually(progress(services, search_id))
        with psycopg.connect(libpq_dsn(runners.database_url), autocommit=True) as connection:
            for _ in range(5):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                time.sleep(0.1)
        seen = eventually(lambda: answers(lambda: services.searches.events(search_id)[-1].seq))
        eventually(lambda: services.searches.events(search_id, after=seen))
        services.searches.cancel(search_id)
        eventually(status_is(services, search_id, "cancelled"))
        assert attempts(services, search_id) == [1]
        done = services.searches.submit(named("after that")).search.id
        eventually(status_is(services, done, "optimal"))


def answers(call: Callable[[], Any]) -> Any:
    """What the call gives; None while the database does not answer."""
    try:
        return call()
    except DATABASE_ERRORS:
        return None


@EVERY_DATABASE
def test_a_killed_runner_leaves_no_process_and_its_search_is_taken_over_at_once(runners, tmp_path):
    settings = runners.settings().model_dump_json(exclude_unset=True)
    killed = Program([settings, QUICK], {}, tmp_path / "log", module="tests.support.quick_runner", forked=True)
    with runners.submitting() as services:
        killed.start()
        search_id = services.searches.submit(named(SLOW)).search.id
        eventually(progress(services, search_id))
        (pool,) = children_of(killed.pid)
        killed.kill()
        eventually(lambda: not lives(pool), within_s=5)
        with runners.running() as successor:
            eventually(lambda: attempts(successor, search_id) == [1, 2], within_s=15)
            successor.searches.cancel(search_id)
            eventually(status_is(successor, search_id, "cancelled"))
