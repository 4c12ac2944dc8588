"""Documents as TOML 1.0: sections of plain values and lists of them, never glued from unescaped strings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Value = bool | int | float | str | list[str] | list[int]


def toml_text(document: Mapping[str, Mapping[str, Value]], comments: Iterable[str] = ()) -> str:
    """Sections in the order of the document, under comments."""
    lines = [f"# {' '.join(line.split())}" for line in comments]
    for section, values in document.items():
        lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        lines += [f"{key} = {_written(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _written(value: Value) -> str:
    # A basic string of TOML escapes what JSON does, and DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
