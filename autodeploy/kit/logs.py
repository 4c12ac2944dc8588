"""The log of a service process: one line for each event on stderr, as JSON or for people."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from autodeploy.kit.settings import Settings


# An API key, or a password in an address.
_SECRETS = re.compile(r"(ad[ks]_)[A-Za-z0-9_-]{8,}|(://[^\s:/@]*:)[^\s/@]+(?=@)")


def without_secrets(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The event without keys and passwords, should one have found its way into a message or a trace."""
    return {name: _hidden(value) if isinstance(value, str) else value for name, value in event.items()}


def _hidden(text: str) -> str:
    return _SECRETS.sub(lambda found: (found[1] or found[2]) + "***", text)


def configure_logging(settings: Settings) -> None:
    """Sets up structlog; the standard library's loggers join in."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if settings.log_format == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
        shared.append(without_secrets)
    else:
        shared.append(without_secrets)
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),  # levels are the standard library's
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


def log_warnings() -> None:
    """Sets up structlog for a command: warnings alone, on stderr; stdout has what the command prints."""
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
            cache_logger_on_first_use=False,
        )
