"""Documents as YAML 1.2 text, never glued from strings."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from autodeploy.messages import in_plain_text

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH = 110


def yaml_text(document: Any, comments: Iterable[str] = ()) -> str:
    """The document in the order of its keys, under comments; lists of numbers on one line, long text line by line."""
    from ruamel.yaml import YAML

    writer: Any = YAML(typ="rt")
    writer.width = WIDTH
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    stream.writelines(f"# {' '.join(line.split())}\n" for line in comments)
    writer.dump(_flowing(in_plain_text(document)), stream)
    return stream.getvalue()


def _flowing(value: Any) -> Any:
    from ruamel.yaml.comments import CommentedSeq
    from ruamel.yaml.scalarstring import LiteralScalarString

    if isinstance(value, str) and "\n" in value:
        return LiteralScalarString(value)
    if isinstance(value, dict):
        return {key: _flowing(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = CommentedSeq(_flowing(item) for item in value)
        if all(isinstance(item, int | float | list | CommentedSeq) for item in items):
            items.fa.set_flow_style()
        return items
    return value
