"""PostgreSQL crashes and comes back at random, again and again, under two servers and two workers that are at work."""

from __future__ import annotations

import random
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg

from tests.faults.ledger import Audit, Ledger
from tests.faults.service import running_service
from tests.support.postgresql import KEEPING_SETTINGS, Server, libpq_dsn, own_server

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = 2
# So soon every worker looks into the queue again once the database answers.
LIMIT_S = 10.0
PATIENCE_S = 60.0
LONGEST_DOWN_S = 3.0
# So often the next crash comes before the workers have recovered from the last.
IN_A_ROW = 0.3
PAUSE_S = 1.5


@dataclass(frozen=True)
class Recovery:
    """What became of the searches, and how long after the database each worker looked into the queue again."""

    outages: int
    audit: Audit
    delays_s: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was lost or doubled and every worker was back in time."""
        return self.audit.lost == self.audit.doubled == 0 and max(self.delays_s) <= LIMIT_S


def survive_outages(binaries: Path, directory: Path, *, outages: int, seed: int, stalled_after_s: float) -> Recovery:
    """Crashes the database so often while searches are submitted, and waits for what they became."""
    moments = random.Random(seed)
    changes = {"AUTODEPLOY_STALLED_AFTER_S": f"{stalled_after_s:g}", "AUTODEPLOY_WORKER_ALIVE_S": "6"}
    delays_s: list[float] = []
    with (
        own_server(binaries, KEEPING_SETTINGS) as server,
        running_service(
            server.dsn, directory, with_worker=True, num_servers=2, num_workers=WORKERS, changes=changes
        ) as service,
    ):
        _delays_s(server, datetime.now(UTC))  # both are there before the first crash
        ledger = Ledger(service.database_url, service.urls)
        over = threading.Event()
        failures: list[BaseException] = []

        def submit() -> None:
            number = 0
            try:
                while not over.wait(PAUSE_S):
                    ledger.submit([f"{seed}-{number}"])
                    number += 1
            except BaseException as error:  # told by the thread that waits for it
                failures.append(error)

        client = threading.Thread(target=submit)
        client.start()
        try:
            for number in range(outages):
                server.stop(at_once=True)
                time.sleep(moments.uniform(0, LONGEST_DOWN_S))
                server.start()
                back = datetime.now(UTC)
                if number + 1 == outages or moments.random() >= IN_A_ROW:
                    delays_s += _delays_s(server, back)
                time.sleep(moments.uniform(0, PAUSE_S))
        finally:
            over.set()
            client.join()
        if failures:
            raise failures[0]
        # Before the searches are waited for, whose number has nothing to do with it.
        sys.stderr.write(f"seconds until a worker looked again: {sorted(round(each, 1) for each in delays_s)}\n")
        return Recovery(outages, ledger.settle(), tuple(delays_s))


def _delays_s(server: Server, back: datetime) -> list[float]:
    """Seconds from that moment to the first look of each worker after it; infinite for one that does not come back."""
    found: dict[str, float] = {}
    end_s = time.monotonic() + PATIENCE_S
    with psycopg.connect(libpq_dsn(server.dsn), autocommit=True) as connection:
        while len(found) < WORKERS and time.monotonic() < end_s:
            query = "SELECT id, seen_at FROM workers WHERE slots > 0 AND seen_at > %s"
            for name, seen_at in connection.execute(query, (back,)).fetchall():
                found.setdefault(name, (seen_at - back).total_seconds())
            time.sleep(0.1)
    return [*found.values(), *[float("inf")] * (WORKERS - len(found))]
