"""A worker's own address: /livez for whoever restarts it, /metrics for Prometheus. Numbers only, and no key."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from api.metrics import register_process
from autodeploy.kit.errors import AutoDeployError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import os_fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.service.session import Services

# Whoever asks slower is not waited for.
CLIENT_S = 5.0


@contextmanager
def serving_health(services: Services) -> Iterator[int | None]:
    """Answers while the block runs, where a port is set; gives the port.

    Raises
    ------
    AutoDeployError
        when the address can't be listened on.
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
