"""The release that a launch file is for: one that is asked for, its own, or that of the checkout around it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.formats.common.import_result import release_of_marks, with_release
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.text_files import MAX_BYTES, read_text
from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.releases import Component, Release, release_named, releases

if TYPE_CHECKING:
    from pathlib import Path

MOST_FOLDERS = 8  # above a file, in which its checkout is looked for
_REMOTE = re.compile(r"^\s*url\s*=\s*\S*?([\w.-]+/[\w.-]+?)(?:\.git)?/?\s*$", re.MULTILINE)
_VERSION = re.compile(r"^(?:MAJOR|MINOR|PATCH)\s*=\s*(\d{1,4})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Checkout:
    """A framework's sources on disk: commit and branch of git, repositories it was cloned from, version of the core."""

    commit: str = ""
    branch: str = ""
    remotes: frozenset[str] = frozenset()
    version: str = ""

    def holds(self, component: Component) -> bool:
        """Whether this is a release's component: its commit, else its branch in a clone or a copy of its version."""
        if self.commit:
            is_branch = component.branch == self.branch and component.repository.lower() in self.remotes
            return component.commit == self.commit or is_branch
        return bool(self.version) and component.branch == f"core_v{self.version}"


@dataclass(frozen=True, slots=True)
class LaunchText:
    """A launch file with the line that names its release, and what is to be said where a checkout decided."""

    text: str
    doubt: str = ""


def launch_text(path: Path, release: str | None = None, vendor: str | None = None) -> LaunchText:
    """The text of a launch file with its release: the one asked for, its own, or that of the checkout around it.

    vendor : of the chips, where it is known.

    Raises SpecError when there is no such release, or the file can't be read.
    """
    text = read_text(path)
    if release is not None:
        named = release_named(release)
        return LaunchText(text if text.lstrip()[:1] == "{" else with_release(text, named))
    checkout = None if release_of_marks(text) is not None else _around(path)
    if checkout is None:
        return LaunchText(text)
    found = _release_in(checkout, vendor, "keys" if "actor_rollout_ref." in text else "flags")
    if found is not None:
        return LaunchText(with_release(text, found), Message("importers.release_of_checkout", release=found.title))
    owned = {part.repository for release in releases() for part in release.components.values()}
    known = [name for name in sorted(owned) if name.lower() in checkout.remotes]
    told = Message("importers.checkout_of_no_release", commit=checkout.commit[:8], repository=", ".join(known))
    return LaunchText(text, told if known else "")


def _release_in(checkout: Checkout, vendor: str | None, configured_by: str) -> Release | None:
    """The release whose framework a checkout is, the default first."""
    known = [
        release
        for release in releases()
        if FRAMEWORKS[release.framework].configured_by == configured_by
        and release.runs_on(vendor)
        and release.framework in release.components
        and checkout.holds(release.components[release.framework])
    ]
    return min(known, key=lambda release: not release.is_default, default=None)


def _around(path: Path) -> Checkout | None:
    """The innermost checkout that a file lies in."""
    folders = path.resolve().parents[:MOST_FOLDERS]
    return next((found for folder in folders if (found := _checkout(folder)) is not None), None)


def _checkout(folder: Path) -> Checkout | None:
    """The checkout whose root a folder is; git's own files and a version file are read, nothing is run."""
    git, info = folder / ".git", folder / "megatron" / "core" / "package_info.py"
    if (git / "HEAD").is_file():
        head = _read(git / "HEAD").strip()
        name = head.removeprefix("ref: ")
        commit = head if name == head else (_read(git / name).strip() or _packed(_read(git / "packed-refs"), name))
        remotes = frozenset(found.lower() for found in _REMOTE.findall(_read(git / "config")))
        return Checkout(commit, "" if name == head else name.removeprefix("refs/heads/"), remotes)
    return Checkout(version=".".join(_VERSION.findall(_read(info))[:3])) if info.is_file() else None


def _packed(text: str, name: str) -> str:
    return next((line.partition(" ")[0] for line in text.splitlines() if line.endswith(f" {name}")), "")


def _read(path: Path) -> str:
    try:
        return read_text(path) if path.is_file() and path.stat().st_size <= MAX_BYTES else ""
    except SpecError:
        return ""
