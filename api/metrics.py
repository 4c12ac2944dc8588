"""Prometheus metrics of one app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from api.process_metrics import StoredNumbers, register_process

if TYPE_CHECKING:
    from autodeploy.services import Services

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
