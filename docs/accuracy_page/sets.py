"""The devices that the accuracy page shows and how their series are split: data, so that no code knows a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from hardware_profiles.shipped_yaml import load_shipped_yaml


@dataclass(frozen=True, slots=True)
class Split:
    """Fit to clusters of at most `at_most` cards, prediction of those of at least `at_least`."""

    profile: str
    at_most: int
    at_least: int


@lru_cache(maxsize=1)
def _sets() -> dict[str, Any]:
    text = files("docs.accuracy_page").joinpath("sets.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = load_shipped_yaml(text)
    return document


_DEVICES: dict[str, str] = _sets()["devices"]
ASCEND, A100, H100, B200 = (_DEVICES[name] for name in ("ascend", "a100", "h100", "b200"))
SPLITS = tuple(Split(**row) for row in _sets()["splits"])
