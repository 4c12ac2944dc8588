"""NOTICE names every run-time dependency with its licence, and no licence forbids what this project does."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from docs.notice import dependencies, licence_of, needed

ROOT = Path(__file__).resolve().parents[2]
LISTED = dict(re.findall(r"^    (\S+) +(\S.*)$", (ROOT / "NOTICE").read_text(encoding="utf-8"), re.MULTILINE))
PERMISSIVE = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "PSF-2.0", "Zlib"}
# Used unmodified and installed by their own wheels: certifi (a list of certificates) and the driver of PostgreSQL.
WEAK_COPYLEFT = {"certifi": "MPL-2.0", **dict.fromkeys(("psycopg", "psycopg-binary", "psycopg-pool"), "LGPL-3.0-only")}


@pytest.mark.parametrize("dependency", dependencies(), ids=lambda dependency: dependency.name)
def test_each_dependency_is_listed_with_a_licence_that_allows_it(dependency):
    assert LISTED[dependency.name] == dependency.licence, "run `make docs`"
    parts = set(re.split(r" (?:AND|OR) ", dependency.licence.replace(" WITH LLVM-exception", "")))
    assert parts <= PERMISSIVE or WEAK_COPYLEFT.get(dependency.name) == dependency.licence


def test_copyleft_comes_with_the_extra_alone():
    lgpl = {each.name for each in dependencies() if each.licence.startswith("LGPL")}
    assert lgpl == {each.name for each in dependencies() if each.name.startswith("psycopg")}
    assert all(each.optional for each in dependencies() if each.name in lgpl)


def test_nothing_is_listed_that_the_lock_does_not_install():
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    locked = {canonicalize_name(name) for name in re.findall(r"^([\w.\-]+)==", lock, re.MULTILINE)}
    assert LISTED.keys() - locked == set()


def test_requirements_of_requirements_are_found():
    assert {"fastapi", "starlette", "anyio", "idna"} <= needed(["fastapi"])
    assert "psycopg-binary" in needed(["psycopg[binary]"])
    assert "psycopg-binary" not in needed(["psycopg"])


def test_a_licence_is_read_from_classifiers_where_nothing_else_states_it():
    stated = metadata.metadata("jinja2")
    assert stated.get_all("License-Expression") is None
    assert licence_of(stated) == "BSD-3-Clause"


def test_no_tool_of_development_is_listed():
    assert not {"pytest", "mypy", "ruff", "hypothesis", "torch"} & LISTED.keys()
