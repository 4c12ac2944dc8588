"""Everything that people read, by key: one catalogue a language."""

from autodeploy.messages.catalogue import LANGUAGES, Language, Section, label, section_texts, text_of
from autodeploy.messages.message import (
    Message,
    at_place,
    in_language,
    in_plain_text,
    joined,
    keyed,
    message_or,
    read_keyed,
    recovered,
)

__all__ = [
    "LANGUAGES",
    "Language",
    "Message",
    "Section",
    "at_place",
    "in_language",
    "in_plain_text",
    "joined",
    "keyed",
    "label",
    "message_or",
    "read_keyed",
    "recovered",
    "section_texts",
    "text_of",
]
