"""Environment variables and keys that launch files set and no framework's parser registers, with their sources.

What a parser registers is in the releases' own tables (`autodeploy/stack/flags`).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable or configuration key, its values, constraints and source."""

    name: str
    kind: str
    framework: str
    values: str
    feature: str
    constraints: str
    source: str


@cache
def settings_table() -> tuple[Setting, ...]:
    """Every entry, environment variables first, by name."""
    text = (files("autodeploy.formats") / "settings.csv").read_text(encoding="utf-8")
    return tuple(Setting(**row) for row in csv.DictReader(text.splitlines()))


@cache
def environment_variables() -> dict[str, Setting]:
    """Environment variables of torch_npu and CANN, by name."""
    return {entry.name: entry for entry in settings_table() if entry.kind == "env"}


@cache
def platform_keys() -> dict[str, Setting]:
    """Keys of MindFormers' configurations that it hands on to MindSpore, by dotted path."""
    return {entry.name: entry for entry in settings_table() if entry.kind == "yaml"}
