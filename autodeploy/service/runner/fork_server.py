"""The process from which those of searches and predictions are forked: it imports the planner once for all of them.

Importing this module is cheap.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
from functools import cache
from multiprocessing import forkserver, process, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autodeploy.kit.process import use_one_thread
from autodeploy.service.runner.owner import Owner

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

FOLDER = "autodeploy-"
MOST_CHARACTERS = 80  # the address of a socket has 107, and its name follows
IMPORTED_ONCE = ("autodeploy.service.session",)


def fork_server(planner: str) -> ForkServerContext:
    """The context whose server imports that planner; it starts with the first process."""
    use_one_thread()
    _use_own_folder()
    _end_with_this_process()
    # An arena for each thread would count against the memory limit, used or not.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED_ONCE, planner])
    return context


def _use_own_folder() -> None:
    """Gives multiprocessing, which listens in it, a folder that names its process; those of the dead are removed."""
    own = process.current_process()._config  # type: ignore[attr-defined]
    if own.get("tempdir"):
        return
    remove_left_folders()
    prefix = f"{FOLDER}{str(Owner(token='')).rpartition('/')[2]}-"
    if len(tempfile.gettempdir()) + len(prefix) > MOST_CHARACTERS:
        return
    own["tempdir"] = tempfile.mkdtemp(prefix=prefix)
    util.Finalize(None, shutil.rmtree, args=(own["tempdir"], True), exitpriority=-100)


@cache
def _end_with_this_process() -> None:
    """Lets the server end before its process does: by itself it would end later, once it has imported everything."""
    util.Finalize(None, _end, exitpriority=-50)  # processes of pools have ended, its folder is removed afterwards


def _end() -> None:
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()


def remove_left_folders() -> None:
    """Removes the folders of processes of this machine that were killed."""
    me = Owner()
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        owner = folder.name.removeprefix(FOLDER).rpartition("-")[0]
        if folder.is_dir() and not folder.is_symlink() and me.is_dead(f"{me.space.rpartition('/')[0]}/{owner}"):
            shutil.rmtree(folder, ignore_errors=True)


def start_early(planner: str) -> None:
    """Starts it while this process still imports what else it needs, which takes as long."""
    fork_server(planner)
    forkserver.ensure_running()
