"""Runs the app under uvicorn."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from api.app import create_app
from api.connections import connection_class, make_room, tell_of_files_seldom
from autodeploy.kit.errors import AutoDeployError
from autodeploy.kit.logs import configure_logging
from autodeploy.messages import Message
from autodeploy.service.runner.planning import PLANNER
from autodeploy.service.store.migration import ready_database

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from fastapi import FastAPI

    from autodeploy.kit.settings import Settings


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
    """Where a browser on this machine finds the pages."""
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
    """How uvicorn serves the app, with as many connections as the process may have files for."""
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

    Parameters
    ----------
    when_ready : called with the address of the pages, once requests are answered.

    Raises
    ------
    SpecError
        when the server would be open to other machines without that being said.
    AutoDeployError
        when the address is taken, or the database is away or at another revision: said in one line before the server
        starts, which would tell it as a trace.
    """
    settings.refuse_open_server()
    _refuse_taken_address(settings)
    database = ready_database(settings.database_url, settings.database_connections)
    try:
        configure_logging(settings)
        app = create_app(settings, planner=planner, database=database, ready_first=True)
        # Uvicorn sends itself the signal again when everything is closed: a stop on request is no failure.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        _Server(server_config(app, settings), app, when_ready).run()
    finally:
        database.close()
