"""Finds the machine's own Chromium; no browser is ever downloaded."""

from __future__ import annotations

import os
import shutil

# The shell has no window and no pages of its own: it starts in half of the time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Chromium's sandbox refuses root, and containers give /dev/shm too little room.
ROOT_OPTIONS = ("--no-sandbox",)
# A process that only draws takes as long again to hand its pictures over.
OPTIONS = ("--disable-dev-shm-usage", "--disable-gpu", "--in-process-gpu")


def chromium_path() -> str | None:
    """The path of the browser, None without one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def launch_options() -> list[str]:
    """Command-line options that let the browser run where tests run."""
    return [*OPTIONS, *(ROOT_OPTIONS if os.geteuid() == 0 else ())]
