"""Nine tenants with a short search every 20 s on two workers, then a tenth with a hundred deep ones: who waits.

Waits are the database's own moments, from the row to its first start. The machine is seldom alone: its load and what a
short search took are reported beside them.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from sqlalchemy import select

from autodeploy.service.requests.callers import AccessService
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from autodeploy.service.store.tables import SearchRow
from tests.faults.ledger import SPEC
from tests.faults.service import QUICK_SETTINGS
from tests.soak import pretended as pretending
from tests.support.figures import report
from tests.support.postgresql import free_port
from tests.support.programs import Program, wait_until_ready
from tests.support.queue_simulation import p95_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TENANTS = 9
EVERY_S = 20.0
DEEP_SEARCHES = 100
WORKERS = 2
# Expected to take more than half a minute, and allowed to.
DEEP: dict[str, Any] = {
    "model": "deepseek-v3",
    "cluster": {"profile": "cloudmatrix-384", "num_npus": 384},
    "training": {"seq_length": 4096, "global_batch_size": 3840},
    "search": {"effort": "deep", "target": "any", "time_limit_s": 120},
}
SETTLE_LIMIT_S = 300.0


@dataclass(frozen=True)
class Tenants:
    """A service and its callers: ten keys, the tenth the greedy one."""

    url: str
    database: Database
    keys: tuple[str, ...]

    def submit(self, tenant: int, document: dict[str, Any]) -> str:
        """The id of a new search, whatever was planned before."""
        headers = {"Authorization": f"Bearer {self.keys[tenant]}", "Cache-Control": "no-cache"}
        answer = httpx.post(f"{self.url}/v1/searches", json=document, headers=headers, timeout=60)
        answer.raise_for_status()
        return str(answer.json()["search"]["id"])

    def rows(self, ids: Sequence[str]) -> list[Any]:
        """What the database says of these searches."""
        query = select(
            SearchRow.id, SearchRow.status, SearchRow.created_at, SearchRow.started_at, SearchRow.finished_at
        ).where(SearchRow.id.in_(ids))
        with self.database.read() as session:
            return list(session.execute(query))


@contextmanager
def tenants_of(database_url: str, directory: Path, *, pretended: bool = False) -> Iterator[Tenants]:
    """A server and two workers of one slot each, as on two machines of one core; `pretended` as in that module."""
    database = Database(database_url, pool_size=2)
    upgrade(database)
    access = AccessService(database)
    keys = tuple(
        access.create(f"tenant {number}", "write", max_searches=DEEP_SEARCHES, team=f"team{number}")[0]
        for number in range(1, TENANTS + 2)
    )
    environment = QUICK_SETTINGS | {
        "AUTODEPLOY_DATABASE_URL": database_url,
        "AUTODEPLOY_JOBS": "procrastinate",
        "AUTODEPLOY_AUTH": "keys",
        "AUTODEPLOY_CORES": "1",
        "AUTODEPLOY_STALLED_AFTER_S": "60",
        "AUTODEPLOY_WORKER_ALIVE_S": "60",
    }
    with ExitStack() as stack:
        stack.callback(database.close)
        for number in range(WORKERS):
            log_path = directory / f"worker{number}.log"
            worker = (
                Program([], environment, log_path, module=pretending.MODULE)
                if pretended
                else Program(["worker"], environment, log_path)
            )
            worker.start()
            stack.callback(worker.stop)
        port = free_port()
        server = Program(["serve", "--port", str(port)], environment, directory / "server.log")
        server.start()
        stack.callback(server.stop)
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, server)
        yield Tenants(url, database, keys)


def measure(tenants: Tenants, seconds: float, *, seed: int) -> bool:
    """Half of the time the nine alone, half with the tenth; whether the nine wait hardly longer."""
    random_ = random.Random(seed)
    first_s = [random_.uniform(0.0, EVERY_S) for _ in range(TENANTS)]
    _settled(tenants, [tenants.submit(number, _short(number)) for number in range(WORKERS)])  # the workers are warm
    report("load_average_before", os.getloadavg()[0], "processes", "tenants")
    before = _ask(tenants, seconds / 2.0, first_s, turn=1)
    waits_before = _waits_s(tenants, before, "nine tenants alone")
    deep = [tenants.submit(TENANTS, _deep(number)) for number in range(DEEP_SEARCHES)]
    report("load_average_between", os.getloadavg()[0], "processes", "tenants")
    after = _ask(tenants, seconds / 2.0, first_s, turn=1_000)
    waits_after = _waits_s(tenants, after, "with a tenth that asked for 100 deep searches")
    begun = [row for row in tenants.rows(deep) if row.started_at is not None]
    report("deep_searches_begun", len(begun), "count", "of the tenth")
    limit_s = 2.0 * p95_s(waits_before) + 5.0
    report("wait_p95_limit", limit_s, "s", "twice what it was + 5 s")
    return p95_s(waits_after) <= limit_s and bool(begun)


def _short(number: int) -> dict[str, Any]:
    return SPEC | {"training": SPEC["training"] | {"global_batch_size": 16 * (number + 1)}}


def _deep(number: int) -> dict[str, Any]:
    return DEEP | {"training": DEEP["training"] | {"global_batch_size": 3840 + 384 * number}}


def _ask(tenants: Tenants, seconds: float, first_s: Sequence[float], *, turn: int) -> list[str]:
    """Every tenant asks at its own moments; nobody waits for an answer."""
    ids: list[str] = []
    begin_s = time.monotonic()

    def ask(tenant: int) -> None:
        moment_s = first_s[tenant]
        number = turn + tenant
        while moment_s < seconds:
            time.sleep(max(0.0, begin_s + moment_s - time.monotonic()))
            ids.append(tenants.submit(tenant, _short(number)))
            moment_s += EVERY_S
            number += TENANTS

    threads = [threading.Thread(target=ask, args=(tenant,)) for tenant in range(TENANTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ids


def _settled(tenants: Tenants, ids: Sequence[str]) -> list[Any]:
    end_s = time.monotonic() + SETTLE_LIMIT_S
    while True:
        rows = tenants.rows(ids)
        if all(row.status not in {"queued", "running"} for row in rows):
            return rows
        assert time.monotonic() < end_s, "the short searches did not end"
        time.sleep(0.5)


def _waits_s(tenants: Tenants, ids: Sequence[str], case: str) -> list[float]:
    rows = _settled(tenants, ids)
    waits_s = [(row.started_at - row.created_at).total_seconds() for row in rows]
    took_s = [(row.finished_at - row.started_at).total_seconds() for row in rows]
    report("short_searches", len(rows), "count", case)
    report("short_search_median", statistics.median(took_s), "s", case)
    report("wait_median", statistics.median(waits_s), "s", case)
    report("wait_p95", p95_s(waits_s), "s", case)
    return waits_s
