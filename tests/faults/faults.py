"""The faults, each at a random moment while searches are submitted and run. Seeds make the moments repeatable."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tests.faults.service import Service, running_service
from tests.support import plain_http
from tests.support.postgresql import KEEPING_SETTINGS, Server, libpq_dsn, own_server
from tests.support.programs import children_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.ledger import Audit, Ledger

    Fault = Callable[["Service", random.Random], None]

SEARCHES_A_FAULT = 2
# Start of a search, its run and its end lie within this time after the submission.
WINDOW_S = 0.6


@dataclass(frozen=True)
class Outcome:
    """What a number of faults of one kind did."""

    faults: int
    audit: Audit
    seconds: float


def survive(
    service: Service,
    ledger: Ledger,
    fault: Fault,
    *,
    rounds: int,
    seed: int,
    window_s: float = WINDOW_S,
) -> Outcome:
    """Submits searches and lets the fault happen within the window, `rounds` times; judges what came of it."""
    moments = random.Random(seed)
    before = ledger.audit
    started_s = time.monotonic()
    for number in range(rounds):
        keys = [f"{seed}-{number}-{each}" for each in range(SEARCHES_A_FAULT)]
        clients = threading.Thread(target=ledger.submit, args=(keys,))
        clients.start()
        time.sleep(moments.uniform(0, window_s))
        fault(service, moments)
        clients.join()
        ledger.settle()
    return Outcome(rounds, ledger.audit.since(before), time.monotonic() - started_s)


def undisturbed_s(ledger: Ledger) -> float:
    """How long it takes to submit and run as many searches as meet a fault, without one."""
    began_s = time.monotonic()
    ledger.submit([f"undisturbed-{number}" for number in range(SEARCHES_A_FAULT)])
    ledger.settle()
    return time.monotonic() - began_s


def kill_worker(service: Service, _moments: random.Random) -> None:
    """SIGKILL of the worker; another one is started, as a supervisor does."""
    assert service.worker is not None
    service.worker.kill()
    service.worker.start()


def kill_server(service: Service, _moments: random.Random) -> None:
    """SIGKILL of the server; it is started again."""
    service.servers[0].kill()
    service.start_server(0)


def kill_pool_process(service: Service, moments: random.Random) -> None:
    """SIGKILL of a process that runs searches, as the kernel does when memory is short."""
    for pid in moments.sample(found := children_of(service.runner.pid), min(1, len(found))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def cut_connections(service: Service, moments: random.Random) -> None:
    """The server ends every connection to the database, a few times."""
    with psycopg.connect(libpq_dsn(service.database_url), autocommit=True) as connection:
        for _ in range(4):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            time.sleep(moments.uniform(0, 0.1))


def restart_postgresql(server: Server) -> Fault:
    """PostgreSQL goes, in peace or at once, and comes back."""

    def fault(_service: Service, moments: random.Random) -> None:
        server.stop(at_once=moments.random() < 0.5)
        time.sleep(moments.uniform(0, 0.5))
        server.start()

    return fault


def fill_disk(service: Service, moments: random.Random) -> None:
    """No file of the server and its processes can grow; what is stored is read meanwhile."""
    pids = [service.servers[0].pid, *children_of(service.servers[0].pid)]
    limit = moments.randint(4096, 32_768)  # the log of writes is longer than that at most moments
    for pid in pids:
        _limit_files(pid, limit)
    try:
        end_s = time.monotonic() + moments.uniform(0.2, 0.8)
        while time.monotonic() < end_s:
            answer = plain_http.get(f"{service.urls[0]}/v1/searches", timeout=60)
            assert answer.status_code == 200, "what is stored is read while the disk is full"
    finally:
        for pid in pids:
            _limit_files(pid, resource.RLIM_INFINITY)


def _limit_files(pid: int, limit_bytes: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, resource.RLIM_INFINITY))


def one_key_at_two_servers(ledger: Ledger, *, rounds: int, seed: int) -> Outcome:
    """Both servers get the same idempotency key at once, twice each."""
    started_s = time.monotonic()
    for number in range(rounds):
        ledger.submit([f"{seed}-{number}"], copies=4)
    return Outcome(rounds, ledger.settle(), time.monotonic() - started_s)


@contextlib.contextmanager
def service_with_own_postgresql(
    binaries: Path, directory: Path, *, forked: bool = False
) -> Iterator[tuple[Service, Server]]:
    """A server and a worker on a PostgreSQL server that may be restarted."""
    with (
        own_server(binaries, KEEPING_SETTINGS) as server,
        running_service(server.dsn, directory, with_worker=True, forked=forked) as service,
    ):
        yield service, server
