"""Flags that change the result of a launch and are not modelled: the third class, beside read ones and idle ones."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from ruamel.yaml import YAML


@cache
def _reasons() -> dict[str, tuple[str, frozenset[str]]]:
    """Flag -> what the prediction does without it, and the values with which it changes nothing."""
    text = files("autodeploy.importers").joinpath("unmodelled_flags.yaml").read_text(encoding="utf-8")
    return {
        flag: (group["reason"], frozenset(entry.get("harmless", ())))
        for group in YAML(typ="safe").load(text).values()
        for flag, entry in group["flags"].items()
    }


def unmodelled_reason(flag: str, value: str) -> str | None:
    """What a prediction does without this flag; None where it changes nothing that is predicted."""
    reason, harmless = _reasons().get(flag, (None, frozenset()))
    return None if value.strip().lower() in harmless else reason


def unmodelled_flags() -> dict[str, str]:
    """Every such flag with its reason."""
    return {flag: reason for flag, (reason, _) in _reasons().items()}
