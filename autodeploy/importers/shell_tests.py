"""Conditions of `[ ]`, `[[ ]]` and `test`, decided where all they compare is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.importers.shell_values import Value

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}
_MAX_DIGITS = 18


def truth(words: list[Value]) -> bool | None:
    """Whether the condition holds; None where that depends on something unknown, such as whether a file exists."""
    inside = [word for word in words[1:] if word.text not in {"]", "]]"} or word.unknown]
    return _any(inside)


def _split(words: list[Value], operators: set[str]) -> list[list[Value]]:
    parts: list[list[Value]] = [[]]
    for word in words:
        if word.text in operators and not word.unknown:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _any(words: list[Value]) -> bool | None:
    results = [_all(part) for part in _split(words, {"||", "-o"})]
    return True if True in results else None if None in results else False


def _all(words: list[Value]) -> bool | None:
    results = [_one(part) for part in _split(words, {"&&", "-a"})]
    return False if False in results else None if None in results else True


def _one(words: list[Value]) -> bool | None:
    if words and words[0].text == "!":
        result = _one(words[1:])
        return None if result is None else not result
    if any(word.unknown for word in words) or any(word.text in {"(", ")"} for word in words):
        return None
    texts = [word.text for word in words]
    if len(texts) == 1:
        return texts[0] != ""
    if len(texts) == 2 and texts[0] in {"-n", "-z"}:
        return (texts[1] != "") == (texts[0] == "-n")
    if len(texts) == 3 and texts[1] in {"=", "==", "!="} and not set(texts[2]) & set("*?["):
        return (texts[0] == texts[2]) == (texts[1] != "!=")
    if len(texts) == 3 and texts[1] in _NUMBERS and _is_number(texts[0]) and _is_number(texts[2]):
        return _NUMBERS[texts[1]](int(texts[0]), int(texts[2]))
    return None


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit() and len(text) <= _MAX_DIGITS
