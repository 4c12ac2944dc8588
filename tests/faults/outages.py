"""PostgreSQL crashes and comes back at random, again and again, under two servers and two workers that are at work."""

from __future__ import annotations

import contextlib
import random
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from autodeploy.kit.settings import Settings
from autodeploy.service.session import open_services
from tests.faults.ledger import Audit, Ledger
from tests.faults.service import running_service
from tests.support import plain_http
from tests.support.postgresql import KEEPING_SETTINGS, own_server

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = 2
SAMPLE = re.compile(r"^autodeploy_(poll_age_seconds|slots|slots_busy) ([0-9.e+-]+)$", re.MULTILINE)
# So soon every worker looks into the queue again once the database answers.
LIMIT_S = 10.0
PATIENCE_S = 60.0
LONGEST_DOWN_S = 3.0
# So often the next crash comes before the workers have recovered from the last.
IN_A_ROW = 0.3
PAUSE_S = 1.5
# Seldom enough for most workers to have a slot free, so that they have something to look for.
SUBMIT_S = 3.0
# So many come in the time of one outage at most: on a busy machine no slot would ever be free of more.
MOST_AN_OUTAGE = 6


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


def survive_outages(
    binaries: Path,
    directory: Path,
    *,
    outages: int,
    seed: int,
    stalled_after_s: float,
    down_s: float = LONGEST_DOWN_S,
    submit_s: float = SUBMIT_S,
    forked: bool = False,
) -> Recovery:
    """Crashes the database so often while searches are submitted, and waits for what they became.

    Parameters
    ----------
    down_s : the longest that the database is away. submit_s : between two searches.
    """
    moments = random.Random(seed)
    changes = {
        "AUTODEPLOY_STALLED_AFTER_S": f"{stalled_after_s:g}",
        "AUTODEPLOY_WORKER_ALIVE_S": "3",
        "AUTODEPLOY_WORKERS": "2",
    }
    delays_s: list[float] = []
    with (
        own_server(binaries, KEEPING_SETTINGS) as server,
        running_service(
            server.dsn, directory, with_worker=True, num_servers=2, num_workers=WORKERS, changes=changes, forked=forked
        ) as service,
    ):
        _delays_s(service.worker_ports, time.monotonic())  # both are there before the first crash
        ledger = Ledger(service.database_url, service.urls)
        over = threading.Event()
        failures: list[BaseException] = []

        room = threading.Semaphore(0)

        def submit() -> None:
            number = 0
            try:
                while not over.wait(submit_s):
                    if room.acquire(blocking=False):
                        ledger.submit([f"{seed}-{number}"])
                        number += 1
            except BaseException as error:  # told by the thread that waits for it
                failures.append(error)

        client = threading.Thread(target=submit)
        client.start()
        try:
            for number in range(outages):
                room.release(MOST_AN_OUTAGE)
                server.stop(at_once=True)
                time.sleep(moments.uniform(0, down_s))
                server.start()
                back_s = time.monotonic()
                if number + 1 == outages or moments.random() >= IN_A_ROW:
                    delays_s += _delays_s(service.worker_ports, back_s)
                time.sleep(moments.uniform(0, PAUSE_S))
        finally:
            over.set()
            client.join()
        if failures:
            raise failures[0]
        # Before the searches are waited for, whose number has nothing to do with it.
        sys.stderr.write(f"seconds until a worker looked again: {sorted(round(each, 1) for each in delays_s)}\n")
        audit = ledger.settle()
        for words, count in ends_without_plans(Settings(database_url=service.database_url)).items():
            sys.stderr.write(f"{count} without plans, {words}\n")
        return Recovery(outages, audit, tuple(delays_s))


def _delays_s(ports: list[int], back_s: float) -> list[float]:
    """Seconds until each worker looked into the queue again, from when the database was back and it had a slot free.

    Asked of the workers themselves: in the database one without a free slot counts as seen without having looked, and
    here it is not waited for, as it has no reason to look. Infinite for one that does not come back.
    """
    found: dict[int, float] = {}
    since_s = dict.fromkeys(ports, back_s)
    end_s = time.monotonic() + PATIENCE_S
    while len(found) < len(ports) and time.monotonic() < end_s:
        for port in set(ports) - set(found):
            with contextlib.suppress(httpx.TransportError):
                asked_s = time.monotonic()
                told = dict(SAMPLE.findall(plain_http.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text))
                looked_s = asked_s - float(told["poll_age_seconds"])
                if looked_s > back_s:
                    found[port] = max(0.0, looked_s - since_s[port])
                elif float(told["slots_busy"]) >= float(told["slots"]):
                    since_s[port] = asked_s
                    end_s = max(end_s, asked_s + PATIENCE_S)
        time.sleep(0.03)
    busy = sum(since_s[port] > back_s for port in ports)
    if busy:
        sys.stderr.write(f"{busy} of {len(ports)} workers had no slot free when the database was back\n")
    return [found.get(port, float("inf")) for port in ports]


def ends_without_plans(settings: Settings) -> Counter[str]:
    """How searches ended that have no plans, in their own words."""
    with open_services(settings) as services:
        items = [item for item in services.searches.list(limit=1000).items if not item.num_plans]
        views = [services.searches.get(item.id) for item in items]
    return Counter(f"{view.status}: {view.plan_set.error}" for view in views)
