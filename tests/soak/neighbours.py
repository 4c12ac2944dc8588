"""`python -m tests.soak.neighbours`: everything at once that befalls a service, for minutes, with the real planner.

Servers and workers on machines whose clocks are two minutes off, one of them with 64 files; SIGKILL and SIGSTOP of
any process, restarts of PostgreSQL or a full disk at random moments. With `--old`, the tree of an earlier release, that
release fills the database first, works on it beside the new one once it is migrated, and is then replaced.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.kit.logs import configure_logging
from autodeploy.kit.settings import Settings
from tests.faults import faults
from tests.faults.ledger import SPEC, Audit, Ledger
from tests.faults.outages import ends_without_plans
from tests.faults.service import QUICK_SETTINGS, Service, running_service
from tests.soak import pretended as pretending
from tests.support.figures import report
from tests.support.forked_processes import CLOCK_AHEAD_S, FILES, MACHINE
from tests.support.postgresql import KEEPING_SETTINGS, Server, free_port, own_server, server_binaries
from tests.support.programs import Program, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Callable

AHEAD_S = ("-120", "120", "0")
# Beside its own files a process with so few has connections to the database, pipes and clients.
FEW_FILES = "64"
EVERY_S, SUBMIT_S, STOPPED_S = (2.0, 6.0), 2.0, (1.0, 8.0)
KILLED_S = (10.0, 20.0)
STALLED_AFTER_S = "5"
LIMIT_S = 600.0


class Storm:
    """Faults at random moments, and how many of each kind there were."""

    def __init__(self, service: Service, server: Server | None, seed: int) -> None:
        self._service, self._server = service, server
        self._moments = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def blow(self, seconds: float) -> None:
        """So long, every few seconds something else."""
        end_s = time.monotonic() + seconds
        kinds: dict[str, Callable[[], None]] = {
            "SIGKILL of a worker or server": self._kill,
            "SIGSTOP of a worker or server": self._stop,
            "SIGKILL of a pool process": lambda: faults.kill_pool_process(self._service, self._moments),
        }
        if self._server is None:
            kinds["disk full"] = lambda: faults.fill_disk(self._service, self._moments)
        else:
            kinds["PostgreSQL restarted"] = lambda: faults.restart_postgresql(self._server)(
                self._service, self._moments
            )  # type: ignore[arg-type]
            kinds["connections cut"] = lambda: faults.cut_connections(self._service, self._moments)
        while time.monotonic() < end_s:
            name = self._moments.choice(sorted(kinds))
            kinds[name]()
            self.counts[name] += 1
            time.sleep(self._moments.uniform(*EVERY_S))

    def _any(self) -> Program:
        return self._moments.choice([*self._service.servers, *self._service.workers])

    def _kill(self) -> None:
        program = self._any()
        program.kill()
        if program in self._service.servers:
            self._service.start_server(self._service.servers.index(program))
        else:
            program.start()

    def _stop(self) -> None:
        program = self._any()
        program.send_signal(signal.SIGSTOP)
        time.sleep(self._moments.uniform(*STOPPED_S))
        program.send_signal(signal.SIGCONT)


class Killer(threading.Thread):
    """Kills one of these programs every so often and starts it again; `still` keeps it from that."""

    def __init__(self, programs: list[Program], seed: int) -> None:
        super().__init__(daemon=True)
        self.programs, self.still, self.kills = programs, threading.Lock(), 0
        self._moments, self._over = random.Random(seed), threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._moments.uniform(*KILLED_S)):
            with self.still:
                running = [program for program in self.programs if program.is_running()]
                if running:
                    killed = self._moments.choice(running)
                    killed.kill()
                    killed.start()
                    self.kills += 1

    def stop(self) -> None:
        """Returns when it kills no more."""
        self._over.set()
        self.join()


class Clients(threading.Thread):
    """Submit a search every so often until they are told to stop."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(daemon=True)
        self._ledger, self._name, self._over = ledger, name, threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        number = 0
        try:
            while not self._over.wait(SUBMIT_S):
                self._ledger.submit([f"{self._name}-{number}"])
                number += 1
        except BaseException as error:  # told by the thread that waits for it
            self.failure = error

    def settled(self) -> Audit:
        """What became of everything."""
        self._over.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        return self._ledger.settle()


def weather(database_url: str, directory: Path, server: Server | None, seconds: float, seed: int, case: str) -> bool:
    """Two servers, with PostgreSQL and three workers, in a storm; whether nothing was lost, doubled or failed."""
    places = [{CLOCK_AHEAD_S: ahead, MACHINE: f"m{number}"} for number, ahead in enumerate(AHEAD_S)]
    places[-1] |= {FILES: FEW_FILES}
    if server is None:  # a file is on one machine
        places = [{CLOCK_AHEAD_S: "-120"}, {CLOCK_AHEAD_S: "120", FILES: FEW_FILES}]
    changes = {"AUTODEPLOY_STALLED_AFTER_S": STALLED_AFTER_S, "AUTODEPLOY_MAX_LOSSES": "1000"}
    with running_service(
        database_url,
        directory,
        with_worker=server is not None,
        num_servers=2,
        num_workers=len(places),
        changes=changes,
        places=places,
        forked=True,
    ) as service:
        storm = Storm(service, server, seed)
        clients = Clients(Ledger(database_url, service.urls), "storm")
        clients.start()
        storm.blow(seconds)
        audit = clients.settled()
        for name, count in sorted(storm.counts.items()):
            report("faults", count, "count", f"{case}, {name}")
        return judged(audit, database_url, case)


def judged(audit: Audit, database_url: str, case: str) -> bool:
    """Reports what became of the searches."""
    ends = ends_without_plans(Settings(database_url=database_url))
    for words, count in ends.items():
        sys.stderr.write(f"{count} without plans, {words}\n")
    report("searches", audit.searches, "count", case)
    report("searches_lost", audit.lost, "count", case)
    report("searches_done_twice", audit.doubled, "count", case)
    report("searches_failed", ends.total(), "count", case)
    report("runs_begun_anew", audit.retried, "count", case)
    return audit.lost == audit.doubled == ends.total() == 0


def two_versions(
    server: Server, directory: Path, old: Path, seconds: float, seed: int, case: str, *, pretended: bool = False
) -> bool:
    """The earlier release alone, beside this one on the migrated database in every pairing, and this one alone.

    From the migration on, server and worker of this release are killed at random; those of the earlier one, which do
    not start again then, end by SIGKILL.
    """
    environment = QUICK_SETTINGS | {
        "AUTODEPLOY_DATABASE_URL": server.dsn.replace("postgresql+psycopg", "postgresql"),
        "AUTODEPLOY_JOBS": "procrastinate",
        "AUTODEPLOY_STALLED_AFTER_S": "30",
        "AUTODEPLOY_WORKER_ALIVE_S": "30",
    }

    def program(name: str, *words: str, source: Path) -> Program:
        return Program(list(words), environment, directory / f"{name}.log", source=source)

    def worker(name: str, source: Path) -> Program:
        if pretended:
            return Program([], environment, directory / f"{name}.log", module=pretending.MODULE, source=source)
        return program(name, "worker", source=source)

    def served(name: str, source: Path) -> tuple[Program, str]:
        port = free_port()
        made = program(name, "serve", "--port", str(port), source=source)
        made.start()
        stack.callback(made.stop)
        return made, f"http://127.0.0.1:{port}"

    new = Path(__file__).resolve().parents[2]
    with ExitStack() as stack:
        made = program("old_upgrade", "db", "upgrade", source=old)
        made.start()
        if made.wait():
            raise RuntimeError(made.log_path.read_text())
        old_server, old_url = served("old_server", old)
        old_worker = worker("old_worker", old)
        old_worker.start()
        stack.callback(old_worker.stop)
        wait_until_ready(old_url, old_server)
        urls = [old_url]
        # One ledger for one tree of events; its searches are judged by what each version planned.
        ledger = Ledger(server.dsn, urls, SPEC, one_answer=False)
        ledger.submit([f"old-{number}" for number in range(3)])
        clients = Clients(ledger, "both")
        clients.start()
        time.sleep(seconds / 6)
        migrate = program("new_upgrade", "db", "upgrade", source=new)
        migrate.start()
        if migrate.wait():
            raise RuntimeError(migrate.log_path.read_text())
        new_worker = worker("new_worker", new)
        new_worker.start()
        stack.callback(new_worker.stop)
        new_server, new_url = served("new_server", new)
        wait_until_ready(new_url, new_server)
        urls.append(new_url)
        killer = Killer([new_server, new_worker], seed)
        killer.start()
        time.sleep(seconds / 6)  # both servers, both workers
        with killer.still:
            new_worker.stop()
            urls[:] = [new_url]
        time.sleep(seconds / 6)  # the new server, the old worker
        with killer.still:
            old_worker.kill()
            new_worker.start()
            urls[:] = [old_url]
        time.sleep(seconds / 6)  # the old server, the new worker
        with killer.still:
            old_server.kill()
            urls[:] = [new_url]
        time.sleep(seconds / 6)
        killer.stop()
        report("faults", killer.kills + 2, "count", f"{case}, SIGKILL of a server or worker")
        return judged(clients.settled(), server.dsn, case)


def main(arguments: list[str] | None = None) -> None:
    """All parts, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of each part")
    parser.add_argument("--seed", type=int, default=20261128)
    parser.add_argument("--old", type=Path, help="the tree of an earlier release, for `versions`")
    parser.add_argument("--pretended", action="store_true", help="searches of `versions` sleep: for a busy machine")
    parser.add_argument("only", nargs="*", help="sqlite postgresql versions; default: all that can be")
    wanted = parser.parse_args(arguments)
    configure_logging(Settings(log_level="warning"))
    parts = wanted.only or ["sqlite", "postgresql", *(["versions"] if wanted.old else [])]
    held = True
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="autodeploy_neighbours_") as name:
            directory = Path(name)
            if part == "sqlite":
                url = f"sqlite:///{directory / 'autodeploy.db'}"
                held &= weather(url, directory, None, wanted.seconds, wanted.seed, "SQLite")
                continue
            binaries = server_binaries()
            if binaries is None:
                sys.exit("PostgreSQL is not here (Debian: postgresql)")
            with own_server(binaries, KEEPING_SETTINGS) as server:
                if part == "versions":
                    old = wanted.old.resolve()
                    held &= two_versions(
                        server,
                        directory,
                        old,
                        wanted.seconds,
                        wanted.seed,
                        "two versions",
                        pretended=wanted.pretended,
                    )
                else:
                    held &= weather(server.dsn, directory, server, wanted.seconds, wanted.seed, "PostgreSQL")
    report("load_average", os.getloadavg()[0], "processes", "neighbours")
    sys.exit(not held)


if __name__ == "__main__":
    main()
