"""Pairs of launches for each legality rule: one that obeys it, one that breaks only it (rule_pairs.yaml)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from autodeploy.stack.releases import release_named, releases
from hardware_profiles.shipped_yaml import load_shipped_yaml

DEVICES = 8  # of a node
RANKS = 32  # of a pair that names no other number
TRIED = tuple(each.name for each in releases() if each.flags and not each.keys)
EVERY = ("mindspeed-llm-master", "megatron-mindspeed-master", "megatron-main")


@cache
def document() -> dict[str, Any]:
    """The file: `bases`, `pairs` and `untried` rules."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return dict(load_shipped_yaml(text))


def releases_of(pair: dict[str, Any]) -> tuple[str, ...]:
    """Names of the releases whose validators judged the pair."""
    return EVERY if pair["releases"] == "all" else tuple(pair["releases"])


def is_for(pair: dict[str, Any], release: str) -> bool:
    """Whether validators of the release, or of one that it is like, judged the pair."""
    return not release_named(release).names.isdisjoint(releases_of(pair))


def ranks_of(pair: dict[str, Any]) -> int:
    """Processes of both launches."""
    return int(pair.get("ranks", RANKS))


def words_of(pair: dict[str, Any], *changes: str) -> list[str]:
    """The arguments of a launch: those of the pair's base with the flags of each change on top."""
    flags: dict[str, Any] = dict(document()["bases"][pair["base"]])
    for change in changes:
        flags |= pair[change]
    words = []
    for name, value in flags.items():
        if value is not None and name.startswith("-"):
            given = () if value is True else value if isinstance(value, list) else (value,)
            words += [name, *map(str, given)]
    return words


def environment_of(pair: dict[str, Any], *changes: str) -> dict[str, str]:
    """The variables that a launch exports: the names of its changes that are no flags."""
    given = {name: value for change in changes for name, value in pair[change].items()}
    return {name: str(value) for name, value in given.items() if not name.startswith("-") and value is not None}
