"""Metrics of the process for Prometheus, and the health of a worker."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from autodeploy.kit.errors import AutoDeployError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import os_fault
from autodeploy.service.runner.memory_limit import resident_bytes
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.specs.planset import FINISHED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

    from autodeploy.service.runner.call_pool import CallPool
    from autodeploy.service.runner.runner import JobRunner
    from autodeploy.service.session import Services


# What servers and workers both say.
def register_process(registry: CollectorRegistry, services: Services) -> None:
    """Adds the numbers of this process; none of them asks the database."""
    ProcessCollector(registry=registry)
    registry.register(_Memory())
    if services.runner is not None:
        registry.register(_Runner(services.runner))
    if services.call_pool is not None:
        registry.register(_Calls(services.call_pool))


class _Quiet(Collector):
    """A collector that is not asked for its names when it is registered."""

    def describe(self) -> Iterable[Metric]:
        return []


class _Memory(_Quiet):
    def collect(self) -> Iterable[Metric]:
        text = "Resident memory of this process and those it started; pages that they share count for each"
        yield GaugeMetricFamily("autodeploy_tree_resident_memory_bytes", text, value=resident_bytes())


class _Runner(_Quiet):
    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner

    def collect(self) -> Iterable[Metric]:
        durations = HistogramMetricFamily(
            "autodeploy_search_duration_seconds",
            "Searches that this process ran: time from claim to end, by status",
            labels=["status"],
        )
        for status, (buckets, total_s) in self._runner.tally.durations().items():
            durations.add_metric([status], buckets, total_s)
        yield durations
        yield CounterMetricFamily(
            "autodeploy_search_process_deaths",
            "Processes that died of a search, which is then tried again or has failed",
            value=self._runner.tally.deaths(),
        )
        presence = self._runner.presence
        if presence is not None and presence.slots:
            text = "Seconds since this process looked into the queue; grows while no slot is free to look"
            yield GaugeMetricFamily("autodeploy_poll_age_seconds", text, value=presence.look_age_s)
            text = "Whether this process looked lately, or has no slot free to look for"
            yield GaugeMetricFamily("autodeploy_worker_live", text, value=float(presence.is_live))
            yield GaugeMetricFamily("autodeploy_slots", "Searches that this process runs at once", value=presence.slots)
            yield GaugeMetricFamily("autodeploy_slots_busy", "Searches that it runs now", value=presence.busy)


class _Calls(_Quiet):
    def __init__(self, pool: CallPool) -> None:
        self._pool = pool

    def collect(self) -> Iterable[Metric]:
        calls = GaugeMetricFamily(
            "autodeploy_calls", "Estimates, ablations and exports that a request waits for", labels=["state"]
        )
        calls.add_metric(["waiting"], self._pool.waiting)
        calls.add_metric(["running"], self._pool.in_use)
        yield calls
        yield GaugeMetricFamily("autodeploy_call_processes", "Processes for them", value=self._pool.num_processes)
        waits = HistogramMetricFamily("autodeploy_call_wait_seconds", "Time until such a call had a process")
        buckets, total_s = self._pool.tally.waits()
        waits.add_metric([], buckets, total_s)
        yield waits
        refused = CounterMetricFamily(
            "autodeploy_calls_refused",
            "Calls that were not answered: too many of the key, too many at all, too slow, process died",
            labels=["reason"],
        )
        for reason, count in self._pool.tally.refusals().items():
            refused.add_metric([reason], count)
        yield refused


class StoredNumbers(_Quiet):
    """Numbers of the database. While it is away only that is said."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterable[Metric]:
        try:
            metrics = [*self._numbers()]
        except DATABASE_ERRORS:
            metrics = []
        yield GaugeMetricFamily("autodeploy_database_up", "Whether the database answers", value=float(bool(metrics)))
        yield from metrics

    def _numbers(self) -> Iterable[Metric]:
        services = self._services
        searches = GaugeMetricFamily("autodeploy_searches", "Stored searches by status", labels=["status"])
        counts = services.searches.count_by_status()
        for status in ("queued", "running", *sorted(FINISHED)):
            searches.add_metric([status], counts.get(status, 0))
        yield searches
        age_s = services.queue_age_s()
        yield GaugeMetricFamily("autodeploy_queue_age_seconds", "Age of the oldest queued search", value=age_s)
        live = services.live_workers()
        yield GaugeMetricFamily("autodeploy_workers_live", "Processes that take searches", value=len(live))
        slots = GaugeMetricFamily("autodeploy_workers_slots", "Slots of live workers", labels=["state"])
        slots.add_metric(["busy"], sum(each.busy for each in live))
        slots.add_metric(["free"], sum(each.slots - each.busy for each in live))
        yield slots
        refused = float(services.database.refuses_writes)
        yield GaugeMetricFamily("autodeploy_writes_refused", "Whether writes were refused lately", value=refused)


_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """Counters of this process, and what the database says at the moment of asking."""

    def __init__(self, services: Services) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("autodeploy_http_requests", "Requests answered", labels, registry=self.registry)
        self.durations = Histogram(
            "autodeploy_http_request_duration_seconds",
            "Time to the end of the answer",
            ("method", "route"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        register_process(self.registry, services)
        self.registry.register(StoredNumbers(services))

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Counts one answered request. `route` is the path's template, so that labels stay few."""
        self.requests.labels(method, route, str(status)).inc()
        self.durations.labels(method, route).observe(duration_s)

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its media type."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4


# Whoever asks slower is not waited for.
CLIENT_S = 5.0


@contextmanager
def serving_health(services: Services) -> Iterator[int | None]:
    """Answers while the block runs, where a port is set; gives the port.

    Raises AutoDeployError when the address can't be listened on.
    """
    settings = services.settings
    if settings.worker_port is None:
        yield None
        return
    registry = CollectorRegistry()
    register_process(registry, services)

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_S

        def do_GET(self) -> None:
            if self.path == "/livez":
                self._livez()
            elif self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry))
            else:
                self._answer(404, "text/plain", b"/livez and /metrics\n")

        def _livez(self) -> None:
            """Alive is who looked into the queue lately, or has no slot free to look for."""
            presence = services.runner.presence if services.runner is not None else None
            current = presence is not None and presence.knows_tables
            alive = presence is not None and presence.is_live
            said = "ok" if alive else "no look into the queue for too long"
            body = {"status": said if current else "the database is at another revision: nothing is claimed"}
            self._answer(200 if alive and current else 503, "application/json", json.dumps(body).encode())

        def _answer(self, status: int, media_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: it is asked every few seconds."""

    try:
        server = ThreadingHTTPServer((settings.host, settings.worker_port), Handler)
    except OSError as error:
        raise AutoDeployError(
            Message("api.cannot_listen", address=f"{settings.host}:{settings.worker_port}", reason=os_fault(error)),
            hint="AUTODEPLOY_WORKER_PORT=PORT",
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
