"""Measures hand-written files: none over 600 lines. Prints the median and names every file that is too long."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
MAXIMUM_LINES = 600
CODE_SUFFIXES = frozenset({".py", ".js", ".css", ".html", ".sh"})
TEXT_SUFFIXES = CODE_SUFFIXES | {
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".cfg",
    ".ini",
    ".mako",
    ".lock",
    ".txt",
    ".csv",
}
TEXT_NAMES = frozenset({"Makefile", "run", "Dockerfile", ".gitignore", ".dockerignore", ".importlinter"})
PROJECT_DIRECTORIES_WITH_DOT = frozenset({".ci", ".github"})
NOT_OURS = frozenset(
    {"__pycache__", "build", "dist", "htmlcov", "node_modules", "test-results", "wheelhouse", "wheelhouse-aarch64"}
)


def text_files(root: Path = ROOT) -> Iterator[Path]:
    """Every text file of the project, in order; no git is needed."""
    for directory, subdirectories, names in os.walk(root):
        subdirectories[:] = sorted(
            name
            for name in subdirectories
            if name not in NOT_OURS
            and not name.endswith(".egg-info")
            and (not name.startswith(".") or name in PROJECT_DIRECTORIES_WITH_DOT)
            and not Path(directory, name, "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            path = Path(directory, name)
            if path.suffix in TEXT_SUFFIXES or name in TEXT_NAMES:
                yield path


def code_lines(root: Path = ROOT) -> dict[Path, int]:
    """Lines of every code file, by its path below `root`; empty files (package marks) are left out."""
    lines = {
        path.relative_to(root): len(path.read_text(encoding="utf-8").splitlines())
        for path in text_files(root)
        if path.suffix in CODE_SUFFIXES
    }
    return {path: count for path, count in lines.items() if count}


def main() -> int:
    lines = code_lines()
    too_long = {path: count for path, count in lines.items() if count > MAXIMUM_LINES}
    for path, count in too_long.items():
        print(f"{path}: {count} lines, at most {MAXIMUM_LINES}", file=sys.stderr)
    longest = max(lines, key=lambda path: lines[path])
    print(
        f"file sizes: {len(lines)} files, median {statistics.median(lines.values()):.0f} lines, "
        f"longest {longest} with {lines[longest]}"
    )
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
