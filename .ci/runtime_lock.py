"""Prints what of requirements.lock a service needs: the dependencies of the project and of its extra `postgres`.

The lock says after each package what it is there for ("via"), so the part is what is reached from the project.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "autodeploy (pyproject.toml)"


def canonical(name: str) -> str:
    """The name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted_names(project: dict[str, object], extras: list[str]) -> set[str]:
    """Names of the project's own requirements."""
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    lines = [*project["dependencies"], *(line for extra in extras for line in optional[extra])]  # type: ignore[misc]
    return {canonical(re.match(r"[\w.\-]+", line)[0]) for line in lines}  # type: ignore[index]


def locked_blocks(lock: str) -> dict[str, tuple[str, set[str]]]:
    """Name -> its lines in the lock, and the names of what needs it."""
    blocks = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", lock.strip()):
        name = canonical(re.match(r"[\w.\-]+", block)[0])  # type: ignore[index]
        comments = " ".join(line.strip().lstrip("#").strip() for line in block.splitlines() if "#" in line.strip()[:1])
        _, _, needed_by = comments.partition("via")
        needed_by = needed_by.replace(PROJECT, "").replace(",", " ")
        blocks[name] = (block, {canonical(each.split("[")[0]) for each in needed_by.split()})
    return blocks


def part_of(lock: str, names: set[str]) -> str:
    """The lines of these packages and of everything they need."""
    blocks = locked_blocks(lock)
    reached = set(names)
    while more := {name for name, (_, via) in blocks.items() if via & reached} - reached:
        reached |= more
    return "\n".join(blocks[name][0] for name in sorted(reached)) + "\n"


def runtime_names() -> set[str]:
    """Names of what a service requires: the project's requirements and those of its extra `postgres`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return wanted_names(project, ["postgres"])


def main() -> None:
    """`runtime_lock.py` prints the service's part, `runtime_lock.py NAME...` the part of these packages."""
    names = {canonical(name) for name in sys.argv[1:]} or runtime_names()
    sys.stdout.write(part_of((ROOT / "requirements.lock").read_text(encoding="utf-8"), names))


if __name__ == "__main__":
    main()
