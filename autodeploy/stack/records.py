"""Records of data: rows of YAML read as what they are, and their texts.

A text is a sentence of its own, or a form of sentence that many records fill.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, cast

from pydantic import ConfigDict, SkipValidation, TypeAdapter

from autodeploy.messages import Message
from autodeploy.messages.catalogue import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Record = TypeVar("Record")
Text: TypeAlias = Message
Said: TypeAlias = Annotated[str, SkipValidation]
"""A field that keeps the message that it is given, or the plain text."""
RecordText: TypeAlias = str | Mapping[str, list[str]]
_KEYS: dict[tuple[str, str], str] = {}  # of a sentence that several records of a table say: that of the first


def read_records(kind: type[Record], rows: Iterable[Mapping[str, Any]]) -> tuple[Record, ...]:
    """Rows as records of a kind: lists as tuples, and what is within a record as its own kind.

    Raises ValueError for a key or a value that no such record has.
    """
    records: tuple[Record, ...] = _reader(cast("Any", kind)).validate_python(tuple(rows))
    return records


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    """Of a tuple of records; its making takes longer than what it reads."""
    several: Any = GenericAlias(tuple, (kind, ...))
    return TypeAdapter(several, config=ConfigDict(extra="forbid", arbitrary_types_allowed=True))


@contextmanager
def known(table: dict[str, Record], new: Mapping[str, Record], taken: Iterable[str] = ()) -> Iterator[None]:
    """The table with new entries while the context lasts; raises ValueError where a name is `taken`, or in it."""
    if twice := [name for name in new if name in {*table, *taken}]:
        raise ValueError(f"{', '.join(twice)}: known already")
    table.update(new)
    try:
        yield
    finally:
        for name in new:
            del table[name]


def record_text(key: str, text: RecordText) -> Message:
    """A sentence in English, whose key is that of the first record of its table that says it; or a form, a text of the
    catalogues under `common`, with its terms in order, which belong to no language, as `{needs: [ONE, OTHER]}`.

    Raises KeyError where there is no such form, ValueError where it has other terms.
    """
    if isinstance(text, str):
        return Message.of_record(_KEYS.setdefault((key.partition(".")[0], text), key), text)
    [(form, terms)] = text.items()
    return Message(f"common.{form}", **dict(zip(blanks(catalogue("en")[f"common.{form}"]), terms, strict=True)))


def blanks(text: str) -> tuple[str, ...]:
    """Names of the blanks of a text, in order."""
    return tuple(name for _, name, *_ in string.Formatter().parse(text) if name)


def with_numbers(text: str, numbers: Mapping[str, object]) -> str:
    """The sentence with what is known by name behind it, but for what is merely on or off."""
    listed = ", ".join(f"{name} {value}" for name, value in numbers.items() if not isinstance(value, bool))
    return Message("common.text_and_numbers", text=text, numbers=listed) if listed else text
