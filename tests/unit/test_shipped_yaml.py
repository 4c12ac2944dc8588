"""Shipped YAML means the same to libyaml, which reads it in the product, and to a reader of YAML 1.2."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from hardware_profiles.shipped_yaml import load_shipped_yaml

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(path for room in ("autodeploy", "hardware_profiles") for path in (ROOT / room).rglob("*.yaml"))


def kinds(value: object) -> object:
    """The value with the type of each of its parts: 1 is not 1.0, and "1e3" no number."""
    if isinstance(value, dict):
        return {(type(key), key): kinds(each) for key, each in value.items()}
    return [kinds(each) for each in value] if isinstance(value, list) else (type(value), value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shipped_file_means_the_same_in_both_versions_of_yaml(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert kinds(load_shipped_yaml(text)) == kinds(YAML(typ="safe", pure=True).load(text))


def test_a_difference_would_be_found() -> None:
    assert kinds(load_shipped_yaml("on: 1e3")) != kinds(YAML(typ="safe", pure=True).load("on: 1e3"))
