"""The process from which those of searches and predictions are forked: it imports the planner once for all of them.

Importing this module is cheap.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from typing import TYPE_CHECKING

from autodeploy.kit.process import use_one_thread

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

IMPORTED_ONCE = ("autodeploy.service.runner.pool_process", "autodeploy.service.calls")


def fork_server(planner: str) -> ForkServerContext:
    """The context whose server imports that planner; it starts with the first process."""
    use_one_thread()
    # An arena for each thread would count against the memory limit, used or not.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED_ONCE, planner])
    return context


def start_early(planner: str) -> None:
    """Starts it while this process still imports what else it needs, which takes as long."""
    fork_server(planner)
    forkserver.ensure_running()
