"""Rules of the repository that no other tool checks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
UNLOCKED = {"probe"}  # torch, which `make soak` installs beside the environment

# Written in pieces, so that this file keeps its own rules.
REGISTRY_ADDRESS = re.compile(
    "|".join(
        [
            r"pypi\." + r"org",
            r"python" + r"hosted\.org",
            r"registry\." + r"npmjs",
            r"(?:extra-)?index" + r"-url\s*[=:]?\s*\w+:/",
            r"find" + r"-links\s*[=:]?\s*[\w/]",
        ]
    )
)
MACHINE_PATH = re.compile(
    r"(?<![\w.>)}~/-])/(?:" + "work" + r"|root|home/\w+|opt/(?:wheels|pypi)[\w-]*)(?:/|\b(?![\w-]))"
)
OUTSIDE_NOTES = re.compile(r"\.\./" + r"shared\b")


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


file_sizes, runtime_lock = tool("file_sizes"), tool("runtime_lock")


def offending_lines(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in file_sizes.text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]


def locked() -> dict[str, tuple[str, list[str]]]:
    """Name -> (version, hashes) of every package in the lock."""
    entries = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", LOCK.read_text(encoding="utf-8")):
        name, version = re.match(r"([\w.\-]+)==([\w.+!]+)", block).groups()  # type: ignore[union-attr]
        entries[canonicalize_name(name)] = (version, re.findall(r"--hash=sha256:[0-9a-f]{64}\b", block))
    return entries


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["optional-dependencies"]
    extras = [line for name, lines in groups.items() if name not in UNLOCKED for line in lines]
    return [Requirement(line) for line in [*project["dependencies"], *extras]]


def test_no_file_is_too_long():
    too_long = {str(path): count for path, count in file_sizes.code_lines().items() if count > file_sizes.MAXIMUM_LINES}
    assert too_long == {}


def test_a_file_that_is_too_long_is_found(tmp_path):
    (tmp_path / "long.py").write_text("x = 1\n" * (file_sizes.MAXIMUM_LINES + 1))
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "other.py").write_text("x = 1\n")
    assert file_sizes.code_lines(tmp_path) == {Path("long.py"): file_sizes.MAXIMUM_LINES + 1}


@pytest.mark.parametrize(
    "pattern",
    [REGISTRY_ADDRESS, MACHINE_PATH, OUTSIDE_NOTES],
    ids=["registry_address", "machine_path", "outside_notes"],
)
def test_no_forbidden_address_or_path(pattern):
    assert offending_lines(pattern) == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (REGISTRY_ADDRESS, "https://" + "pypi." + "org"),
        (REGISTRY_ADDRESS, "--extra-index" + "-url https://packages.example"),
        (MACHINE_PATH, 'open("/' + 'work/main/x")'),
        (MACHINE_PATH, "cd /" + "root"),
        (OUTSIDE_NOTES, "see ../" + "shared/design"),
    ],
)
def test_the_patterns_find_what_they_forbid(pattern, text):
    assert pattern.search(text)


@pytest.mark.parametrize(
    "text", ["src/work/x", "the net" + "work/host", "/workload/x", "https://example.org/root", "a/work"]
)
def test_machine_path_leaves_other_paths_alone(text):
    assert not MACHINE_PATH.search(text)


def test_every_locked_package_is_hashed():
    without_hash = [name for name, (_, hashes) in locked().items() if not hashes]
    assert without_hash == []


@pytest.mark.parametrize("part", ["all", "runtime"])
def test_the_lock_names_all_that_its_packages_need(part):
    """pip is told to install what is named and nothing else."""
    lock = LOCK.read_text(encoding="utf-8")
    if part == "runtime":
        lock = runtime_lock.part_of(lock, runtime_lock.runtime_names())
    named = {canonicalize_name(name) for name in runtime_lock.locked_blocks(lock)}
    needed = {name: importlib.metadata.requires(name) or [] for name in named if is_installed(name)}
    assert len(needed) > 30
    unnamed = {
        (name, other.name)
        for name, lines in needed.items()
        for other in map(Requirement, lines)
        if other.marker is None or other.marker.evaluate({"extra": ""})
        if canonicalize_name(other.name) not in named
    }
    assert unnamed == set()


def is_installed(name: str) -> bool:
    """A few packages of the lock are for other systems."""
    return any(importlib.metadata.distributions(name=name))


def test_lock_has_no_address():
    assert "://" not in LOCK.read_text(encoding="utf-8")


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_lock_satisfies_the_project(requirement):
    version, _ = locked()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version)


def test_lock_serves_both_machine_kinds():
    # A package with binary wheels has one hash a wheel; these have wheels for x86-64 and aarch64 at least.
    few = {name: len(locked()[name][1]) for name in ("numpy", "ortools", "pydantic-core") if len(locked()[name][1]) < 2}
    assert few == {}
