"""What is wrong with a YAML text and where, said to a person who did not write a YAML parser."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

# The parser's words, and ours.
_FAULTS: tuple[tuple[str, str], ...] = (
    (r"found character '\\t' that cannot start any token", "a tab: indent with blanks"),
    (r"found character (?P<sign>'.+') that cannot start any token", "{sign} begins nothing: put the text in quotes"),
    (
        r"mapping values are not allowed here",
        "no ':' can stand here: indent as the keys above, or put the text in quotes",
    ),
    (r"mapping keys are not allowed here", "no '?' can stand here: put the text in quotes"),
    (r"sequence entries are not allowed here", "no '- ' can stand here: begin a new line"),
    (r"could not find expected ':'", "':' and a blank are missing after a key"),
    (r"expected <block end>, but found .+", "it is not indented as what stands above"),
    (r"expected ',' or '(?P<sign>[\]}])', but got '<stream end>'", "it is never closed by {sign}"),
    (r"expected ',' or '(?P<sign>[\]}])', but got .+", "',' or {sign} is missing"),
    (r"found unexpected (end of stream|document separator)", "a quote is never closed"),
    (r'found duplicate key "(?P<key>.*?)".*', "the key {key} is given twice"),
    (r"found undefined alias .+", "the alias names nothing"),
    (r"found unhashable key", "a list or a mapping is no key"),
    (r"(could not determine a constructor for the tag|found undefined tag handle) .+", "tags (!) have no meaning here"),
    (r"(found unknown escape character|expected escape sequence) .+", "a backslash begins nothing: use single quotes"),
    (r"expected the node content, but found .+", "a value is missing"),
    (r"expected (a comment or a line break|chomping or .+), but found .+", "nothing can follow here in this line"),
    (r"expected '<document start>', but found .+", "it belongs to nothing: what stands above is complete"),
    (r"aliases are not allowed in a profile", "aliases are not allowed in a profile"),  # these two: `bounded_yaml`
    (r"nested more than (?P<depth>\d+) levels deep", "nested more than {depth} levels deep"),
    (r"unacceptable character .+", "a control character"),
)
# What is open is named where it was opened.
_OPEN = ("it is never closed", "a quote is never closed")


class YamlFault(NamedTuple):
    """A place, counted from 1, and what is wrong there; line 0 where the parser names none."""

    line: int
    column: int
    words: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.words}" if self.line else self.words


def fault_of(error: Any, text: str) -> YamlFault:
    """The fault behind an error of the YAML parser."""
    words = in_plain_words(getattr(error, "problem", None) or str(error))
    marks = [getattr(error, "problem_mark", None), getattr(error, "context_mark", None)]
    mark = next((m for m in (marks[::-1] if words.startswith(_OPEN) else marks) if m is not None), None)
    if mark is not None:
        return YamlFault(mark.line + 1, mark.column + 1, words)
    position = getattr(error, "position", None)  # of a character, of one that can't be read at all
    if isinstance(position, int):
        before = text[:position]
        return YamlFault(before.count("\n") + 1, position - before.rfind("\n"), words)
    return YamlFault(0, 0, words)


def in_plain_words(problem: str) -> str:
    """A problem as the parser names it, in plain words; what is not known is quoted."""
    problem = (problem.splitlines() or ["?"])[0]
    for pattern, words in _FAULTS:
        found = re.fullmatch(pattern, problem)
        if found is not None:
            for name, value in found.groupdict().items():
                words = words.replace(f"{{{name}}}", value)
            return words
    return f"not YAML: {problem}"
