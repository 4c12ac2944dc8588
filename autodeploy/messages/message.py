"""A sentence that knows its key and its values, so that it can be said in any language."""

from __future__ import annotations

import re
from functools import cache
from string import Formatter
from typing import TYPE_CHECKING, Any

from autodeploy.messages.catalogue import is_text, renamed_keys, section_texts, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autodeploy.messages.catalogue import Language

LEAST_LITERAL = 12  # letters of its own that a text needs, to be known by them
PLAIN = (str, bool, int, float)
KEY, VALUES, ENGLISH = "key", "values", "english"
# Chinese has spaces beside Latin words only.
_BETWEEN_HANZI = re.compile(r"(?<=[\u3000-\u9fff]) (?=[\u3000-\u9fff])")


class Message(str):
    """The text of a key in English, filled with values: plain ones, or messages themselves.

    A text like any other for code that stores or prints it; `in_language` says it in another language, `keyed` writes
    it as a document. What is made of it by `+`, formatting or slicing is plain text again.
    """

    __slots__ = ("key", "values")
    key: str
    values: Mapping[str, Any]

    def __new__(cls, key: str, /, **values: Any) -> Message:
        """Raises KeyError when the catalogue has no such key, or a blank has no value."""
        kept = {name: _plain(value) for name, value in values.items()}
        message = super().__new__(cls, _filled("en", key, kept))
        message.key, message.values = key, kept
        return message

    @classmethod
    def of_record(cls, key: str, english: str, /, **values: Any) -> Message:
        """The text of a record of data, such as a rule: English by the record, others by the key."""
        return _made(english.format_map(values) if values else english, key, {n: _plain(v) for n, v in values.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are messages too."""
        return _made, (str.__str__(self), self.key, self.values)


def _made(text: str, key: str, values: Mapping[str, Any]) -> Message:
    message = str.__new__(Message, text)
    message.key, message.values = key, values
    return message


def joined(parts: Iterable[str], separator: str = "comma") -> Message:
    """A list in words; `separator` is comma, semicolon, and, or."""
    return Message(f"list.{separator}", parts=tuple(parts))


def at_place(message: str, place: tuple[int, int] | tuple[int, int, str] | None) -> str:
    """The message with its line and column before it, and the file that these are of; as it is without a place."""
    if place is None:
        return message
    placed = Message("common.line_column", line=place[0], column=place[1], message=message)
    return Message("common.place", place=place[2], message=placed) if len(place) > 2 and place[2] else placed


def message_or(english: str, key: str) -> str:
    """A text of others, such as Python's: a message where the catalogue has its translation, else as it is."""
    return Message.of_record(key, english) if is_text("zh", key) else english


@cache
def _patterns(section: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Texts of a section as patterns of their English, the longest first; those with blanks where they have words of
    their own.
    """
    found = []
    for key, template in section_texts("en", section).items():
        pieces = [*Formatter().parse(template)]
        names = [name for _, name, *_ in pieces if name]
        own = sum(len(literal) for literal, *_ in pieces)
        plain = all(not spec for _, name, spec, _ in pieces if name) and len(names) == len(set(names))
        if (own >= LEAST_LITERAL or not names) and plain and not key.endswith(("_one", "_other")):
            pattern = "".join(re.escape(text) + (f"(?P<{name}>.+?)" if name else "") for text, name, *_ in pieces)
            found.append((f"{section}.{key}", re.compile(pattern, re.DOTALL)))
    return tuple(sorted(found, key=lambda each: -len(each[1].pattern)))


def recovered(text: str, sections: tuple[str, ...]) -> str:
    """The message whose English a stored text is, such as a doubt of a spec, or those of its parts between semicolons;
    the text itself where it is none.
    """
    if isinstance(text, Message):
        return text
    for section in sections:
        for key, pattern in _patterns(section):
            match = pattern.fullmatch(text)
            if match is not None:
                return _made(text, key, match.groupdict())
    parts = text.split("; ")
    if len(parts) > 1:
        inners = tuple(recovered(part, sections) for part in parts)
        known = any(isinstance(part, Message) for part in inners)
        return _made(text, "list.semicolon", {"parts": inners}) if known else text
    place, colon, rest = text.partition(": ")
    inner = recovered(rest, sections) if colon else rest
    return _made(text, "common.place", {"place": place, "message": inner}) if isinstance(inner, Message) else text


def in_language(text: str, lang: Language) -> str:
    """A message in that language; plain text, and what the language has no text for, as it is."""
    if not isinstance(text, Message) or lang == "en":
        return str.__str__(text)
    try:
        return _filled(lang, text.key, text.values)
    except KeyError:
        return str.__str__(text)


def keyed(message: Message) -> dict[str, Any]:
    """The message as a document: key, values, the English of a record's text; messages among the values likewise."""
    document = {KEY: message.key, VALUES: {name: _document(value) for name, value in message.values.items()}}
    return document if is_text("en", message.key) else document | {ENGLISH: str.__str__(message)}


def read_keyed(document: Mapping[str, Any], english: str) -> Message:
    """The message of a document that `keyed` wrote beside that English, which stays, whatever this release says.

    Raises KeyError when this release has no such key, or the document lacks a value.
    """
    message = _nested(document)
    return message if message == english else _made(english, message.key, message.values)


def _plain(value: Any) -> Any:
    """Value as a document can hold it: numpy's scalars as Python's, paths and other objects as text."""
    if type(value) in {tuple, list}:
        return tuple(_plain(each) for each in value)
    if hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, PLAIN) else str(value)


def _filled(lang: Language, key: str, values: Mapping[str, Any]) -> str:
    said = {name: in_language(value, lang) if isinstance(value, str) else value for name, value in values.items()}
    if key.startswith("list."):
        parts = [in_language(part, lang) for part in values["parts"]]
        if len(parts) > 2 and key in {"list.and", "list.or"}:
            parts = [text_of(lang, "list.comma").join(parts[:-1]), parts[-1]]
        text = text_of(lang, key).join(parts)
        return _BETWEEN_HANZI.sub("", text) if lang == "zh" else text
    return text_of(lang, key, **said)


def _document(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_document(each) for each in value]
    return keyed(value) if isinstance(value, Message) else value


def _nested(document: Mapping[str, Any]) -> Message:
    values = {name: _value(value) for name, value in document[VALUES].items()}
    key = renamed_keys().get(document[KEY], document[KEY])
    if is_text("en", key):
        return Message(key, **values)
    return _made(document[ENGLISH], key, values)


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(each) for each in value)
    return _nested(value) if isinstance(value, dict) else value


def in_plain_text(document: Any) -> Any:
    """A document without messages, for writers that know plain text alone: their English stands in their place."""
    if isinstance(document, dict):
        return {in_plain_text(name): in_plain_text(value) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [in_plain_text(each) for each in document]
    return str.__str__(document) if isinstance(document, Message) else document
