"""Prometheus metrics of one app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from autodeploy.specs.planset import FINISHED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """Counters of this process, and the searches in the database at the moment of asking."""

    def __init__(self, count_by_status: Callable[[], dict[str, int]]) -> None:
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
        self.registry.register(_Searches(count_by_status))

    def observe(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Counts one answered request. `route` is the path's template, so that labels stay few."""
        self.requests.labels(method, route, str(status)).inc()
        self.durations.labels(method, route).observe(duration_s)

    def render(self) -> tuple[bytes, str]:
        """The exposition text and its media type."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4


class _Searches(Collector):
    def __init__(self, count_by_status: Callable[[], dict[str, int]]) -> None:
        self._count_by_status = count_by_status

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        gauge = GaugeMetricFamily("autodeploy_searches", "Stored searches by status", labels=["status"])
        counts = self._count_by_status()
        for status in ("queued", "running", *sorted(FINISHED)):
            gauge.add_metric([status], counts.get(status, 0))
        yield gauge
