"""Work trees of the frameworks at one commit, taken out of git directories."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

# What of each repository its parser and validators are in.
FOLDERS: dict[str, tuple[str, ...]] = {
    "mindspeed-llm": ("mindspeed_llm", "examples/mcore"),
    "mindspeed": ("mindspeed",),
    "megatron": ("megatron",),
}


def checkout(git_dir: str, ref: str, folders: tuple[str, ...], into: pathlib.Path) -> pathlib.Path:
    """The folders of the repository at that commit, as files below `into`."""
    into.mkdir(parents=True)
    archived = subprocess.run(["git", "-C", git_dir, "archive", ref, *folders], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(into)], input=archived.stdout, check=True)
    return into


def checkouts(git_dirs: Mapping[str, str], refs: Mapping[str, str], into: pathlib.Path) -> dict[str, pathlib.Path]:
    """A work tree for each component that has a ref."""
    return {name: checkout(git_dirs[name], ref, FOLDERS[name], into / name) for name, ref in refs.items()}
