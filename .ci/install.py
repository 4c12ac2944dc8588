"""Installs requirements.lock and then this project into the environment whose Python runs this file.

Two processes install half of the packages each, and loops are compiled beside the rest: most machines have two cores.

`install.py runtime` leaves out what only developing needs; `install.py probe` installs the extra `probe` alone, which
is not locked: torch from whichever index pip is set to, for `make soak`. pip's own output goes to a log; a person sees
one line of progress, and the end of the log when it fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from runtime_lock import locked_blocks, part_of, runtime_names

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
MINIMUM = (3, 11)
LOG_TAIL_LINES = 25
BEAT_S = 10.0
# What an editable install is made with.
BUILD = frozenset({"hatchling", "editables"})


def count_packages(lock: str) -> int:
    """How many packages a lock names."""
    return len(re.findall(r"^[A-Za-z0-9][\w.\-]*==", lock, flags=re.MULTILINE))


def halves(lock: str) -> tuple[str, str]:
    """A lock as two, whose packages come to about the same size."""
    blocks = [block for block, _ in locked_blocks(lock).values()]
    return "\n".join(blocks[::2]), "\n".join(blocks[1::2])


def pip(*arguments: str, total: int = 0, numbers: Iterator[int] | None = None) -> list[str]:
    """Runs pip and shows how many of `total` packages it has looked at. Exits with pip's status on failure.

    numbers : counts the packages, of several at a time.
    """
    options = ["--disable-pip-version-check", "--no-color", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", *options, *arguments]
    started_s = time.monotonic()
    log: list[str] = []
    numbers = numbers or count(1)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.append(line)
            if line.startswith(("Collecting ", "Processing ", "Requirement already satisfied")) and total:
                seen = next(numbers)
                show(f"  {min(seen, total)} of {total} packages, {time.monotonic() - started_s:.0f} s", step=seen)
            elif line.startswith("Installing collected packages") and total:
                names = line.count(",") + 1
                show(f"  unpacking {names} of {total} packages, {time.monotonic() - started_s:.0f} s", step=0)
    if process.returncode:
        print("\npip could not install; the end of its output:", *log[-LOG_TAIL_LINES:], sep="\n", file=sys.stderr)
        sys.exit(process.returncode)
    return log


@contextmanager
def heartbeat(doing: str, started_s: float) -> Iterator[None]:
    """Says every ten seconds that something long goes on."""
    over = Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            show(f"  still {doing}, {time.monotonic() - started_s:.0f} s", step=0)

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def install_packages(lock: str, total: int) -> None:
    """All packages of a lock, which names what they need."""
    numbers = count(1)

    def install(half: str) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".lock", encoding="utf-8") as wanted:
            wanted.write(half)
            wanted.flush()
            pip("--no-deps", "--require-hashes", "--requirement", wanted.name, total=total, numbers=numbers)

    with ThreadPoolExecutor() as threads:
        list(threads.map(install, halves(lock)))


def install_project() -> None:
    """This project, the bytecode of what it imports, and its compiled loops."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # On more cores a search would compile the loops in each of its processes.
    environment |= {"PYTHONPATH": str(ROOT), "AUTODEPLOY_CORES": "1"}
    warm_up = [sys.executable, str(Path(__file__).with_name("warm_up.py"))]
    with subprocess.Popen([*warm_up, "loops"], cwd=ROOT, env=environment) as loops:
        pip("--no-deps", "--no-build-isolation", "--editable", ".")
        subprocess.run([*warm_up, "modules"], cwd=ROOT, env=environment, check=True)
    if loops.returncode:
        sys.exit(loops.returncode)


def show(text: str, step: int) -> None:
    """A line that replaces itself on a terminal; elsewhere a line for every 20 packages."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)
    elif step % 20 == 0:
        print(text, file=sys.stderr, flush=True)


def main() -> None:
    if sys.version_info < MINIMUM:
        sys.exit(f"Python {'.'.join(map(str, MINIMUM))} or newer is needed, this is {sys.version.split()[0]}.")
    if sys.argv[1:] == ["probe"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        with heartbeat("at torch", time.monotonic()):
            pip(*project["optional-dependencies"]["probe"])
        return
    lock = LOCK.read_text(encoding="utf-8")
    if sys.argv[1:] == ["runtime"]:
        lock = part_of(lock, runtime_names() | BUILD)
    total = count_packages(lock)
    started_s = time.monotonic()
    print(f"Installing {total} locked packages into {Path(sys.prefix).name}", file=sys.stderr, flush=True)
    with heartbeat("at the packages", started_s):
        install_packages(lock, total)
    show(f"  packages are in; now this project and its machine code, {time.monotonic() - started_s:.0f} s", step=0)
    with heartbeat("compiling loops for this processor, once", started_s):
        install_project()
    end = "\n" if sys.stderr.isatty() else ""
    print(f"{end}Installed in {time.monotonic() - started_s:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
