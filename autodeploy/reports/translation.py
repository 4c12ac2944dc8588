"""The planner's English sentences in Chinese.

A PlanSet holds sentences as they were said: in English, so that equal searches stay equal. This reads them back by the
templates of `sentences.yaml` and `error_sentences.yaml` and says them in the reader's language. What no template knows
stays as it is.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from autodeploy.messages import Language

CATALOGUES = ("sentences.yaml", "error_sentences.yaml", "rule_sentences.yaml")
_NUMBER = r"[-+−]?[0-9][0-9,.]*(?:e[-+]?[0-9]+)?"
_LIST = re.compile(r"; |, | and | or ")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A template in both languages, and the pattern that reads its blanks out of an English sentence."""

    english: str
    chinese: str
    pattern: re.Pattern[str]
    kinds: dict[str, str]

    @property
    def literal_length(self) -> int:
        """Characters that are no blank: of two templates that match, the one with more of them says more."""
        return sum(len(text) for text, *_ in string.Formatter().parse(self.english))


@cache
def catalogue() -> dict[str, tuple[str, ...]]:
    """The English sentences of every section."""
    found: dict[str, tuple[str, ...]] = {}
    for name in CATALOGUES:
        for section, texts in _read(name).items():
            found[section] = (*found.get(section, ()), *texts)
    return found


def _read(name: str) -> dict[str, dict[str, str]]:
    text = files("autodeploy.reports").joinpath(name).read_text(encoding="utf-8")
    sections: dict[str, dict[str, str]] = load_shipped_yaml(text)
    return sections


@cache
def sentences() -> tuple[Sentence, ...]:
    """Every sentence: first those that begin with literal text, of these and of the others those with most of it.

    A blank at the beginning would take the head of a sentence that another template knows.
    """
    groups = [section for name in CATALOGUES for section in _read(name).values()]
    found = [_sentence(english, chinese) for group in groups for english, chinese in group.items()]
    return tuple(sorted(found, key=lambda s: (s.english.startswith("{"), -s.literal_length, s.english)))


def blanks(template: str) -> dict[str, str]:
    """Names of a template's blanks and their kinds: n, t, l, s or nothing."""
    return {name: kind or "" for _, name, kind, _ in string.Formatter().parse(template) if name}


def _sentence(english: str, chinese: str) -> Sentence:
    pattern = ""
    for text, name, kind, _ in string.Formatter().parse(english):
        pattern += re.escape(text)
        if name:
            pattern += f"(?P<{name}>{_NUMBER if kind == 'n' else '.+?'})"
    return Sentence(english, chinese, re.compile(pattern, re.DOTALL), blanks(english))


@lru_cache(maxsize=4096)
def _chinese(text: str) -> str | None:
    """The sentence in Chinese; None where no template matches it in all its blanks."""
    for sentence in sentences():
        match = sentence.pattern.fullmatch(text)
        if match is None:
            continue
        values: dict[str, str] = {}
        for name, kind in sentence.kinds.items():
            value = match[name]
            said = _said(value, kind)
            if said is None:
                break
            values[name] = said
        else:
            return "".join(
                literal + (values[name] if name else "")
                for literal, name, *_ in string.Formatter().parse(sentence.chinese)
            )
    return None


def _said(value: str, kind: str) -> str | None:
    """What fills a blank of that kind; None where it is no sentence and has to be one."""
    if kind == "l":
        return _chinese_list(value)
    if kind == "t":
        return _chinese(value)
    return (_chinese(value) or value) if kind == "s" else value


def _chinese_list(text: str) -> str | None:
    whole = _chinese(text)
    if whole is not None:
        return whole
    # The shortest beginning that is a sentence, then the rest: sentences may hold commas themselves.
    for separator in _LIST.finditer(text):
        first, rest = _chinese(text[: separator.start()]), _chinese_list(text[separator.end() :])
        if first is not None and rest is not None:
            return f"{first}{'；' if separator[0] == '; ' else '、'}{rest}"
    return None


def translated(text: str, lang: Language) -> str:
    """What the planner said, in that language."""
    if lang == "en" or not text:
        return text
    return _chinese(text) or text
