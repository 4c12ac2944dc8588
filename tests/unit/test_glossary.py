"""Texts keep to the glossary: each term has one Chinese for it, and words that readers stumbled over are gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autodeploy.messages.catalogue import catalogue
from docs.generate import glossary

if TYPE_CHECKING:
    from docs.generate import Term

ROOT = Path(__file__).resolve().parents[2]
AVOIDED = {
    "en": (r"bets?\b", r"on paper", r"valley", r"nobody", r"somebody", r"whoever", r"as it stands", r"GiB a die\b"),
    "zh": ("可容纳", "气泡", "纸面", "放得下", "放不下", "背书"),
}
# The term stands in another sense.
OTHER_SENSE = {"importers.nearest_presets"}


ENGLISH, CHINESE = catalogue("en"), catalogue("zh")


def words_of(text: str) -> str:
    """The text without what is filled in and without code."""
    return re.sub(r"\{[^}]*\}|`[^`]*`", "", text)


def keys_with(term: Term) -> list[str]:
    return [
        key
        for key, text in ENGLISH.items()
        if key in CHINESE and re.search(rf"(?<![\w-]){term.finds}", words_of(text), re.IGNORECASE)
    ]


def keeps(term: Term, text: str) -> bool:
    """Whether a Chinese text has the term, or the English word as the name of a field."""
    return any(form.lower() in text.lower() for form in (*term.zh, term.term))


def test_terms_are_in_order_and_once():
    terms = [each.term.lower() for each in glossary()]
    assert len(terms) >= 60
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("term", glossary(), ids=lambda term: term.term)
def test_chinese_texts_keep_to_the_term(term):
    assert [key for key in keys_with(term) if key not in OTHER_SENSE and not keeps(term, CHINESE[key])] == []


@pytest.mark.parametrize("term", glossary(), ids=lambda term: term.term)
def test_the_documentation_or_a_text_has_the_term(term):
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md"]
    texts = (*ENGLISH.values(), *(path.read_text(encoding="utf-8") for path in pages))
    assert any(re.search(term.finds, text, re.IGNORECASE) for text in texts)


@pytest.mark.parametrize(("lang", "texts"), [("en", ENGLISH), ("zh", CHINESE)])
def test_avoided_words_are_gone(lang, texts):
    words = re.compile("|".join(rf"\b{word}" if lang == "en" else word for word in AVOIDED[lang]), re.IGNORECASE)
    own = {key: text for key, text in texts.items() if not key.startswith("profile_note.")}  # told by profiles' files
    assert {key: text for key, text in own.items() if words.search(words_of(text))} == {}
