"""Sentences in documents: English text in the field, key and values in a table beside it."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import AfterValidator, Field, SerializationInfo, WrapValidator, model_serializer, model_validator

from autodeploy.messages import Message, keyed, read_keyed
from autodeploy.specs.base import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import ModelWrapValidatorHandler, SerializerFunctionWrapHandler, ValidatorFunctionWrapHandler


TABLE = "messages"
_reading: ContextVar[Mapping[str, Any] | None] = ContextVar("messages_of_the_document", default=None)


def _kept(value: Any, handler: ValidatorFunctionWrapHandler) -> str:
    text: str = handler(value)
    if isinstance(value, Message):
        return value
    document = (_reading.get() or {}).get(text)
    return text if document is None else _read(document, text)


Text = Annotated[str, WrapValidator(_kept)]
"""A sentence. One that was a message stays one, and is again when a document with its table is read."""


def _read(document: Any, text: str) -> str:
    """The message of a document, if this release has its key."""
    try:
        return read_keyed(document, text)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return text


class KeyedText(Document):
    """What a sentence is made of: its key in the catalogues, and the values that fill it."""

    key: str
    values: dict[str, Any] = {}
    english: Annotated[str | None, Field(description="of a record's text: no catalogue of English has it")] = None


class Told(Document):
    """A document that says sentences to people.

    `messages` is made when the document is written, and is empty otherwise.
    """

    messages: Annotated[
        dict[str, KeyedText],
        Field(description="key and values of sentences in this document, by their English text"),
    ] = {}

    @model_validator(mode="wrap")
    @classmethod
    def _with_its_table(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict) or not isinstance(data.get(TABLE), dict):
            return handler(data)
        token = _reading.set({**(_reading.get() or {}), **data[TABLE]})
        try:
            return handler({name: value for name, value in data.items() if name != TABLE})
        finally:
            _reading.reset(token)

    # No type of what it returns: the schema of the document would be that type.
    @model_serializer(mode="wrap")
    def _with_messages(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo):  # type: ignore[no-untyped-def]
        document = handler(self)
        left_out = (info.include is not None and TABLE not in info.include) or TABLE in (info.exclude or ())
        said = {} if left_out else {str(message): keyed(message) for message in _messages(self)}
        document.pop(TABLE, None)
        return document | {TABLE: dict(sorted(said.items()))} if said else document


def _messages(value: Any) -> Iterator[Message]:
    """Messages of a document, without those of documents in it that have a table themselves."""
    if isinstance(value, Message):
        yield value
        return
    for part in _parts(value):
        if not isinstance(part, Told):
            yield from _messages(part)


def _parts(value: Any) -> Iterable[Any]:
    """What may hold sentences: fields, values and items, but not columns of numbers."""
    if isinstance(value, Document):
        return [getattr(value, name) for name in _speaking(type(value))]
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, tuple | list) and value and isinstance(value[0], str | Document | tuple | list | dict):
        return value
    return ()


@cache
def _speaking(document: type[Document]) -> tuple[str, ...]:
    """Its fields that may hold sentences."""
    return tuple(name for name, field in document.model_fields.items() if _may_speak(field.annotation))


def _may_speak(of: Any) -> bool:
    """Whether a value of that type may be, or hold, a sentence: numbers and choices are none."""
    origin, inside = get_origin(of), get_args(of)
    if origin is Annotated:
        return _may_speak(inside[0])
    if origin in (Union, UnionType, tuple):
        return any(_may_speak(each) for each in inside)
    return origin is not Literal and of not in (int, float, bool, None, NoneType, Ellipsis)


# What whoever plans should check, as it travels from an importer with the spec into every result.
MAX_DOUBTS = 200


def one_line(text: str) -> str:
    """Printable and without line breaks: it is written into comments of scripts."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return text if line == text else line  # a message stays one


Doubt = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(one_line)]


def _told(description: str) -> Any:
    return Field(max_length=MAX_DOUBTS, description=description, exclude_if=lambda value: not value)


Doubts = Annotated[tuple[Doubt, ...], _told("points to check after an import; told with every plan")]
Unmodelled = Annotated[
    tuple[Doubt, ...],
    _told("settings of an imported file that change the result and are not modelled; told with every plan"),
]


def changes_the_result(setting: str) -> str:
    """What is said of a setting that changes the result and that no prediction knows."""
    return Message("common.place", place=Message("command.unmodelled"), message=setting)
