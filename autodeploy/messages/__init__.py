"""Everything that people read, by key: one catalogue a language."""

from autodeploy.messages.catalogue import LANGUAGES, Language, Section, section_texts, text_of
from autodeploy.messages.message import Message, in_language, in_plain_text, joined, keyed, read_keyed

__all__ = [
    "LANGUAGES",
    "Language",
    "Message",
    "Section",
    "in_language",
    "in_plain_text",
    "joined",
    "keyed",
    "read_keyed",
    "section_texts",
    "text_of",
]
