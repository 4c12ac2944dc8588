"""The devices that the accuracy page shows and how their series are split: data, so that no code knows a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Split:
    """Fit to clusters of at most `at_most` cards, prediction of those of at least `at_least`."""

    profile: str
    at_most: int
    at_least: int


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of one kind: by which fit they are predicted, and the most that their mean error of speed may be.

    each : the same of single runs.
    """

    name: str
    fit: str
    runs: tuple[str, ...]
    at_most: float | None = None
    each: Mapping[str, float] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _sets() -> dict[str, Any]:
    text = files("docs.accuracy_page").joinpath("sets.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = load_shipped_yaml(text)
    return document


_DEVICES: dict[str, str] = _sets()["devices"]
ASCEND, A100, H100, B200 = (_DEVICES[name] for name in ("ascend", "a100", "h100", "b200"))
SPLITS = tuple(Split(**row) for row in _sets()["splits"])
GROUPS = tuple(RunGroup(**{**row, "runs": tuple(row["runs"])}) for row in _sets()["groups"])
