"""Everything that people read, by key: one catalogue a language."""

from autodeploy.messages.catalogue import LANGUAGES, Language, Section, section_texts, text_of

__all__ = ["LANGUAGES", "Language", "Section", "section_texts", "text_of"]
