"""Documents as YAML text, never glued from strings, and the same to readers of YAML 1.2 and 1.1.

PyYAML, with which frameworks and most programs read, keeps to 1.1: there 1e-05 is a word, and `on` and 1:30 are none.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.representer import RoundTripRepresenter
from ruamel.yaml.scalarstring import LiteralScalarString, SingleQuotedScalarString

from autodeploy.messages import in_plain_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WIDTH, WIDTH_OF_PROFILES = 110, 120


class _Representer(RoundTripRepresenter):
    """Writes numbers as both versions read them, and no value by its name."""


def _number(writer: Any, value: float) -> Any:
    if not math.isfinite(value):
        return writer.represent_float(value)
    digits, mark, exponent = repr(value).partition("e")
    return writer.represent_scalar(
        "tag:yaml.org,2002:float", f"{digits}.0{mark}{exponent}" if mark and "." not in digits else repr(value)
    )


def _none(writer: Any, _value: None) -> Any:
    return writer.represent_scalar("tag:yaml.org,2002:null", "null")


_Representer.add_representer(float, _number)
_Representer.add_representer(type(None), _none)


def yaml_text(document: Any, comments: Iterable[str] = ()) -> str:
    """The document in the order of its keys, under comments; lists of numbers on one line, long text line by line."""
    writer = _writer(WIDTH)
    writer.indent(mapping=2, sequence=4, offset=2)
    return _written(writer, _styled(in_plain_text(document)), comments)


def profile_text(document: Mapping[str, Any], heading: str) -> str:
    """A profile or an overlay under a heading, the same for the same numbers."""
    return _written(_writer(WIDTH_OF_PROFILES), in_plain_text(document), [heading])


def _writer(width: int) -> Any:
    """A writer of YAML in the order of keys, whose numbers and nulls both versions read alike."""
    writer: Any = YAML(typ="rt")
    writer.Representer = _Representer
    writer.width = width
    return writer


def _written(writer: Any, document: Any, comments: Iterable[str]) -> str:
    stream = io.StringIO()
    stream.writelines(f"# {' '.join(line.split())}\n" for line in comments)
    writer.dump(document, stream)
    return stream.getvalue()


def _styled(value: Any) -> Any:
    if isinstance(value, str):
        if "\n" in value:
            return LiteralScalarString(value)
        return SingleQuotedScalarString(value) if _reads_otherwise(value) else value
    if isinstance(value, dict):
        return {_styled(key): _styled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = CommentedSeq(_styled(item) for item in value)
        if all(isinstance(item, int | float | list | CommentedSeq) for item in items):
            items.fa.set_flow_style()
        return items
    return value


def _reads_otherwise(text: str) -> bool:
    """Whether a reader of YAML 1.1 takes the bare text for something else than a string."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    return any(pattern.match(text) for first in (text[:1], None) for _, pattern in resolvers.get(first, ()))
