"""Faults of a YAML text and their place, for a person who did not write a YAML parser."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from autodeploy.messages import Message, at_place

# The parser's words, and the key of ours.
_FAULTS: tuple[tuple[str, str], ...] = (
    (r"found character '\\t' that cannot start any token", "profiles.tab_indent_with_blanks"),
    (r"found character (?P<sign>'.+') that cannot start any token", "profiles.unexpected_sign"),
    (r"mapping values are not allowed here", "profiles.unexpected_colon"),
    (r"mapping keys are not allowed here", "profiles.unexpected_question_mark"),
    (r"sequence entries are not allowed here", "profiles.unexpected_dash"),
    (r"could not find expected ':'", "profiles.missing_colon"),
    (r"expected <block end>, but found .+", "profiles.unexpected_indentation"),
    (r"expected ',' or '(?P<sign>[\]}])', but got '<stream end>'", "profiles.missing_closing"),
    (r"expected ',' or '(?P<sign>[\]}])', but got .+", "profiles.missing_comma_or"),
    (r"found unexpected (end of stream|document separator)", "profiles.missing_quote"),
    (r'found duplicate key "(?P<name>.*?)".*', "common.given_twice"),
    (r"found undefined alias '?(?P<name>[^']+)'?", "profiles.alias_undefined"),
    (r"found unhashable key", "profiles.scalar_keys"),
    (r"(could not determine a constructor for the tag|found undefined tag handle) .+", "profiles.no_tags"),
    (r"(found unknown escape character|expected escape sequence) .+", "profiles.invalid_escape"),
    (r"expected the node content, but found .+", "profiles.missing_value"),
    (r"expected (a comment or a line break|chomping or .+), but found .+", "profiles.unexpected_content"),
    (r"expected '<document start>', but found .+", "profiles.unexpected_indentation"),
    (r"aliases are not supported", "profiles.no_aliases"),  # these two: `bounded_yaml`
    (r"nested more than (?P<depth>\d+) levels deep", "profiles.nested_too_deep"),
    (r"unacceptable character .+", "profiles.control_character"),
)
# What is open is named where it was opened.
_OPEN = frozenset({"profiles.missing_closing", "profiles.missing_quote"})


class YamlFault(NamedTuple):
    """A place, counted from 1, and what is wrong there; line 0 where the parser names none."""

    line: int
    column: int
    words: Message

    def __str__(self) -> str:
        return at_place(self.words, (self.line, self.column) if self.line else None)


def fault_of(error: Any, text: str) -> YamlFault:
    """The fault behind an error of the YAML parser."""
    words = in_plain_words(getattr(error, "problem", None) or str(error))
    marks = [getattr(error, "problem_mark", None), getattr(error, "context_mark", None)]
    mark = next((m for m in (marks[::-1] if words.key in _OPEN else marks) if m is not None), None)
    if mark is not None:
        return YamlFault(mark.line + 1, mark.column + 1, words)
    position = getattr(error, "position", None)  # of a character, of one that can't be read at all
    if isinstance(position, int):
        before = text[:position]
        return YamlFault(before.count("\n") + 1, position - before.rfind("\n"), words)
    return YamlFault(0, 0, words)


def in_plain_words(problem: str) -> Message:
    """A problem as the parser names it, in plain words; what is not known is quoted."""
    problem = (problem.splitlines() or ["?"])[0]
    for pattern, key in _FAULTS:
        match = re.fullmatch(pattern, problem)
        if match is not None:
            return Message(key, **match.groupdict())
    return Message("common.not_of_format", reason=problem, format="YAML")
