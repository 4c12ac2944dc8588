"""Runs asynchronous work that always ends: what does not end when it is cancelled is left behind.

A cancellation may get lost: `asyncio.wait_for` of Python 3.11 gives the result instead when both come at once, and
whoever catches every exception goes on after it. So nobody here waits for a task without an end to the waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

LOOK_S = 0.2
# What does not end in order is told again and again for so long.
REST_S = 1.0

log = logging.getLogger(__name__)


def run_bounded(work: Callable[[], Coroutine[Any, Any, None]], ending_s: Callable[[], float | None]) -> None:
    """Runs the coroutine on an event loop of its own until it returns, raises or has to end.

    Parameters
    ----------
    ending_s : asked all the time; None while the work may go on, else how many seconds it has to end in order.

    Raises
    ------
    Exception
        whatever the work raised before it had to end.
    """
    loop = asyncio.new_event_loop()
    # What was cut short has nothing to say that the reason for it did not.
    loop.set_exception_handler(lambda _, context: log.info("%s", context.get("message")))
    try:
        loop.run_until_complete(_run(work, ending_s))
    finally:
        # Does not wait for threads: what they do ends by its own time limits.
        loop.close()


async def _run(work: Callable[[], Coroutine[Any, Any, None]], ending_s: Callable[[], float | None]) -> None:
    main = asyncio.create_task(work(), name="work")
    limit_s = None
    while not main.done() and (limit_s := ending_s()) is None:
        await asyncio.wait({main}, timeout=LOOK_S)
    in_order = main.done()
    if not in_order:
        main.cancel()  # once: what it does to end in order is not cut short
        await asyncio.wait({main}, timeout=limit_s)
    left = await _cancel(asyncio.all_tasks() - {asyncio.current_task()})
    if left:
        log.error("left behind, for they ignored their cancellation: %s", "; ".join(sorted(map(_place, left))))
    if in_order and not main.cancelled() and (error := main.exception()) is not None:
        raise error


async def _cancel(tasks: Iterable[asyncio.Task[Any] | None]) -> set[asyncio.Task[Any]]:
    """Cancels the tasks, again and again; those that still run after `REST_S`."""
    end_s = time.monotonic() + REST_S
    pending = {task for task in tasks if task is not None and not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=LOOK_S)
        if time.monotonic() >= end_s:
            break
    return pending


def _place(task: asyncio.Task[Any]) -> str:
    """The task's name and the line it waits at."""
    frames = task.get_stack(limit=1)
    where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "nowhere"
    return f"{task.get_name()} at {where}"
