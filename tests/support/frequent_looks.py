"""Waits for a page that look often: Playwright's own, after the first quarter of a second, look once in half of one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from playwright._impl._errors import TimeoutError as TooLate
from playwright._impl.assertions import LocatorAssertions
from playwright._impl.protocol_channels import FrameChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

# Playwright leaves out pauses above a fifth of a limit: within this one it looks at once, after 20 ms, and each 50 ms.
SPELL_MS = 250.0


def look_often(patch: pytest.MonkeyPatch) -> None:
    """`expect` and waits for elements wait in short spells until their own limits are over."""
    expect, wait = LocatorAssertions._call_expect, FrameChannel.waitForSelector

    async def call_expect(self: Any, expression: str, options: Any, title: str | None) -> Any:
        left_ms = _countdown(options["timeout"])
        while True:
            found = await expect(self, expression, options | {"timeout": _spell(left_ms)}, title)
            if not found.get("timedOut") or left_ms() <= 0.0:
                return found

    async def wait_for_selector(self: Any, *, timeout: float, **wanted: Any) -> Any:
        left_ms = _countdown(timeout)
        while True:
            try:
                return await wait(self, **wanted, timeout=_spell(left_ms))
            except TooLate:
                if left_ms() <= 0.0:
                    raise

    patch.setattr(LocatorAssertions, "_call_expect", call_expect)
    patch.setattr(FrameChannel, "waitForSelector", wait_for_selector)


def _countdown(limit_ms: float) -> Callable[[], float]:
    """How much of a limit is left; 0 stands for none, as Playwright has it."""
    end_s = time.monotonic() + (limit_ms / 1e3 or float("inf"))
    return lambda: 1e3 * (end_s - time.monotonic())


def _spell(left_ms: Callable[[], float]) -> float:
    return max(1.0, min(SPELL_MS, left_ms()))
