"""Processes of services and whole programs, forked from one that has imported everything, not made from nothing.

A new interpreter takes a second or two to import what a search needs, and a server as long again to get ready; some
three hundred tests start a service. Tests of the programs as an operator starts them make new interpreters.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import forkserver, util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autodeploy.kit.process import use_one_thread
from autodeploy.service.runner import processes as product
from tests.support import forked_server, kept_processes
from tests.support.kept_processes import KeptPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.context import ForkServerContext

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = ["tests.support.preloaded"]
CLOCK_AHEAD_S = "TESTS_CLOCK_AHEAD_S"
MACHINE = "TESTS_MACHINE"
FILES = "TESTS_FILES"
PRODUCTS_OWN = product.new_pool


@contextmanager
def processes(*, forked: bool) -> Iterator[None]:
    """Services that start inside the block fork their processes from the tests' server and keep them for the next, or
    they make and end them as the product.
    """
    kept_processes.end_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "new_pool", new_pool if forked else PRODUCTS_OWN)
        if forked:
            kept_processes.keep_processes(patch)
        try:
            yield
        finally:
            kept_processes.end_all()


def new_pool(planner: str, memory_bytes: int, niceness: int = product.NICENESS) -> ProcessPoolExecutor:
    """As `processes.new_pool`, whose place it takes."""
    use_one_thread()
    how = kept_processes.made_as(planner, memory_bytes, niceness)
    kept = kept_processes.take(how)
    if kept is not None:
        return kept
    pool = KeptPool(
        max_workers=1,
        mp_context=_context(),
        initializer=_prepare,
        initargs=(dict(os.environ), planner, memory_bytes, niceness),
    )
    pool.how = how
    return pool


def _context() -> ForkServerContext:
    """The context whose server has imported everything; it starts with the first process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)  # the server looks for modules before it is told where
    try:
        with forked_server.in_place_of_an_interpreter():
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
    product.prepare(planner, memory_bytes, niceness)


class ForkedProgram:
    """What `subprocess.Popen` is to a program in a new interpreter, in a session of its own.

    `run` of the module is called, which reads `sys.argv[1:]`.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: dict[str, str], log_path: Path) -> None:
        use_one_thread()
        self._process = _context().Process(target=_run, args=(module, list(arguments), environment, log_path))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code of a process that has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(module: str, arguments: list[str], environment: dict[str, str], log_path: Path) -> None:
    os.setsid()
    with log_path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    _be_elsewhere(environment)
    os.chdir(ROOT)
    _fork_own_server()
    sys.argv = [module, *arguments]
    import_module(module).run()


def _be_elsewhere(environment: dict[str, str]) -> None:
    """As a process of another machine, whose clock is ahead by seconds, unlike its counters; or with few files."""
    ahead_s, machine = float(environment.get(CLOCK_AHEAD_S, "0")), environment.get(MACHINE)
    if ahead_s:
        true_time = time.time
        time.time = lambda: true_time() + ahead_s
    if FILES in environment:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(environment[FILES]),) * 2)
    if machine:
        hostname = f"{socket.gethostname()}-{machine}"
        socket.gethostname = lambda: hostname


def _fork_own_server() -> None:
    """Gives this program the process that forks its others, as the product starts one, without an interpreter.

    Before it has threads: then a fork is safe.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(util, "spawnv_passfds", _fork_and_run)
        multiprocessing.get_context("forkserver").set_forkserver_preload([])
        forkserver.ensure_running()


def _fork_and_run(_path: str, arguments: Sequence[str], kept: Sequence[int]) -> int:
    """In the place of `multiprocessing.util.spawnv_passfds`: runs the code that a new interpreter would be given."""
    pid = os.fork()
    if pid:
        return pid
    try:
        forked_server.close_all_but(kept)
        exec(arguments[-1])
    finally:
        os._exit(0)
