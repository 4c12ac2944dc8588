"""A whole service as processes: servers and, where jobs are sent, a worker, on one database."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autodeploy.kit.settings import Settings
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from tests.support.postgresql import free_port
from tests.support.programs import Program, stop_together, wait_until_ready
from tests.support.quick_server import QUICK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

PREFIX = "AUTODEPLOY_"
# Times are short, so that a fault costs seconds; and a search may die often, because it is killed on purpose.
QUICK_SETTINGS = {
    "AUTODEPLOY_HEARTBEAT_S": "0.1",
    "AUTODEPLOY_STALLED_AFTER_S": "1",
    "AUTODEPLOY_POLL_S": "0.1",
    "AUTODEPLOY_MAX_ATTEMPTS": "10",
    "AUTODEPLOY_SHUTDOWN_GRACE_S": "0.2",
    "AUTODEPLOY_LOG_LEVEL": "warning",
}


@dataclass
class Service:
    """The processes of a service and where they listen."""

    database_url: str
    servers: list[Program] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    worker: Program | None = None
    workers: list[Program] = field(default_factory=list)
    worker_ports: list[int] = field(default_factory=list)

    @property
    def runner(self) -> Program:
        """The program that runs searches."""
        return self.worker or self.servers[0]

    def start_server(self, number: int = 0) -> None:
        """Starts that server and waits until it answers."""
        self.servers[number].start()
        wait_until_ready(self.urls[number], self.servers[number])


@contextmanager
def running_service(
    database_url: str,
    directory: Path,
    *,
    with_worker: bool = False,
    num_servers: int = 1,
    num_workers: int = 1,
    changes: Mapping[str, str] | None = None,
    forked: bool = False,
    quick: bool = False,
    places: Sequence[Mapping[str, str]] = ({},),
) -> Iterator[Service]:
    """A migrated database with its servers and, `with_worker`, workers to which they send searches.

    `changes` are environment variables that differ from `QUICK_SETTINGS`, `places` those of each worker, or server
    without workers, in turn; `forked` programs start in an instant. `quick`: plans are those of `tests.quick_planner`.
    """
    database = Database(database_url, pool_size=1)
    upgrade(database)
    database.close()
    environment = QUICK_SETTINGS | {
        "AUTODEPLOY_DATABASE_URL": database_url,
        "AUTODEPLOY_JOBS": "procrastinate" if with_worker else "embedded",
        **(changes or {}),
    }
    service = Service(database_url)
    with ExitStack() as stack:
        programs: list[Program] = []
        stack.callback(stop_together, programs)
        if with_worker:
            for number in range(num_workers):
                service.worker_ports.append(free_port())
                own = (
                    environment
                    | places[number % len(places)]
                    | {"AUTODEPLOY_WORKER_PORT": str(service.worker_ports[-1])}
                )
                worker = _worker(own, directory / f"worker{number}.log", forked=forked, quick=quick)
                service.worker = service.worker or worker  # the first is the one that faults are for
                programs.append(worker)
                service.workers.append(worker)
                worker.start()
        for number in range(num_servers):
            port = free_port()
            own = environment if with_worker else environment | places[number % len(places)]
            server = _server(port, own, directory / f"server{number}.log", forked=forked, quick=quick)
            service.servers.append(server)
            service.urls.append(f"http://127.0.0.1:{port}")
            programs.append(server)
            server.start()
        for url, server in zip(service.urls, service.servers, strict=True):
            wait_until_ready(url, server)
        yield service


def _worker(environment: dict[str, str], log_path: Path, *, forked: bool, quick: bool) -> Program:
    if not quick:
        return Program(["worker"], environment, log_path, forked=forked)
    given = {name.removeprefix(PREFIX).lower(): value for name, value in environment.items() if name.startswith(PREFIX)}
    arguments = [Settings.model_validate(given).model_dump_json(), QUICK]
    return Program(arguments, environment, log_path, module="tests.support.quick_runner", forked=forked)


def _server(port: int, environment: dict[str, str], log_path: Path, *, forked: bool, quick: bool) -> Program:
    if not quick:
        return Program(["serve", "--port", str(port)], environment, log_path, forked=forked)
    environment = environment | {f"{PREFIX}PORT": str(port)}
    return Program([], environment, log_path, module="tests.support.quick_server", forked=forked)
