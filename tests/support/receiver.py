"""A receiver of webhooks on loopback that behaves as its path says, and keeps what came."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW_S = 8.0


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float


@dataclass
class Receiver:
    """Requests in the order they came. `failures`: so many requests to /flaky are answered with 503 first."""

    url: str = ""
    port: int = 0
    failures: int = 1
    requests: list[Received] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def of(self, path: str) -> list[Received]:
        """What came to that path."""
        return [request for request in self.requests if request.path.partition("?")[0] == path]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver: /ok, /flaky, /slow (answers after SLOW_S), /drip (a byte now and then), /redirect, /gone, /error."""
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.requests.append(Received(self.path, dict(self.headers.items()), body, time.monotonic()))
            path = self.path.partition("?")[0]
            if path == "/slow":
                kept.released.wait(SLOW_S)
            if path == "/drip":
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000:
                    if kept.released.wait(0.1):
                        return
                    try:
                        self.wfile.write(bytes([byte]))
                    except OSError:
                        return
            if path == "/redirect":
                self.send_response(307)
                self.send_header("Location", f"{kept.url}/ok")
            elif path == "/flaky" and len(kept.of("/flaky")) <= kept.failures:
                self.send_response(503)
            else:
                self.send_response({"/gone": 410, "/error": 500}.get(path, 204))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            kept.requests.append(Received("GET " + self.path, {}, b"", time.monotonic()))
            self.send_error(405)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is written."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A sender that hung up is no error here."""

    with Server(("127.0.0.1", 0), Handler) as server:
        kept.port = server.server_address[1]
        kept.url = f"http://127.0.0.1:{kept.port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield kept
        finally:
            kept.released.set()
            server.shutdown()
            thread.join()
