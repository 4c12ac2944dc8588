"""Runs the app under uvicorn."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog
import uvicorn

from api.app import create_app
from autodeploy.jobs.planning import PLANNER

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
    _Server(config, app).run()


def configure_logging(settings: Settings) -> None:
    """One line for each event on stderr, as JSON or for people; the standard library's loggers join in."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if settings.log_format == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove_meta, renderer])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
