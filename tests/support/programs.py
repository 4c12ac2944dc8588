"""The service's own programs as processes, as an operator starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.forked_processes import ForkedProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 90.0
STOP_LIMIT_S = 90.0


class Program:
    """`autodeploy ...` with an environment; its words go to a log.

    Parameters
    ----------
    module : run as a program.
    forked : from a process that has imported everything, to call `run` of the module; else it is a new interpreter.
    source : the tree whose program it is, run by the interpreter of its `.venv` if it has one of its own.
    """

    def __init__(
        self,
        arguments: list[str],
        environment: dict[str, str],
        log_path: Path,
        *,
        module: str = "autodeploy.cli.main",
        forked: bool = False,
        source: Path = ROOT,
    ) -> None:
        self._module, self._arguments, self._forked, self._source = module, arguments, forked, source
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTODEPLOY_")}
        # As in `tests/conftest.py`: tests themselves share the cores.
        self._environment = kept | {"PYTHONPATH": str(source), "AUTODEPLOY_CORES": "1"} | environment
        self._process: subprocess.Popen[bytes] | ForkedProgram | None = None
        self.log_path = log_path

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process is not None, "a program that was started"
        return self._process.pid

    def start(self) -> None:
        """Starts it; what it is ready for is asked elsewhere."""
        if self._forked:
            self._process = ForkedProgram(self._module, self._arguments, self._environment, self.log_path)
            return
        own = self._source / ".venv" / "bin" / "python"
        interpreter = sys.executable if self._source == ROOT or not own.exists() else str(own)
        command = [interpreter, "-m", self._module, *self._arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment, cwd=self._source, stdout=log, stderr=log, start_new_session=True
            )

    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    def wait(self) -> int:
        """The exit code of a program that ends by itself."""
        assert self._process is not None, "a program that was started"
        return self._process.wait(STOP_LIMIT_S)

    def send_signal(self, number: int) -> None:
        """A signal of the system."""
        assert self._process is not None, "a program that was started"
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: no last word."""
        assert self._process is not None, "a program that was started"
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, as an operator stops it; gives the exit code."""
        self.ask_to_stop()
        return self._stopped()

    def ask_to_stop(self) -> None:
        """SIGTERM, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def _stopped(self) -> int:
        if self._process is None:
            return 0
        try:
            return self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise


def stop_together(programs: Sequence[Program]) -> None:
    """As `stop` of each, at the same time."""
    with ExitStack() as stack:
        for program in programs:
            stack.callback(program._stopped)
            program.ask_to_stop()


def wait_until_ready(url: str, program: Program) -> None:
    """Returns when `/readyz` of the server says yes."""
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s and program.is_running():
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.02)
    raise RuntimeError(f"the server is not ready:\n{program.log_path.read_text(errors='replace')[-4000:]}")


def lives(pid: int) -> bool:
    """Whether the process runs; one that has ended may stay in the list of processes until somebody asks how."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    """The processes in which a program runs searches and predictions: its fork server has made them."""
    servers = [child for child, _ in _children(pid, b"forkserver")]
    # A forked program leads a session of its own.
    return [child for server in servers for child, session in _children(server, b"") if child != session]


def _children(pid: int, word: bytes) -> list[tuple[int, int]]:
    """Numbers and sessions of living processes that this one has made and whose name or command has that word."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
            state, parent, _, session = rest.split()[:4]
            command = name.encode() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == pid and state != "Z" and word in command:
            found.append((int(entry.name), int(session)))
    return found
