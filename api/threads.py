"""How many threads answer requests, and where slow ones wait.

Threads of Python take turns: more of them than this answer no more requests a second, each only waits for more others,
and so does the event loop that answers /livez.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import Request

Answer = TypeVar("Answer")
Parameters = ParamSpec("Parameters")
THREADS = 4
SLOW_THREADS = 16
# Submissions wait for each other in the database anyway; there they would hold the threads that readers need.
SUBMIT_THREADS = 2
# Bodies that wait for the process that reads them; fewer than a key's places there, so that none is refused.
READ_THREADS = 4
# How long a computing thread keeps the event loop waiting; Python's own 5 ms times THREADS would be felt.
SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True, slots=True)
class Places:
    """Threads beside those of quick requests."""

    slow: anyio.CapacityLimiter
    submit: anyio.CapacityLimiter
    read: anyio.CapacityLimiter


def prepare_threads() -> Places:
    """Bounds the threads of this event loop."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    return Places(*map(anyio.CapacityLimiter, (SLOW_THREADS, SUBMIT_THREADS, READ_THREADS)))


async def run_slowly(request: Request, function: Callable[..., Answer], *args: object, **kwargs: object) -> Answer:
    """What takes a second or waits for another process runs where no quick request waits behind it."""
    places: Places = request.app.state.places
    return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), limiter=places.slow)


def slowly(page: Callable[Parameters, Answer]) -> Callable[Parameters, Awaitable[Answer]]:
    """An endpoint of pages that `run_slowly` runs; it takes the request as its argument of that name."""

    @wraps(page)
    async def answer(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer:
        request = cast("Request", kwargs["request"])
        return await run_slowly(request, partial(page, *args, **kwargs))

    return answer


async def run_submission(request: Request, function: Callable[[], Answer]) -> Answer:
    """A submission runs where readers do not wait behind it."""
    places: Places = request.app.state.places
    return await anyio.to_thread.run_sync(function, limiter=places.submit)


async def run_reading(request: Request, function: Callable[..., Answer], *args: object) -> Answer:
    """What waits for the process that reads documents runs where no quick request waits behind it."""
    places: Places = request.app.state.places
    return await anyio.to_thread.run_sync(partial(function, *args), limiter=places.read)
