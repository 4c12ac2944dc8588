"""Many clients at once: each looks, submits or follows as people and their scripts do, and pauses in between.

The load is closed: a client asks again when it was answered and has paused. What was offered is reported beside the
answers, and so is the load of the machine, which is seldom alone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from tests.faults.ledger import SPEC
from tests.support.figures import report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.service import Service

READERS, POSTERS, FOLLOWERS = 120, 40, 40
# On average, between an answer and the next question of one client: a page that is read, a job of CI.
READ_PAUSE_S, SUBMIT_PAUSE_S = 2.0, 10.0
NEW_SPECS = 0.2  # of all POSTs ask for something that was not planned before
LIVEZ_EVERY_S = 0.1
P99_READ_LIMIT_MS, LIVEZ_LIMIT_MS, CACHED_POST_LIMIT_MS = 250.0, 50.0, 50.0
READS = ("list", "detail")


@dataclass
class Seen:
    """Answers of all clients: times by kind, statuses, events."""

    times_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[int] = field(default_factory=Counter)
    events: int = 0

    async def timed(self, kind: str, request: Awaitable[httpx.Response]) -> httpx.Response:
        """The answer, its time and status noted."""
        started_s = time.perf_counter()
        response = await request
        self.times_ms[kind].append((time.perf_counter() - started_s) * 1e3)
        self.statuses[response.status_code] += 1
        return response


class Clients:
    """What each kind of client does in one turn."""

    def __init__(self, http: httpx.AsyncClient, seen: Seen, random_: random.Random) -> None:
        self._http, self._seen, self._random = http, seen, random_
        self._batches = itertools.count(2)
        self._known: list[str] = []

    async def read(self) -> None:
        """The list as often as one of the searches in it."""
        if self._random.random() < 0.5 or not self._known:
            answer = await self._seen.timed("list", self._http.get("/v1/searches", params={"limit": 20}))
            self._known = [item["id"] for item in answer.json()["items"]]
        else:
            address = f"/v1/searches/{self._random.choice(self._known)}"
            await self._seen.timed("detail", self._http.get(address))

    async def post(self) -> None:
        """Mostly a spec that was planned before, as a repeated CI run sends it."""
        if self._random.random() < NEW_SPECS:
            await self._seen.timed("new post", self._http.post("/v1/searches", json=self._new_spec()))
        else:
            await self._seen.timed("cached post", self._http.post("/v1/searches", json=SPEC))

    async def follow(self) -> None:
        """A search of this client's, to its last event."""
        spec = self._new_spec() if self._random.random() < NEW_SPECS else SPEC
        answer = await self._seen.timed("post to follow", self._http.post("/v1/searches", json=spec))
        if answer.is_error:
            return
        async with self._http.stream("GET", answer.headers["Location"] + "/events", timeout=None) as stream:
            self._seen.statuses[stream.status_code] += 1
            async for line in stream.aiter_lines():
                self._seen.events += line.startswith("event:")

    def _new_spec(self) -> dict[str, Any]:
        return SPEC | {"training": SPEC["training"] | {"global_batch_size": 8 * next(self._batches)}}


def measure(service: Service, seconds: float, case: str, *, seed: int) -> bool:
    """Runs the clients and reports; whether every limit was kept."""
    before = os.getloadavg()[0]
    seen, livez_ms = asyncio.run(_run(service.urls[0], seconds, random.Random(seed)))
    reads = sorted(time_ms for kind in READS for time_ms in seen.times_ms[kind])
    errors = sum(count for status, count in seen.statuses.items() if status >= 500)
    refused = sum(count for status, count in seen.statuses.items() if 400 <= status < 500)
    p99_ms = statistics.quantiles(reads, n=100)[-1]
    report("load_average_before", before, "processes", case)
    report("load_requests", sum(seen.statuses.values()) / seconds, "requests/s", case)
    report("load_events", seen.events, "count", case)
    report("load_5xx", errors, "count", case)
    report("load_4xx", refused, "count", case)
    report("load_read_median", statistics.median(reads), "ms", case)
    report("load_read_p99", p99_ms, "ms", case)
    report("load_cached_post_median", statistics.median(seen.times_ms["cached post"]), "ms", case)
    report("load_livez_slowest", max(livez_ms), "ms", case)
    report("load_livez_p99", statistics.quantiles(livez_ms, n=100)[-1], "ms", case)
    return errors == refused == 0 and p99_ms <= P99_READ_LIMIT_MS and max(livez_ms) <= LIVEZ_LIMIT_MS


def measure_cached_post(service: Service, case: str) -> bool:
    """A POST that is answered from a search before, with nobody else there; whether it stays within its limit."""
    with httpx.Client(base_url=service.urls[0], timeout=60) as client:
        client.post("/v1/searches", json=SPEC, headers={"Prefer": "wait=60"}).raise_for_status()
        times_ms = []
        for _ in range(100):
            started_s = time.perf_counter()
            answer = client.post("/v1/searches", json=SPEC)
            times_ms.append((time.perf_counter() - started_s) * 1e3)
            assert answer.json()["cached"] is True
    p95_ms = statistics.quantiles(times_ms, n=20)[-1]
    report("cached_post_median", statistics.median(times_ms), "ms", case)
    report("cached_post_p95", p95_ms, "ms", case)
    return p95_ms <= CACHED_POST_LIMIT_MS


async def _run(url: str, seconds: float, random_: random.Random) -> tuple[Seen, list[float]]:
    seen = Seen()
    # Shorter than the server keeps an idle connection, so that none is used that it just closed.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=3.0)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        clients = Clients(http, seen, random_)
        kinds = [
            (clients.read, READERS, READ_PAUSE_S),
            (clients.post, POSTERS, SUBMIT_PAUSE_S),
            (clients.follow, FOLLOWERS, SUBMIT_PAUSE_S),
        ]
        end_s = time.monotonic() + seconds
        turns = [_turns(act, end_s, pause_s, random_) for act, count, pause_s in kinds for _ in range(count)]
        probe = asyncio.create_task(_livez(url, end_s))
        await asyncio.gather(*turns)
        return seen, await probe


async def _turns(act: Callable[[], Awaitable[None]], end_s: float, pause_s: float, random_: random.Random) -> None:
    await asyncio.sleep(random_.random() * pause_s)  # not all at once
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            await asyncio.wait_for(act(), left_s)
        except TimeoutError:  # the minute is over
            return
        await asyncio.sleep(random_.expovariate(1 / pause_s))


async def _livez(url: str, end_s: float) -> list[float]:
    """From a process of its own, so that the clients' own work does not count."""
    probe = await asyncio.create_subprocess_exec(
        *_probe_command(url, end_s - time.monotonic()), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await probe.communicate()
    return [float(line) for line in output.split()]


def _probe_command(url: str, seconds: float) -> list[str]:
    return [sys.executable, "-m", "tests.soak.probe", url, str(seconds), str(LIVEZ_EVERY_S)]
