"""Asynchronous work that always ends, also where a cancellation is swallowed."""

from __future__ import annotations

import asyncio
import gc
import logging
import time

import pytest

from autodeploy.service.runner import distributed as loop
from autodeploy.service.runner.distributed import run_bounded

REST_S = 0.3


@pytest.fixture(autouse=True)
def _short_rest(monkeypatch):
    """What is deaf is told for a shorter time, and collected here: not while a later test parses (CPython 3.11)."""
    monkeypatch.setattr(loop, "REST_S", REST_S)
    yield
    gc.collect()


async def deaf(beats: list[float]) -> None:
    """Goes on whatever is raised in it, as a loop does whose cancellation was lost."""
    while True:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            beats.append(time.monotonic())


def test_work_that_returns_or_raises_is_over_at_once():
    done = []

    async def work() -> None:
        done.append(await asyncio.sleep(0.01, "done"))

    async def fail() -> None:
        raise RuntimeError("the database is gone")

    run_bounded(work, lambda: None)
    assert done == ["done"]
    with pytest.raises(RuntimeError, match="gone"):
        run_bounded(fail, lambda: None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_work_that_swallows_its_cancellation_is_left_behind(caplog):
    cancelled: list[float] = []
    started_s = time.monotonic()
    with caplog.at_level(logging.ERROR):
        run_bounded(lambda: deaf(cancelled), lambda: 0.3 if time.monotonic() - started_s > 0.2 else None)
    assert len(cancelled) >= 3  # once, and then again and again
    assert time.monotonic() - started_s < 0.2 + 0.3 + REST_S + 1.5
    assert "work at" in caplog.text
    assert "test_loop_with_deadline.py" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_beside_the_work_that_swallows_its_cancellation_is_left_behind():
    cancelled: list[float] = []
    kept = []

    async def work() -> None:
        kept.append(asyncio.create_task(deaf(cancelled), name="watch"))
        await asyncio.sleep(0.01)
        raise RuntimeError("the database is gone")

    started_s = time.monotonic()
    with pytest.raises(RuntimeError, match="gone"):
        run_bounded(work, lambda: None)
    assert cancelled
    assert time.monotonic() - started_s < REST_S + 1.5


def test_work_ends_in_order_where_it_can():
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.5)
            ended.append("in order")

    started_s = time.monotonic()
    run_bounded(work, lambda: 5.0 if time.monotonic() - started_s > 0.3 else None)
    assert ended == ["in order"]
