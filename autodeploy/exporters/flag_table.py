"""The table of launch flags: which framework has them and where its source says so. No exporter writes another flag."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

# Frameworks whose flags a launch command of the target understands.
UNDERSTOOD: dict[str, frozenset[str]] = {
    "mindspeed-llm": frozenset(
        {"Megatron", "Megatron+MindSpeed", "MindSpeed", "MindSpeed-LLM", "MindSpeed core_r0.8.0"}
    ),
    "megatron": frozenset({"Megatron", "Megatron+MindSpeed"}),
}


@dataclass(frozen=True, slots=True)
class FlagEntry:
    """One flag, environment variable or configuration key, its values, constraints and source."""

    name: str
    kind: str
    framework: str
    values: str
    feature: str
    constraints: str
    source: str


@cache
def flag_table() -> tuple[FlagEntry, ...]:
    """Every entry, flags first, by name."""
    text = (files("autodeploy.exporters") / "flags.csv").read_text(encoding="utf-8")
    return tuple(FlagEntry(**row) for row in csv.DictReader(text.splitlines()))


@cache
def launch_flags(target: str) -> dict[str, FlagEntry]:
    """Command-line flags that the target understands, by name."""
    return {e.name: e for e in flag_table() if e.kind == "flag" and e.framework in UNDERSTOOD[target]}


@cache
def environment_variables() -> dict[str, FlagEntry]:
    """Environment variables of torch_npu and CANN, by name."""
    return {entry.name: entry for entry in flag_table() if entry.kind == "env"}


@cache
def configuration_keys() -> dict[str, FlagEntry]:
    """Keys of MindFormers' configurations, by dotted path."""
    return {entry.name: entry for entry in flag_table() if entry.kind == "yaml" and entry.framework == "MindFormers"}
