"""What only the embedded runner does: it needs no wake-up, says when its processes do not start, knows the dead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from sqlalchemy.pool import QueuePool

from autodeploy.kit.errors import SearchCancelled
from autodeploy.service.runner.embedded import EmbeddedRunner
from autodeploy.service.runner.execution import execute
from autodeploy.service.runner.orphan_recovery import recover
from autodeploy.service.runner.owner import Owner
from autodeploy.service.runner.planning import load_planner
from autodeploy.service.session import open_services
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from autodeploy.service.store.queue import Queue
from tests.integration.conftest import QUICK, eventually, named, quick_settings, status_is
from tests.quick_planner import LASTING, SLOW
from tests.support.programs import children_of

pytestmark = pytest.mark.integration


def test_a_search_of_the_command_line_can_be_cancelled(sqlite_url):
    with open_services(quick_settings(sqlite_url), planner=QUICK) as services:
        with pytest.raises(SearchCancelled):
            services.searches.plan_and_store(named(SLOW), should_cancel=lambda: True)
        (item,) = services.searches.list().items
        assert item.status == "cancelled"


def test_a_search_that_this_process_runs_itself_is_not_taken_over(sqlite_url):
    """Its runner looks for searches of dead processes meanwhile."""
    settings = quick_settings(sqlite_url)
    with open_services(settings, planner=QUICK) as services:
        taken = []

        def look(_):
            recover(services.database, settings, Owner(), lambda _, search_id: taken.append(search_id))

        found = services.searches.plan_and_store(named("quick"), progress=look)
        assert found.status in {"optimal", "feasible"}
        assert taken == []


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")  # it closes as it is lost
def test_a_connection_lost_for_want_of_memory_does_not_hold_up_the_end_of_a_search(database, database_url, monkeypatch):
    """It belongs to the report of a search that has taken all memory, and a search's process has no second one."""
    returned, lost = QueuePool._do_return_conn, []

    def lose_first(pool, record):
        if threading.current_thread().name.startswith("report-") and not lost:
            lost.append(time.monotonic())
            raise MemoryError
        returned(pool, record)

    monkeypatch.setattr(QueuePool, "_do_return_conn", lose_first)
    with open_services(quick_settings(database_url), planner=QUICK) as services:
        search_id = services.searches.submit(named(LASTING)).search.id
        with services.database.write() as session:
            claim = Queue(session).claim_next(str(Owner()), now=utc_now())
        assert claim is not None
        of_a_process = Database(database_url, pool_size=1, overflow=0)
        execute(of_a_process, claim, load_planner(QUICK), heartbeat_s=0.1)
        of_a_process.close()
        assert time.monotonic() - lost[0] < 20.0
        assert services.searches.status(search_id) == "optimal"


def test_owners_know_the_dead():
    me = Owner()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert me.is_dead(str(Owner(pid=gone.pid)))
    assert me.is_dead(str(Owner(token="earlier")))  # this process's number with a foreign token: an earlier holder
    assert not me.is_dead(str(me))
    assert not me.is_dead(str(Owner()))  # another one of this process
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


@pytest.mark.usefixtures("products_processes")
def test_a_runner_whose_processes_do_not_start_is_not_ready(sqlite_url):
    database = Database(sqlite_url)
    upgrade(database)
    runner = EmbeddedRunner(database, quick_settings(sqlite_url), planner="tests.no_such_planner")
    runner.start()
    eventually(lambda: not runner.is_alive())
    runner.stop()
    database.close()


@pytest.mark.usefixtures("products_processes")
def test_stopping_does_not_wait_for_a_process_that_is_still_starting(sqlite_url, tmp_path, monkeypatch):
    begun = tmp_path / "begun"
    planner = tmp_path / "planner_that_takes_its_time.py"
    planner.write_text(f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(60)\n")
    monkeypatch.syspath_prepend(tmp_path)
    database = Database(sqlite_url)
    upgrade(database)
    runner = EmbeddedRunner(database, quick_settings(sqlite_url), planner=planner.stem)
    runner.start()
    eventually(begun.exists)
    asked_s = time.monotonic()
    runner.stop()
    assert time.monotonic() - asked_s < 20
    assert children_of(os.getpid()) == []
    database.close()
