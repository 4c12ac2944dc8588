"""The catalogues: the same texts in both languages, each of them said somewhere, none missing."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autodeploy.messages import LANGUAGES, Section, text_of
from autodeploy.messages.catalogue import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CHINESE = re.compile(r"[\u4e00-\u9fff]")
# Functions that say a text of a section, by how modules call them.
SECTIONS = {"say": "report", "command_text": "command", "part_name": "part"}
PLURAL = re.compile(r"_(one|other)$")


def blanks(text: str) -> set[str]:
    return {name for _, name, *_ in string.Formatter().parse(text) if name}


def keys(lang: str) -> set[str]:
    """Keys without the endings of plural forms."""
    return {PLURAL.sub("", key) for key in catalogue(lang)}  # type: ignore[arg-type]


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for room in ("autodeploy", "api"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_both_languages_have_the_same_keys() -> None:
    assert keys("en") == keys("zh")
    assert len(keys("en")) > 1000


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_text_is_empty(lang: str) -> None:
    assert [key for key, text in catalogue(lang).items() if not text.strip()] == []  # type: ignore[arg-type]


def test_every_text_fills_the_same_blanks_in_both_languages() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    wrong = [
        key
        for key, text in chinese.items()
        if blanks(text) != blanks(english.get(key) or english[PLURAL.sub("_other", key)])
    ]
    assert wrong == []


def test_a_sentence_of_several_words_is_chinese_in_chinese() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    same = {key for key, text in english.items() if text == chinese.get(key) and len(re.findall("[a-z]{3,}", text)) > 2}
    assert {key for key in same if not key.startswith("page.")} <= {"report.priors_free"}


def _section(function: str, path: Path) -> str:
    """The section that a function of that name takes keys of, in that module."""
    if function != "tell":
        return SECTIONS.get(function, "")
    if "check_texts import" in path.read_text(encoding="utf-8") or path.name == "check_texts.py":
        return "check"
    return "command" if "cli" in path.parts else ""


def said() -> Iterator[tuple[str, str]]:
    """Literal keys that modules say, with where."""
    for path, tree in modules():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            name = node.func.id
            section = _section(name, path)
            literals = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if section and literals:
                yield f"{section}.{literals[0]}", f"{path.relative_to(ROOT)}:{node.lineno}"


def test_every_key_that_is_said_is_in_the_catalogue() -> None:
    found = dict(said())
    assert len(found) > 200
    assert {key: place for key, place in found.items() if key not in keys("en")} == {}


def test_every_text_is_said_somewhere() -> None:
    """A text whose last name, or the begin of it, stands nowhere in code or templates is dead."""
    words: set[str] = set()
    for node in (node for _, tree in modules() for node in ast.walk(tree)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words |= {node.value, *node.value.split(":")}
        elif isinstance(node, ast.keyword) and node.arg:
            words.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            words.add(node.target.id)  # a field of a document, whose name is its key
    for path in (ROOT / "api" / "ui").rglob("*"):
        if path.suffix in {".html", ".js"}:
            words |= set(re.findall(r"[\w.]+", path.read_text(encoding="utf-8")))
    begins = tuple(word.rsplit(".", 1)[-1] for word in words if word.endswith("_") and len(word) > 2)
    ends = tuple(word for word in words if word.startswith("_") and len(word) > 2)
    known = {word.rsplit(".", 1)[-1] for word in words}
    dead = [
        key
        for key in sorted(keys("en"))
        if (last := key.rsplit(".", 1)[-1]) not in known and not last.startswith(begins) and not last.endswith(ends)
    ]
    assert dead == []


@pytest.mark.parametrize(("count", "english"), [(1, "1 failure"), ("1", "1 failure"), ("68", "68 failures")])
def test_a_plural_form_follows_the_count(count: int | str, english: str) -> None:
    assert text_of("en", "report.failures", count=count) == english
    assert text_of("zh", "report.failures", count=count).startswith(str(count))


def test_a_section_says_its_texts_alone() -> None:
    say = Section("report")
    assert "best" in say
    assert "no such text" not in say
    assert say("zh", "best") == "推荐"
    with pytest.raises(KeyError):
        say("en", "no such text")
