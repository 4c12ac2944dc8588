"""What is wrong with a YAML text and where, said to a person who did not write a YAML parser."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from autodeploy.messages import Message, at_place

# The parser's words, and the key of ours.
_FAULTS: tuple[tuple[str, str], ...] = (
    (r"found character '\\t' that cannot start any token", "profiles.tab_indent_with_blanks"),
    (r"found character (?P<sign>'.+') that cannot start any token", "profiles.begins_nothing"),
    (
        r"mapping values are not allowed here",
        "profiles.no_can_stand_here_indent_as_keys_above",
    ),
    (r"mapping keys are not allowed here", "profiles.no_can_stand_here_put_text_in_quotes"),
    (r"sequence entries are not allowed here", "profiles.no_can_stand_here_begin_new_line"),
    (r"could not find expected ':'", "profiles.and_blank_are_missing_after_key"),
    (r"expected <block end>, but found .+", "profiles.it_is_not_indented_as_what_stands_above"),
    (r"expected ',' or '(?P<sign>[\]}])', but got '<stream end>'", "profiles.never_closed_by"),
    (r"expected ',' or '(?P<sign>[\]}])', but got .+", "profiles.comma_or_sign_missing"),
    (r"found unexpected (end of stream|document separator)", "profiles.quote_is_never_closed"),
    (r'found duplicate key "(?P<key>.*?)".*', "profiles.key_twice"),
    (r"found undefined alias .+", "profiles.alias_names_nothing"),
    (r"found unhashable key", "profiles.list_or_mapping_is_no_key"),
    (
        r"(could not determine a constructor for the tag|found undefined tag handle) .+",
        "profiles.tags_have_no_meaning_here",
    ),
    (
        r"(found unknown escape character|expected escape sequence) .+",
        "profiles.backslash_begins_nothing_use_single_quotes",
    ),
    (r"expected the node content, but found .+", "profiles.value_is_missing"),
    (
        r"expected (a comment or a line break|chomping or .+), but found .+",
        "profiles.nothing_can_follow_here_in_this_line",
    ),
    (r"expected '<document start>', but found .+", "profiles.it_belongs_to_nothing_what_stands_above_is"),
    (
        r"aliases are not allowed in a profile",
        "profiles.aliases_are_not_allowed_in_profile",
    ),  # these two: `bounded_yaml`
    (r"nested more than (?P<depth>\d+) levels deep", "profiles.nested_more_than_levels_deep"),
    (r"unacceptable character .+", "profiles.control_character"),
)
# What is open is named where it was opened.
_OPEN = frozenset({"profiles.never_closed_by", "profiles.quote_is_never_closed"})


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
        found = re.fullmatch(pattern, problem)
        if found is not None:
            return Message(key, **found.groupdict())
    return Message("common.not_of_format", reason=problem, format="YAML")
