"""On which line of a JSON text something stands: read only once there is something to complain of."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.importers.bounds import MAX_DEPTH
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DIGITS = 40
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_CONSTANTS = frozenset({"NaN", "Infinity", "-Infinity"})


def at_line(text: str, error: SpecError) -> SpecError:
    """The error with the line of its JSON pointer, or of the first thing that is no plain JSON, before its message."""
    said = str(error)
    if said.startswith("line "):
        return error
    path = error.errors[0].path if error.errors else ""
    line = _line_of(text, path) if path else _line_of_fault(text)
    return SpecError(Message("common.line", line=line, message=said) if line else said, path=path, hint=error.hint)


def _line_of(text: str, pointer: str) -> int:
    """The line of a value, or of the nearest value around it that is there; 0 without any."""
    wanted = pointer.strip("/").split("/")
    position, depth = 1, 0
    for path, _, place in _walk(text):
        if depth < len(path) <= len(wanted) and path == wanted[: len(path)]:
            position, depth = place, len(path)
            if depth == len(wanted):
                break
    return text.count("\n", 0, position) + 1


def _line_of_fault(text: str) -> int:
    """The line of the first repeated key, constant, endless number or too deep value; 0 without any."""
    seen: dict[int, set[str]] = {}
    for path, token, place in _walk(text):
        depth = len(path)
        keys = seen.get(depth, set())
        endless = token[0] in "-0123456789" and len(token) > MAX_DIGITS
        if depth > MAX_DEPTH or token in _CONSTANTS or endless or (path and path[-1] in keys):
            return text.count("\n", 0, place) + 1
        keys.update(path[-1:])
        if token in "{[":
            seen[depth + 1] = set()
    return 0


def _walk(text: str) -> Iterator[tuple[list[str], str, int]]:
    """(keys and indices, token, place in the text) of each value; the list is changed from one to the next."""
    path: list[str] = []
    kinds: list[str] = []
    key_next = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == ":":
            continue
        if token == ",":
            if kinds and kinds[-1] == "[":
                path[-1] = str(int(path[-1]) + 1)
            key_next = bool(kinds) and kinds[-1] == "{"
        elif token in "}]":
            if not kinds:
                return
            kinds.pop()
            path.pop()
            key_next = False
        elif key_next:
            try:
                path[-1] = str(json.loads(token))
            except ValueError:
                return
            key_next = False
        else:
            yield path, token, match.start()
            if token in "{[":
                kinds.append(token)
                path.append("" if token == "{" else "0")
                key_next = token == "{"
