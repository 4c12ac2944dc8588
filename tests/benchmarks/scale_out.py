"""`python -m tests.benchmarks.scale_out`: short searches against the number of workers, and what the database costs.

One JSON line a figure. Beyond the machine's cores a worker adds nothing but turns, so what more machines would do is
worked out from processor time, which does not depend on what else runs here: of a worker for each search, and of
PostgreSQL for each search, which is what all workers share. With `--pretended`, searches sleep, so that many workers
fit here, and a simulation of a hundred follows from what they cost.
"""

from __future__ import annotations

import argparse
import heapq
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import event

from autodeploy.analysis.intake import read_network_spec
from autodeploy.kit.logs import configure_logging
from autodeploy.kit.settings import Settings
from autodeploy.service.runner.execution import execute
from autodeploy.service.runner.planning import load_planner
from autodeploy.service.session import open_services
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from autodeploy.service.store.queue import Queue
from tests import factories
from tests.faults.ledger import SPEC
from tests.faults.service import QUICK_SETTINGS
from tests.soak import pretended as pretending
from tests.support.figures import report
from tests.support.postgresql import KEEPING_SETTINGS, libpq_dsn, own_server, server_binaries
from tests.support.programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUICK = "tests.quick_planner"
WORKERS = (1, 2, 4, 8)
SEARCHES = 40  # of each worker
LIMIT_S = 600.0
CLAIM_MS = 12.0
COUNTING_SETTINGS = KEEPING_SETTINGS | {"shared_preload_libraries": "pg_stat_statements"}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Asked:
    """What one process asked a database."""

    statements: int = 0
    transactions: int = 0
    statement_s: float = 0.0
    transaction_s: float = 0.0


@contextmanager
def counted(database: Database) -> Iterator[Asked]:
    """Statements and transactions of this engine, with their time."""
    asked = Asked()
    begun_s: dict[int, float] = {}

    def before(_connection: Any, cursor: Any, *_: Any) -> None:
        begun_s[id(cursor)] = time.perf_counter()

    def after(_connection: Any, cursor: Any, *_: Any) -> None:
        asked.statements += 1
        asked.statement_s += time.perf_counter() - begun_s.pop(id(cursor), time.perf_counter())

    def begin(connection: Any) -> None:
        begun_s[id(connection)] = time.perf_counter()

    def end(connection: Any) -> None:
        asked.transactions += 1
        asked.transaction_s += time.perf_counter() - begun_s.pop(id(connection), time.perf_counter())

    listeners: dict[str, Callable[..., None]] = {
        "before_cursor_execute": before,
        "after_cursor_execute": after,
        "begin": begin,
        "commit": end,
        "rollback": end,
    }
    for name, listener in listeners.items():
        event.listen(database.engine, name, listener)
    try:
        yield asked
    finally:
        for name, listener in listeners.items():
            event.remove(database.engine, name, listener)


def of_one_search(database_url: str, case: str, searches: int = 20) -> None:
    """A search's whole life in this process: submitted, claimed, run, stored. It takes no time itself.

    While a search runs it is asked about five times a second, and writes once: that is left out here.
    """
    settings = Settings(database_url=database_url)
    planner = load_planner(QUICK)
    with open_services(settings, planner=QUICK) as services:
        spec = factories.spec()
        for number in range(searches + 1):
            if number == 1:  # the first compiles what the others use
                counting = ExitStack()
                asked = counting.enter_context(counted(services.database))
            services.searches.submit(spec, reuse=False)
            with services.database.write() as session:
                claim = Queue(session).claim_next("benchmark", now=utc_now())
            assert claim is not None
            execute(services.database, claim, planner, heartbeat_s=1.0)
        counting.close()
    report("load_average", os.getloadavg()[0], "processes", case)
    report("statements_of_a_search", asked.statements / searches, "count", case)
    report("transactions_of_a_search", asked.transactions / searches, "count", case)
    report("time_in_statements_of_a_search", 1e3 * asked.statement_s / searches, "ms", case)
    report("time_in_transactions_of_a_search", 1e3 * asked.transaction_s / searches, "ms", case)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process and of its children that have ended."""
    try:
        fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_PER_S


def offspring(pid: int) -> list[int]:
    """The processes that a process has started and that live."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(entry.name))
    return found


def tree_s(pid: int) -> float:
    """The same with the children that live."""
    return cpu_s(pid) + sum(cpu_s(child) for child in offspring(pid))


@dataclass(frozen=True)
class Cost:
    """Processor seconds of a search: in its worker, and in PostgreSQL."""

    in_worker_s: float
    in_database_s: float


def throughput(workers: int, searches: int, directory: Path, *, pretended: bool = False) -> Cost:
    """Short searches that wait when that many workers begin, and what one costs."""
    binaries = server_binaries()
    if binaries is None:
        sys.exit("PostgreSQL is not here (Debian: postgresql)")
    case = f"{workers} workers of one slot"
    with own_server(binaries, COUNTING_SETTINGS) as server, ExitStack() as stack:
        database = Database(server.dsn, pool_size=2)
        stack.callback(database.close)
        upgrade(database)
        environment = QUICK_SETTINGS | {
            "AUTODEPLOY_DATABASE_URL": server.dsn,
            "AUTODEPLOY_JOBS": "procrastinate",
            "AUTODEPLOY_CORES": "1",
            "AUTODEPLOY_STALLED_AFTER_S": "60",
        }
        module, words = (pretending.MODULE, []) if pretended else ("autodeploy.cli.main", ["worker"])
        programs = [
            Program(words, environment, directory / f"worker{number}.log", module=module) for number in range(workers)
        ]
        for program in programs:
            program.start()
            stack.callback(program.stop)
        settings = Settings(database_url=server.dsn, jobs="procrastinate")
        with open_services(settings) as services:
            spec = read_network_spec(SPEC, load_planner())
            _wait(services, [services.searches.submit(spec, reuse=False).search.id for _ in range(2 * workers)])
            postmaster = server.pid
            before = [tree_s(program.pid) for program in programs], tree_s(postmaster), _commits(server.dsn)
            _statements(server.dsn, reset=True)
            begun_s = time.monotonic()
            ids = [services.searches.submit(spec, reuse=False).search.id for _ in range(searches * workers)]
            submitted_s = time.monotonic() - begun_s
            _wait(services, ids)
            took_s = time.monotonic() - begun_s
            in_workers_s = sum(tree_s(program.pid) for program in programs) - sum(before[0])
            in_database_s = tree_s(postmaster) - before[1]
            commits = _commits(server.dsn) - before[2]
            statements, connections = _statements(server.dsn), _connections(server.dsn, database, services.database)
    num = len(ids)
    report("load_average", os.getloadavg()[0], "processes", case)
    report("searches_a_second", num / took_s, "1/s", case)
    report("submissions_a_second", num / submitted_s, "1/s", case)
    report("processor_time_in_workers", 1e3 * in_workers_s / num, "ms a search", case)
    report("processor_time_in_postgresql", 1e3 * in_database_s / num, "ms a search", case)
    report("transactions_in_postgresql", commits / num, "a search", case)
    report("statements_in_postgresql", statements[0] / num, "a search", case)
    report("time_of_statements_in_postgresql", statements[1] / num, "ms a search", case)
    report("connections_of_workers", connections / workers, "a worker", case)
    return Cost(in_workers_s / num, in_database_s / num)


def _statements(dsn: str, *, reset: bool = False) -> tuple[int, float]:
    """How many PostgreSQL ran, and their milliseconds there."""
    with psycopg.connect(libpq_dsn(dsn), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        if reset:
            connection.execute("SELECT pg_stat_statements_reset()")
        row = connection.execute("SELECT sum(calls), sum(total_exec_time) FROM pg_stat_statements").fetchone()
    calls, took_ms = row or (0, 0.0)
    return int(calls or 0), float(took_ms or 0.0)


def _connections(dsn: str, *own: Database) -> int:
    """Those that are open, but for those of this process."""
    with psycopg.connect(libpq_dsn(dsn), autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE client_port > 0").fetchone()
    kept = sum(each.engine.pool.checkedin() + each.engine.pool.checkedout() for each in own)  # type: ignore[attr-defined]
    return int((row or (0,))[0]) - kept - 1


def simulated(
    workers: int, search_s: float, cost: Cost, claim_s: float, cores: int, searches: int
) -> tuple[float, float]:
    """Searches a second of that many workers of one slot on one database, and the 95th percentile of a claim's wait.

    Claims come one after the other; what else a search asks shares PostgreSQL's cores. All waits in queues that are
    first come, first served; workers begin spread over one search.
    """
    free = [(number * search_s / workers, number) for number in range(workers)]
    heapq.heapify(free)
    lock_s, cores_s = 0.0, [0.0] * cores
    waits_s, end_s = [], 0.0
    for _ in range(searches):
        now_s, worker = heapq.heappop(free)
        begun_s = max(now_s, lock_s)
        waits_s.append(begun_s - now_s)
        lock_s = begun_s + claim_s
        run_s = lock_s + search_s
        served_s = max(run_s, heapq.heappop(cores_s))
        end_s = served_s + cost.in_database_s
        heapq.heappush(cores_s, end_s)
        heapq.heappush(free, (end_s, worker))
    return searches / end_s, statistics.quantiles(waits_s, n=20)[-1]


def _wait(services: Any, ids: list[str]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while services.searches.find_status(ids[-1]) in {"queued", "running"} or any(
        services.searches.find_status(each) in {"queued", "running"} for each in ids
    ):
        assert time.monotonic() < end_s, "the searches did not end"
        time.sleep(0.2)


def _commits(dsn: str) -> int:
    with psycopg.connect(libpq_dsn(dsn), autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute("SELECT sum(xact_commit) FROM pg_stat_database").fetchone()
    return int((row or (0,))[0])


def main() -> None:
    """All figures, or those of the numbers of workers that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=SEARCHES, help="of each worker")
    parser.add_argument("--pretended", action="store_true", help="searches sleep: for more workers than cores")
    parser.add_argument("--claim-ms", type=float, default=CLAIM_MS, help="of a claim with many stored and waiting")
    parser.add_argument("workers", nargs="*", type=int, default=WORKERS)
    wanted = parser.parse_args()
    configure_logging(Settings(log_level="warning"))
    with tempfile.TemporaryDirectory(prefix="autodeploy_scale_") as directory:
        of_one_search(f"sqlite:///{directory}/one.db", "SQLite")
        binaries = server_binaries()
        if binaries is not None:
            with own_server(binaries, KEEPING_SETTINGS) as server:
                database = Database(server.dsn, pool_size=1)
                upgrade(database)
                database.close()
                of_one_search(server.dsn, "PostgreSQL")
        for workers in wanted.workers:
            cost = throughput(workers, wanted.searches, Path(directory), pretended=wanted.pretended)
            report("searches_a_second_of_a_core", 1.0 / cost.in_worker_s, "1/s", f"worked out, {workers} workers")
            filling = cost.in_worker_s / cost.in_database_s
            report("workers_that_fill_a_core_of_postgresql", filling, "count", "worked out")
            for search_s in (1.0, 10.0) if wanted.pretended else ():
                rate, wait_s = simulated(100, search_s, cost, wanted.claim_ms / 1e3, 2, 20_000)
                case = f"simulated: 100 workers, searches of {search_s:g} s, cost of {workers} workers"
                report("searches_a_second", rate, "1/s", case)
                report("claim_wait_p95", 1e3 * wait_s, "ms", case)


if __name__ == "__main__":
    main()
