"""Findings of importers and checks: sentences in a document's language, broken rules, fields by their origin."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import AfterValidator, Field, SerializationInfo, WrapValidator, model_serializer, model_validator

from autodeploy.messages import Message, keyed, read_keyed
from autodeploy.specs.base import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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
    """Parts of a sentence: its key in the catalogues, and the values that fill it."""

    key: str
    values: dict[str, Any] = {}
    english: Annotated[str | None, Field(description="of a record's text: no catalogue of English has it")] = None


_shown: list[Callable[[Any], str]] = []


def show_in_notebooks(html: Callable[[Any], str]) -> None:
    """Sets what writes documents as HTML where a notebook shows them."""
    _shown[:] = [html]


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


class TranslatedDocument(Document):
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

    def _repr_html_(self) -> str | None:
        return _shown[0](self) if _shown else None

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows of a document that is a table, nested values by names with dots; of others none."""
        tables = (getattr(self, name) for name in type(self).model_fields)
        rows = next((each for each in tables if isinstance(each, tuple) and each and isinstance(each[0], Document)), ())
        return [dict(_flat(row.model_dump(mode="json"))) for row in rows]

    def to_frame(self) -> Any:
        """The same as a pandas DataFrame.

        Raises ModuleNotFoundError where pandas is not installed; `to_rows` needs nothing.
        """
        import pandas

        return pandas.DataFrame(self.to_rows())

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
        if not isinstance(part, TranslatedDocument):
            yield from _messages(part)


def _parts(value: Any) -> Iterable[Any]:
    """Containers of sentences: fields, values and items, but not columns of numbers."""
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
    """Sentence about a setting that changes the result and that no prediction knows."""
    return Message("common.place", place=Message("command.unmodelled"), message=setting)


class BrokenRule(Document):
    """A rule that a launch breaks: its name, what is wrong with the numbers filled in, and the numbers.

    `allowed`: it was named in `limits.allow_rules`, and fails nothing.
    """

    rule: str
    text: Text
    values: dict[str, bool | int | float | str] = {}
    allowed: bool = False


NO_EFFECT = Message("importers.no_effect_on_step")
_SHOWN_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Note:
    """One finding: where in the file, which field of the spec, what value (shortened) and why."""

    source: str
    field: str = ""
    value: str = ""
    reason: str = ""

    def in_words(self, place: str) -> Message:
        """`place = value: reason`."""
        return Message("common.place", place=f"{place} = {self.value}", message=self.reason)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Everything an importer has to say about one file, in the order it was found.

    `ignored` changes nothing that is predicted; `unmodelled` changes time, memory or what is trained, and the
    prediction does without it. `doubted` is what had to be assumed and the result hangs on.
    """

    taken: tuple[Note, ...] = ()
    defaulted: tuple[Note, ...] = ()
    ignored: tuple[Note, ...] = ()
    contradicted: tuple[Note, ...] = ()
    unmodelled: tuple[Note, ...] = ()
    doubted: tuple[Note, ...] = ()

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Contradictions in the file, in words."""
        return tuple(note.in_words(note.source) for note in self.contradicted)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Settings that change the result and are not modelled, in words: the same that stands above a verdict."""
        return tuple(
            Message("common.place", place=f"{note.source} {note.value}", message=note.reason)
            for note in self.unmodelled
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions and contradictions, in words."""
        assumed = (note.in_words(note.field) if note.field else note.reason for note in self.doubted)
        return (*assumed, *self.contradictions)

    @property
    def to_check(self) -> tuple[str, ...]:
        """Everything that whoever plans should check before a number is believed, the weightiest first."""
        return (*map(changes_the_result, self.doubts), *self.assumptions)


@dataclass(slots=True)
class DiagnosticsLog:
    """Collects notes while a file is read."""

    _taken: list[Note] = field(default_factory=list)
    _defaulted: list[Note] = field(default_factory=list)
    _ignored: list[Note] = field(default_factory=list)
    _contradicted: list[Note] = field(default_factory=list)
    _unmodelled: list[Note] = field(default_factory=list)
    _doubted: list[Note] = field(default_factory=list)

    def take(self, source: str, field: str, value: Any, reason: str = "") -> None:
        """The value at `source` became the spec's `field`."""
        self._taken.append(Note(source, field, shown(value), reason))

    def default(self, field: str, value: Any, reason: str) -> None:
        """The file says nothing of `field`; the value follows from the reason."""
        self._defaulted.append(Note("", field, shown(value), reason))

    def ignore(self, source: str, value: Any, reason: str) -> None:
        """The value at `source` has no place in the spec."""
        self._ignored.append(Note(source, "", shown(value), reason))

    def forget(self, source: str, field: str, value: Any, reason: str) -> None:
        """The value at `source`, which was taken for `field`, has no place there after all."""
        self._taken = [note for note in self._taken if (note.source, note.field) != (source, field)]
        self.ignore(source, value, reason)

    def contradict(self, source: str, field: str, value: Any, reason: str) -> None:
        """The value at `source` disagrees with what was taken for `field`."""
        self._contradicted.append(Note(source, field, shown(value), reason))

    def unmodelled(self, source: str, value: Any, reason: str) -> None:
        """The value at `source` changes time, memory or what is trained, and no prediction knows it."""
        self._unmodelled.append(Note(source, "", shown(value), reason))

    def doubt(self, field: str, value: Any, reason: str) -> None:
        """The file leaves open what `field` is, and the result hangs on it; no field: the file as a whole."""
        self._doubted.append(Note("", field, shown(value), reason))

    def finish(self) -> Diagnostics:
        """All notes, immutable."""
        return Diagnostics(
            tuple(self._taken),
            tuple(self._defaulted),
            tuple(self._ignored),
            tuple(self._contradicted),
            tuple(self._unmodelled),
            tuple(self._doubted),
        )


def joined(*logs: DiagnosticsLog) -> Diagnostics:
    """All notes of several readers of one file."""
    finished = [log.finish() for log in logs]
    return Diagnostics(*(sum((getattr(each, part.name) for each in finished), ()) for part in fields(Diagnostics)))


def shown(value: Any) -> str:
    """A value as short text."""
    text = f"{type(value).__name__} of {len(value)}" if isinstance(value, dict | list | tuple) else str(value)
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."


def not_modelled(what: str, by: str) -> Message:
    """That a mechanism is not modelled yet, with the word of the file that asks for it."""
    return Message("common.is_not_modelled_yet", what=Message("common.text_and_numbers", text=what, numbers=by))
