"""YAML as frameworks read it: their PyYAML keeps to version 1.1, where yes, no, on and off are booleans."""

from __future__ import annotations

from typing import Any

from ruamel.yaml.constructor import SafeConstructor

WORDS = {"yes": True, "on": True, "no": False, "off": False}


class BooleanWords(SafeConstructor):
    """Makes plain `yes`, `no`, `on` and `off` booleans, and what is quoted text."""


def _boolean_or_text(_constructor: BooleanWords, node: Any) -> Any:
    is_plain = node.style is None
    return WORDS.get(node.value.lower(), node.value) if is_plain else node.value


BooleanWords.add_constructor("tag:yaml.org,2002:str", _boolean_or_text)
