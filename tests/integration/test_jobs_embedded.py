"""The embedded runner with real processes: crash, kill, shutdown, recovery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from autodeploy.errors import SearchCancelled
from autodeploy.jobs.embedded import EmbeddedRunner
from autodeploy.jobs.owner import Owner
from autodeploy.services import open_services
from autodeploy.specs.spec import Spec
from autodeploy.store.clock import utc_now
from autodeploy.store.database import DATABASE_ERRORS, Database
from autodeploy.store.migrate import upgrade
from autodeploy.store.queue import Queue
from tests import factories
from tests.integration.conftest import QUICK, eventually, quick_settings
from tests.quick_planner import SLOW
from tests.support.postgresql import libpq_dsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.services import Services

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


def named(behaviour: str, **changes: Any) -> Spec:
    return Spec.model_validate(factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": behaviour}, **changes))


def children_of(pid: int) -> list[int]:
    """The spawned pool processes of a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and b"spawn_main" in command:
            found.append(int(entry.name))
    return found


def status_is(services: Services, search_id: str, status: str) -> Any:
    return lambda: services.searches.status(search_id) == status


def test_searches_run_in_order_of_arrival_on_both_databases(database_url, database):
    with open_services(quick_settings(database_url), with_runner=True, planner=QUICK) as services:
        ids = [services.searches.submit(named(f"model {n}")).search.id for n in range(3)]
        for search_id in ids:
            eventually(status_is(services, search_id, "optimal"))
            events = services.searches.events(search_id)
            states = [event.data["status"] for event in events if event.kind == "status"]
            assert states == ["queued", "running", "optimal"]
            kinds = [event.data["kind"] for event in events if event.kind == "progress"]
            assert kinds == ["enumerated", "finished"]
            assert [event.seq for event in events] == list(range(1, len(events) + 1))


def test_a_killed_pool_process_costs_one_attempt(sqlite_url):
    with open_services(quick_settings(sqlite_url), with_runner=True, planner=QUICK) as services:
        search_id = services.searches.submit(named(SLOW)).search.id
        eventually(lambda: services.searches.get(search_id).progress)
        (pid,) = children_of(os.getpid())
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: [pid] != children_of(os.getpid()) and services.searches.get(search_id).progress)
        eventually(status_is(services, search_id, "running"))
        services.searches.cancel(search_id)
        eventually(status_is(services, search_id, "cancelled"))


def test_shutdown_hands_running_searches_back(sqlite_url):
    settings = quick_settings(sqlite_url)
    with open_services(settings, with_runner=True, planner=QUICK) as services:
        search_id = services.searches.submit(named(SLOW)).search.id
        waiting = services.searches.submit(named("next")).search.id
        eventually(lambda: services.searches.get(search_id).progress)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 5
    assert children_of(os.getpid()) == []
    with open_services(settings, planner=QUICK) as services:
        assert services.searches.status(search_id) == "queued"
        assert services.searches.status(waiting) == "queued"
        reasons = [event.data.get("reason") for event in services.searches.events(search_id)]
        assert reasons[-1] == "shutdown"
    with open_services(settings, with_runner=True, planner=QUICK) as services:
        eventually(status_is(services, search_id, "running"))
        services.searches.cancel(search_id)
        eventually(status_is(services, waiting, "optimal"))


@pytest.fixture
def postgres_url(empty_postgres_dsn: str) -> str:
    """A migrated PostgreSQL database."""
    database = Database(empty_postgres_dsn, pool_size=1)
    upgrade(database)
    database.close()
    return empty_postgres_dsn


def test_cut_connections_cost_nothing(postgres_url):
    """As when PostgreSQL restarts: every connection breaks while a search runs."""
    with open_services(quick_settings(postgres_url), with_runner=True, planner=QUICK) as services:
        search_id = services.searches.submit(named(SLOW)).search.id
        eventually(lambda: services.searches.get(search_id).progress)
        with psycopg.connect(libpq_dsn(postgres_url), autocommit=True) as connection:
            for _ in range(5):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                time.sleep(0.1)
        seen = eventually(lambda: _answers(lambda: services.searches.events(search_id)[-1].seq))
        eventually(lambda: services.searches.events(search_id, after=seen))
        services.searches.cancel(search_id)
        eventually(status_is(services, search_id, "cancelled"))
        attempts = [event.data.get("attempt") for event in services.searches.events(search_id)]
        assert max(filter(None, attempts)) == 1
        done = services.searches.submit(named("after that")).search.id
        eventually(status_is(services, done, "optimal"))


def _answers(call: Callable[[], Any]) -> Any:
    """What the call gives; None while the database does not answer."""
    try:
        return call()
    except DATABASE_ERRORS:
        return None


def test_two_slots_run_two_searches(sqlite_url):
    with open_services(quick_settings(sqlite_url, workers=2), with_runner=True, planner=QUICK) as services:
        ids = [services.searches.submit(named(SLOW, top_k=n)).search.id for n in (1, 2)]
        for search_id in ids:
            eventually(status_is(services, search_id, "running"))
        for search_id in ids:
            services.searches.cancel(search_id)
        for search_id in ids:
            eventually(status_is(services, search_id, "cancelled"))


SERVER = """
import sys, time
from autodeploy.services import open_services
from tests.integration.conftest import QUICK, quick_settings
if __name__ == "__main__":
    with open_services(quick_settings(sys.argv[1]), with_runner=True, planner=QUICK):
        print("ready", flush=True)
        time.sleep(120)
"""


def test_a_killed_server_leaves_no_process_and_its_search_is_taken_over_at_once(sqlite_url, tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), sqlite_url]
    with (
        open_services(quick_settings(sqlite_url), planner=QUICK) as services,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as server,
    ):
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        search_id = services.searches.submit(named(SLOW)).search.id
        eventually(lambda: services.searches.get(search_id).progress)
        (pool,) = children_of(server.pid)
        server.kill()
        server.wait()
        eventually(lambda: not Path(f"/proc/{pool}").exists(), within_s=5)
        with open_services(quick_settings(sqlite_url), with_runner=True, planner=QUICK) as successor:
            eventually(status_is(successor, search_id, "running"), within_s=10)
            assert successor.searches.events(search_id)[-1].data != {"status": "queued"}
            successor.searches.cancel(search_id)
            eventually(status_is(successor, search_id, "cancelled"))


def test_a_search_of_the_command_line_can_be_cancelled(sqlite_url):
    with open_services(quick_settings(sqlite_url), planner=QUICK) as services:
        with pytest.raises(SearchCancelled):
            services.searches.plan_and_store(named(SLOW), should_cancel=lambda: True)
        (item,) = services.searches.list().items
        assert item.status == "cancelled"


def test_owners_know_the_dead():
    me = Owner()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert me.is_dead(str(Owner(pid=gone.pid)))
    assert me.is_dead(str(Owner()))  # this process's number with another token: an earlier holder
    assert not me.is_dead(str(me))
    assert not me.is_dead(str(Owner(pid=os.getppid())))
    assert not me.is_dead(str(Owner(space="elsewhere", pid=gone.pid)))
    assert not me.is_dead("")


def test_the_queue_is_looked_at_without_a_wake_up(database_url, database):
    """Another process submits: this runner finds the search by itself."""
    with open_services(quick_settings(database_url), with_runner=True, planner=QUICK) as runner:
        with open_services(quick_settings(database_url), planner=QUICK) as other:
            search_id = other.searches.submit(named("from elsewhere")).search.id
        eventually(status_is(runner, search_id, "optimal"))
    with database.write() as session:
        assert Queue(session).claim_next("nobody", now=utc_now()) is None


def test_a_runner_whose_processes_do_not_start_is_not_ready(sqlite_url):
    database = Database(sqlite_url)
    upgrade(database)
    runner = EmbeddedRunner(database, quick_settings(sqlite_url), planner="tests.no_such_planner")
    runner.start()
    eventually(lambda: not runner.is_alive())
    runner.stop()
    database.close()
