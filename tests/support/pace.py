"""Limits of processor time that mean the same work on every machine, busy or slow."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

ADDITIONS = 400_000
USUAL_S = 0.02  # of ADDITIONS, on the machine that limits were set on
# The same in a page: a loop of floating point, which no browser takes apart.
IN_A_PAGE = """() => {
  const began = performance.now();
  let sum = 0;
  for (let i = 1; i <= 4e6; i++) sum += Math.sqrt(i) % 3;
  return sum > 0 ? performance.now() - began : 0;
}"""
USUAL_IN_A_PAGE_MS = 25.0


def limit_here_s(limit_s: float) -> float:
    """Seconds of this thread that take now what `limit_s` take on the usual machine; at least `limit_s`."""
    began_s = time.thread_time()
    total = 0
    for number in range(ADDITIONS):
        total += number
    return limit_s * max(1.0, (time.thread_time() - began_s) / USUAL_S)


@contextmanager
def at_most(limit_s: float) -> Iterator[None]:
    """Fail where the block takes more than `limit_s` of this thread's processor time on the usual machine.

    The loop is measured before and after, so that a machine which became slow within the block is known to be so.
    """
    before_s = limit_here_s(limit_s)
    began_s = time.thread_time()
    yield
    took_s = time.thread_time() - began_s
    allowed_s = max(before_s, limit_here_s(limit_s))
    assert took_s < allowed_s, f"{took_s:.3f} s of the processor, at most {allowed_s:.3f} s allowed here"


def slowness_of(page: Page) -> float:
    """Times that the main thread of a page takes longer than on the usual machine; at least 1."""
    return max(1.0, float(page.evaluate(IN_A_PAGE)) / USUAL_IN_A_PAGE_MS)
