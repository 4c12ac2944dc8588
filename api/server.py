"""The app under uvicorn: its address, its connections and their limits.

uvicorn waits for half a request for ever. Here a connection is closed when the headers or the body of a request are not
there in time, or when a part of the answer is not taken; and when there are too many, the one that has waited longest
without a request goes for the newcomer, or the newcomer is told that there is no room.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import os
import resource
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.app import create_app
from autodeploy.kit.errors import AutoDeployError
from autodeploy.kit.logs import configure_logging
from autodeploy.messages import Message
from autodeploy.service.runner.planning import PLANNER
from autodeploy.service.store.migration import ready_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from fastapi import FastAPI
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from autodeploy.kit.settings import Settings


REFUSED_S = 1.0  # how long the request of a client is waited for that is told "no room"
BACKLOG = 256  # connections that are accepted in one go
QUEUED = 2048  # connections that the kernel keeps until they are accepted
TOLD_EVERY_S = 10.0
LEAST_FILES_BESIDE = 48
FILES_BESIDE = 256  # databases, logs, pipes to processes

log = structlog.get_logger("api")


def _answer(status: int, phrase: str, slug: str, detail: str, *headers: str) -> bytes:
    problem = {"type": f"urn:autodeploy:problem:{slug}", "title": phrase, "status": status, "detail": detail}
    body = json.dumps(problem).encode()
    lines = [f"HTTP/1.1 {status} {phrase}", "Content-Type: application/problem+json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]).encode() + body


TOO_SLOW = _answer(408, "Request Timeout", "request-timeout", "the request did not come in time")
NO_ROOM = _answer(503, "Service Unavailable", "overloaded", "too many connections", "Retry-After: 2")


class GuardedConnection(H11Protocol):
    """One client's connection, with limits; `connection_class` gives the class for a server."""

    header_s: ClassVar[float]
    body_s: ClassVar[float]
    most: ClassVar[int]
    # Connections without a request, the one that has waited longest first.
    waiting: ClassVar[dict[GuardedConnection, None]]

    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _awaited: object = None
    _has_sent = False
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            if self.waiting:
                next(iter(self.waiting)).shed("no room for it")
            else:
                # Its request is read first: a client that is still sending would see a reset instead of the answer.
                self._is_refused = True
                self._timer = self.loop.call_later(REFUSED_S, self.shed, "no room")
                return
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_refused:
            self._close(NO_ROOM)
            return
        self._has_sent = True
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self._has_sent = False
        super().on_response_complete()
        self._has_sent = bool(self.conn.trailing_data[0])
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.body_s, self._not_taken)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel(self._write_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        self._cancel(self._timer)
        self._cancel(self._write_timer)
        super().connection_lost(exc)

    @property
    def _request(self) -> RequestResponseCycle | None:
        """The request that is or was answered last; None before the first, which uvicorn's own types leave out."""
        return self.cycle

    def shed(self, reason: str) -> None:
        """Closes the connection of a client that is too slow, or idle where others need its place."""
        if self.transport.is_closing():
            return
        log.info("connection_shed", reason=reason, client=self.client[0] if self.client else "")
        # Whoever sent nothing asked nothing: a browser would show the answer to the next thing that it asks.
        cycle = self._request
        is_open = self.conn.their_state is h11.IDLE or (cycle is not None and not cycle.response_started)
        self._close(TOO_SLOW if self._has_sent and is_open and not self._is_refused else b"")

    def _watch(self) -> None:
        """Sets the timer for what is awaited of the client now: a request, its body, or nothing."""
        awaited = self.conn.their_state if self.conn.their_state in {h11.IDLE, h11.SEND_BODY} else None
        if awaited is h11.IDLE:
            self.waiting.setdefault(self)
        else:
            self.waiting.pop(self, None)
        # After an answer uvicorn closes what stays silent; the time of the next request starts with its first byte.
        is_between = awaited is h11.IDLE and self._request is not None and not self._has_sent
        if is_between or awaited is not self._awaited or self._timer is None:
            self._cancel(self._timer)
            self._timer = None
            self._awaited = None if is_between else awaited
            if self._awaited is not None and not self.transport.is_closing():
                limit_s = self.header_s if awaited is h11.IDLE else self.body_s
                self._timer = self.loop.call_later(limit_s, self._late)

    def _late(self) -> None:
        self._timer = None
        if self.flow.read_paused:  # the application has not yet taken what came
            self._timer = self.loop.call_later(self.body_s, self._late)
            return
        self.shed("headers" if self._awaited is h11.IDLE else "body")

    def _not_taken(self) -> None:
        if not self.transport.is_closing():
            log.info("connection_shed", reason="answer not taken", client=self.client[0] if self.client else "")
        self.transport.abort()

    def _close(self, answer: bytes) -> None:
        cycle = self._request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.waiting.pop(self, None)
        if self.transport.get_write_buffer_size():  # it would wait for the client to take what is left
            self.transport.abort()
            return
        if answer:
            self.transport.write(answer)
        self.transport.close()

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def connection_class(settings: Settings, most: int | None = None) -> type[GuardedConnection]:
    """The class of a server's connections, with its limits; at most so many of them, by default as the settings say."""
    bound = settings.max_connections if most is None else most

    class Connection(GuardedConnection):
        header_s = settings.header_timeout_s
        body_s = settings.body_timeout_s
        most = bound
        waiting: ClassVar[dict[GuardedConnection, None]] = {}

    return Connection


@dataclass(frozen=True, slots=True)
class Room:
    """Connections that a server may have at once, and how many more the event loop takes before it looks at them."""

    connections: int
    backlog: int


def make_room(settings: Settings) -> Room:
    """Lets the process open as many files as it may have connections; fewer connections where the system allows less.

    A connection beyond them is still accepted, to be told that there is no room.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + BACKLOG + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else max(soft, min(wanted, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Room(settings.max_connections, BACKLOG)
    left = soft - min(FILES_BESIDE, max(LEAST_FILES_BESIDE, soft // 2))
    backlog = min(BACKLOG, max(1, left // 4))
    connections = min(settings.max_connections, max(1, left - backlog))
    if connections < settings.max_connections:
        log.warning("connections_lowered", files=soft, connections=connections, wanted=settings.max_connections)
    return Room(connections, backlog)


def tell_of_files_seldom(loop: asyncio.AbstractEventLoop) -> None:
    """A process without a file left says so once in a while, not once for each connection that it cannot accept."""
    told_s = float("-inf")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told_s
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}):
            loop.default_exception_handler(context)
        elif time.monotonic() - told_s >= TOLD_EVERY_S:
            told_s = time.monotonic()
            log.error("no_file_left", reason=str(error))

    loop.set_exception_handler(handle)


class _Server(uvicorn.Server):
    """Tells the app at once that it should stop: streams and waits end, so that requests can drain."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, when_ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._app = app
        self._when_ready = when_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        tell_of_files_seldom(asyncio.get_running_loop())
        await super().startup(sockets)
        if self.started:
            for each in self.servers[0].sockets:
                # Whoever finds the kernel's queue full asks again after a second, then after three, then after seven.
                # Asyncio's own backlog is also how many it accepts in one go, and each of those takes a file.
                with socket.socket(fileno=os.dup(each.fileno())) as listening:
                    listening.listen(QUEUED)
            port = self.servers[0].sockets[0].getsockname()[1]
            self._when_ready(address_of(self._app.state.settings, port))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.state.stopping.set()
        super().handle_exit(sig, frame)


def _refuse_taken_address(settings: Settings) -> None:
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = addresses[0]
        with socket.create_server(address[:2], family=family):
            pass
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # without the address again
        raise AutoDeployError(
            Message("api.cannot_listen", address=f"{settings.host}:{settings.port}", reason=reason),
            hint="--port PORT",
        ) from error


def address_of(settings: Settings, port: int) -> str:
    """Address of the pages for a browser on this machine."""
    host = settings.host
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        pass  # a name
    else:
        if number.is_unspecified:
            host = "127.0.0.1"
        elif number.version == 6:
            host = f"[{host}]"
    return f"http://{host}:{port}{settings.path_prefix}/"


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Configuration of uvicorn, with as many connections as the process may have files for."""
    room = make_room(settings)
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=connection_class(settings, room.connections),
        backlog=room.backlog,
        ws="none",
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies or "",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_s)),
    )


def serve(
    settings: Settings, *, planner: str = PLANNER, when_ready: Callable[[str], None] = lambda _address: None
) -> None:
    """Serves until the process is told to stop; then requests drain and running searches go back to the queue.

    when_ready : called with the address of the pages, once requests are answered.

    Raises SpecError when the server would be open to other machines without that being said; AutoDeployError when the
    address is taken, or the database is away or at another revision: said in one line before the server starts, which
    would tell it as a trace; DBAPIError when the database is for reading only, likewise.
    """
    settings.refuse_open_server()
    _refuse_taken_address(settings)
    database = ready_database(settings.database_url, settings.database_connections)
    try:
        configure_logging(settings)
        database.require_writes()
        app = create_app(settings, planner=planner, database=database, ready_first=True)
        # Uvicorn sends itself the signal again when everything is closed: a stop on request is no failure.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        _Server(server_config(app, settings), app, when_ready).run()
    finally:
        database.close()
