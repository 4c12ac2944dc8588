"""Runs the app under uvicorn."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import uvicorn

from api.app import create_app
from autodeploy.jobs.planning import PLANNER
from autodeploy.logs import configure_logging

if TYPE_CHECKING:
    from types import FrameType

    from fastapi import FastAPI

    from autodeploy.settings import Settings


class _Server(uvicorn.Server):
    """Tells the app at once that it should stop: streams and waits end, so that requests can drain."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.state.stopping.set()
        super().handle_exit(sig, frame)


def serve(settings: Settings, *, planner: str = PLANNER) -> None:
    """Serves until the process is told to stop; then requests drain and running searches go back to the queue.

    Raises
    ------
    SpecError
        when the server would be open to other machines without that being said.
    """
    settings.refuse_open_server()
    configure_logging(settings)
    app = create_app(settings, planner=planner)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_s)),
    )
    # Uvicorn sends itself the signal again when everything is closed: a stop on request is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _Server(config, app).run()
