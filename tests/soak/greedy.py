"""`python -m tests.soak.greedy`: a tenant at all its limits, and what another one notices.

The greedy one lists, submits, estimates and ablates as fast as it is let, with as many connections as it likes. The
other asks for `/livez`, a list and an estimate twice a second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from autodeploy.kit.logs import configure_logging
from autodeploy.kit.settings import Settings
from autodeploy.service.requests.callers import AccessService
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from tests.faults.ledger import SPEC
from tests.faults.service import running_service
from tests.support.figures import report
from tests.support.postgresql import KEEPING_SETTINGS, own_server, server_binaries

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_MS = 1000.0
PAUSE_S = 0.5
STRATEGY = {"tp": 1, "pp": 1, "dp": 8, "micro_batch_size": 1}
ESTIMATED: dict[str, Any] = {name: value for name, value in SPEC.items() if name != "search"} | {"strategy": STRATEGY}


def greedy(url: str, key: str, over: threading.Event) -> Counter[int]:
    """Everything at once until it is over; how it was answered."""
    statuses: Counter[int] = Counter()
    numbers = iter(range(1, 1_000_000))

    def submit(client: httpx.Client) -> httpx.Response:
        batch = {"global_batch_size": 16 * next(numbers)}
        return client.post("/v1/searches", json=SPEC | {"training": SPEC["training"] | batch})

    kinds: list[Callable[[httpx.Client], httpx.Response]] = [
        *[lambda client: client.get("/v1/searches", params={"sort": "-best_mfu", "limit": 100})] * 4,
        *[submit] * 2,
        *[lambda client: client.post("/v1/estimates", json=ESTIMATED)] * 4,
        *[lambda client: client.post("/v1/ablations", json=SPEC)] * 3,
    ]

    def work(ask: Callable[[httpx.Client], httpx.Response]) -> None:
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120) as client:
            while not over.is_set():
                try:
                    answer = ask(client)
                    if not over.is_set():  # the service may be told to stop then
                        statuses[answer.status_code] += 1
                except httpx.TransportError:
                    statuses[0] += 1

    threads = [threading.Thread(target=work, args=(ask,), daemon=True) for ask in kinds]
    for thread in threads:
        thread.start()
    over.wait()
    return statuses


def noticed(url: str, key: str, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each answer that the other tenant got."""
    times_ms: dict[str, list[float]] = defaultdict(list)
    asked: dict[str, Callable[[httpx.Client], httpx.Response]] = {
        "livez": lambda client: client.get("/livez"),
        "list": lambda client: client.get("/v1/searches", params={"limit": 20}),
        "estimate": lambda client: client.post("/v1/estimates", json=ESTIMATED),
    }
    end_s = time.monotonic() + seconds
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120) as client:
        while time.monotonic() < end_s:
            for name, ask in asked.items():
                begun_s = time.perf_counter()
                ask(client).raise_for_status()
                times_ms[name].append((time.perf_counter() - begun_s) * 1e3)
            time.sleep(PAUSE_S)
    return times_ms


def measure(database_url: str, directory: Path, seconds: float, case: str, *, with_worker: bool) -> bool:
    """Alone for a tenth of the time, then beside the greedy one; whether that never cost more than the limit."""
    database = Database(database_url, pool_size=1)
    upgrade(database)
    keys = [AccessService(database).create(team, "write", team=team)[0] for team in ("greedy", "other")]
    database.close()
    changes = {"AUTODEPLOY_AUTH": "keys", "AUTODEPLOY_STALLED_AFTER_S": "60"}
    with running_service(database_url, directory, with_worker=with_worker, changes=changes) as service:
        url = service.urls[0]
        for name, times_ms in noticed(url, keys[1], seconds / 10).items():
            report("p99_alone", _p99(times_ms), "ms", f"{case}, {name}")
        over = threading.Event()
        answered: list[Counter[int]] = []
        neighbour = threading.Thread(target=lambda: answered.append(greedy(url, keys[0], over)))
        neighbour.start()
        try:
            found = noticed(url, keys[1], seconds)
        finally:
            over.set()
            neighbour.join()
    for name, times_ms in found.items():
        report("p99_beside_a_greedy_tenant", _p99(times_ms), "ms", f"{case}, {name}, {len(times_ms)} times")
    for status, count in sorted(answered[0].items()):
        report("answers_to_the_greedy_tenant", count, "count", f"{case}, {status}")
    report("load_average", os.getloadavg()[0], "processes", case)
    refused = sum(count for status, count in answered[0].items() if status >= 500)
    return not refused and all(_p99(times_ms) <= LIMIT_MS for times_ms in found.values())


def _p99(times_ms: list[float]) -> float:
    return statistics.quantiles(times_ms, n=100, method="inclusive")[-1] if len(times_ms) > 1 else times_ms[0]


def main(arguments: list[str] | None = None) -> None:
    """On both databases, or on the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--on", choices=("sqlite", "postgresql"), help="one database; default: both")
    wanted = parser.parse_args(arguments)
    configure_logging(Settings(log_level="warning"))
    held = True
    with tempfile.TemporaryDirectory(prefix="autodeploy_greedy_") as name:
        directory = Path(name)
        if wanted.on != "postgresql":
            url = f"sqlite:///{directory / 'autodeploy.db'}"
            held &= measure(url, directory, wanted.seconds, "SQLite", with_worker=False)
        if wanted.on != "sqlite" and (binaries := server_binaries()) is not None:
            with own_server(binaries, KEEPING_SETTINGS) as server:
                held &= measure(server.dsn, directory, wanted.seconds, "PostgreSQL", with_worker=True)
    sys.exit(not held)


if __name__ == "__main__":
    main()
