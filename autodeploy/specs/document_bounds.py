"""What a document of anybody's may be: its bounds, held before it is parsed, by one scan for each family of syntax.

Shell scripts and tables hold the same bounds while they are read, character by character and line by line; profiler
traces, rank tables and logs have bounds of their own beside their readers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, at_place

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES = 1_000_000
MAX_LAUNCH_CHARACTERS = 200_000
"""Of a shell script, or of TOML."""
MAX_DEPTH = 32
"""Levels of nesting, or parts of a dotted key."""
MAX_VALUES = 30_000
MAX_YAML_VALUES = 10_000
"""Fewer: reading YAML takes some 40 us a value."""
MAX_KEY_LENGTH = 1_000
_JSON = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]\s*+[\]}]|[\[\]{},]', re.DOTALL)
_KEY_ENDS = re.compile(r"\s*+:")
_TOML = re.compile(
    r"""\"{3}(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?|'{3}.*?(?:'{3,5}|\Z)|"(?:[^"\\\n]++|\\[^\n])*+"?|'[^'\n]*+'?"""
    r"""|\#[^\n]*+|[0-9][0-9a-fA-FxobX_:.]{300,}+|[\[\]{}.,=\n]""",
    re.DOTALL,
)
# No number that anybody means: what Python's decimal digits are limited for, in the notations that have no limit.
_ENDLESS = re.compile(r"[-+]?[0-9][0-9a-fA-FxobX_:.]{300,}+")


def refuse_long(text: str, most: int) -> None:
    """Refuses a text of more characters."""
    if len(text) > most:
        raise SpecError(Message("field_fault.at_most_characters", bound=f"{most:,}"))


def scan_json(text: str, max_values: int = MAX_VALUES) -> None:
    """Refuses JSON that is nested too deep, or has too many values or too long a key."""
    depth, values = 0, 1
    for match in _JSON.finditer(text):
        token = match[0]
        if token[0] == '"':
            if len(token) > MAX_KEY_LENGTH and _KEY_ENDS.match(text, match.end()):
                raise _long_key(text, match.start())
        elif token == ",":
            values += 1
        elif token in "[{":
            values, depth = values + 1, depth + 1
        elif token in "]}":
            depth -= 1
        _refuse_deep(depth)
        if values > max_values:
            raise _many(max_values)


def scan_toml(text: str) -> None:
    """Refuses TOML that is too long or nested too deep, by brackets or dots, or has too many values or a long key."""
    refuse_long(text, MAX_LAUNCH_CHARACTERS)
    depth = dots = values = start = 0
    for match in _TOML.finditer(text):
        token = match[0]
        if token[0] in "\"'#":
            continue
        if token[0].isdigit():
            raise SpecError(_placed(text, match.start(), Message("field_fault.is_too_big", value=token[:40])))
        if token in ".=" and match.start() - start > MAX_KEY_LENGTH:
            raise _long_key(text, start)
        if token == ".":
            dots += 1
            _refuse_deep(dots)
            continue
        dots, start = 0, match.end()
        values += token in "=,[{"
        depth = max(0, depth + (token in "[{") - (token in "]}"))
        _refuse_deep(depth)
        if values > MAX_VALUES:
            raise _many(MAX_VALUES)


def scan_yaml(events: Iterable[Any]) -> None:
    """Counts values and characters as if every alias were written out; stops at the first bound that is passed."""
    from ruamel.yaml.events import (
        AliasEvent,
        CollectionEndEvent,
        CollectionStartEvent,
        DocumentStartEvent,
        NodeEvent,
        ScalarEvent,
    )

    expanded: dict[str, tuple[int, int]] = {}
    anchors: set[str] = set()
    open_nodes: list[tuple[str | None, int, int]] = []
    total = size = documents = 0
    for event in events:
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise SpecError(_at(event, Message("importers.several_yaml_documents")))
        elif isinstance(event, CollectionEndEvent):
            anchor, start, start_size = open_nodes.pop()
            if anchor is not None:
                expanded[anchor] = total - start, size - start_size
        elif isinstance(event, AliasEvent):
            if event.anchor not in expanded:
                raise SpecError(_at(event, Message("profiles.alias_undefined", name=event.anchor)))
            values, characters = expanded[event.anchor]
            total, size = total + values, size + characters
        elif isinstance(event, NodeEvent):
            if event.anchor in anchors:
                raise SpecError(_at(event, Message("common.given_twice", name=f"&{event.anchor}")))
            anchors |= {event.anchor} - {None}
            total += 1
            if isinstance(event, CollectionStartEvent):
                open_nodes.append((event.anchor, total - 1, size))
            elif isinstance(event, ScalarEvent):
                size += len(event.value)
                if _ENDLESS.fullmatch(event.value):
                    raise SpecError(_at(event, Message("field_fault.is_too_big", value=event.value[:40])))
                if event.anchor is not None:
                    expanded[event.anchor] = 1, len(event.value)
        _refuse_deep(len(open_nodes))
        if total > MAX_YAML_VALUES:
            raise _many(MAX_YAML_VALUES)
        if size > MAX_BYTES:
            raise SpecError(Message("field_fault.at_most_characters", bound=f"{MAX_BYTES:,}"))


def refuse_long_key(key: str, path: str = "") -> None:
    """Refuses a dotted key of too many parts or characters, as Hydra and strategies have them, in what `path` names."""
    _refuse_deep(key.count("."), path)
    if len(key) > MAX_KEY_LENGTH:
        raise SpecError(_KEY, path=path)


_KEY = Message("importers.key_has_at_most_characters", bound=f"{MAX_KEY_LENGTH:,}")


def _refuse_deep(levels: int, path: str = "") -> None:
    if levels > MAX_DEPTH:
        raise SpecError(Message("profiles.nested_more_than_levels_deep", depth=MAX_DEPTH), path=path)


def _many(most: int) -> SpecError:
    return SpecError(Message("field_fault.at_most_entries", bound=f"{most:,}"))


def _long_key(text: str, offset: int) -> SpecError:
    return SpecError(_placed(text, offset, _KEY))


def _placed(text: str, offset: int, message: str) -> str:
    return at_place(message, (text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)))


def _at(event: Any, message: str) -> str:
    return at_place(message, (event.start_mark.line + 1, event.start_mark.column + 1))
