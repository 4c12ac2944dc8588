"""Processes of services that run inside a test: forked from one that has imported the planners, not made from nothing.

A new interpreter takes a second to import what a search needs; some three hundred tests start a service. Programs that
are started as an operator starts them, and tests of the processes themselves, make new interpreters all the same.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autodeploy.jobs import pool_process
from autodeploy.own_process import use_one_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import BaseContext

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = ["autodeploy.jobs.pool_process", "autodeploy.services.calls", "autodeploy.planner", "tests.quick_planner"]
NEW_INTERPRETER = pool_process.new_pool


@contextmanager
def processes(*, forked: bool) -> Iterator[None]:
    """Services that start inside the block fork their processes, or make them as the product does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_process, "new_pool", new_pool if forked else NEW_INTERPRETER)
        yield


def new_pool(planner: str, memory_bytes: int, niceness: int = pool_process.NICENESS) -> ProcessPoolExecutor:
    """As `pool_process.new_pool`, whose place it takes."""
    use_one_thread()
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=_context(),
        initializer=_prepare,
        initargs=(dict(os.environ), planner, memory_bytes, niceness),
    )


def _context() -> BaseContext:
    """The context whose server has imported the planners; it starts with the first pool."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)  # the server looks for modules before it is told where
    try:
        forkserver.ensure_running()
    finally:
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path
    return context


def _prepare(environment: dict[str, str], planner: str, memory_bytes: int, niceness: int) -> None:
    """As a new interpreter: with its parent's variables, not those that the server began with."""
    os.environ.clear()
    os.environ.update(environment)
    pool_process.prepare(planner, memory_bytes, niceness)
