"""Statements of a shell script: commands, assignments, arrays, conditions, functions. Nothing is carried out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autodeploy.formats.shell.values import (
    Assignment,
    Choice,
    Command,
    Condition,
    Function,
    Link,
    NotFollowed,
    Statement,
    Text,
    Word,
)
from autodeploy.formats.shell.words import WordReader
from autodeploy.messages import Message, joined
from autodeploy.specs.document_bounds import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Collection

_REDIRECTION = re.compile(r"\d*(<<<|<<-?|>>|<>|>\||[<>]&?)|&>>?")
_FUNCTION = re.compile(r"(?:function\s+)?([A-Za-z_][\w-]*)\s*\(\s*\)\s*\{|function\s+([A-Za-z_][\w-]*)\s*\{")
_NO_PATTERN = frozenset("\n;&<>()|")
_LOOPS = frozenset({"for", "while", "until", "select"})
_CLOSING = {"then": "if", "elif": "if", "else": "if", "fi": "if", "do": "for", "done": "for", "}": "{", "esac": "case"}


class StatementReader(WordReader):
    """Reads a whole script."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = 0
        self._here_documents: list[str] = []

    def script(self) -> list[Statement]:
        """All statements.

        Raises
        ------
        SpecError
            with line and column, when the script is not well formed or nested too deep.
        """
        statements, _ = self._statements(())
        return statements

    def _statements(self, ends: Collection[str]) -> tuple[list[Statement], str]:
        """Statements up to one of the keywords, which is taken; `""` is the end of the text."""
        self._level += 1
        start, statements = self.position, list[Statement]()
        if self._level > MAX_DEPTH:
            raise self.error(start, Message("profiles.nested_more_than_levels_deep", depth=MAX_DEPTH))
        link: Link = ""
        while True:
            link = self._separators(link)
            if self.position >= len(self.text):
                if ends:
                    raise self.error(
                        max(0, start - 1), Message("common.missing", word=joined(map(repr, sorted(ends)), "or"))
                    )
                self._level -= 1
                return statements, ""
            keyword = self._keyword()
            if keyword in ends:
                self.position += len(keyword)
                self._level -= 1
                return statements, keyword
            if keyword in _CLOSING:
                raise self.error(self.position, Message("importers.unexpected", token=repr(keyword)))
            statements += self._statement(keyword, link)
            link = ""

    def _separators(self, link: Link) -> Link:
        """Blanks, comments, line ends and the operators between commands; returns how the next one is joined."""
        while self.position < len(self.text):
            self.skip_blanks()
            character = self.peek()
            if character == "#":
                end = self.text.find("\n", self.position)
                self.position = len(self.text) if end < 0 else end
            elif character == "\n":
                self.position += 1
                self._skip_here_documents()
            elif self.peek(2) in {"&&", "||"}:
                link = "&&" if character == "&" else "||"
                self.position += 2
            elif character == "|":
                link = "|"
                self.position += 1
            elif (character == ";" and self.peek(2) != ";;") or (character == "&" and self.peek(2) != "&>"):
                link = ""
                self.position += 1
            else:
                break
        return link

    def _keyword(self) -> str:
        match = re.compile(r"[a-z]+(?=[\s;(]|$)|[{}](?=[\s;]|$)|;;|\)").match(self.text, self.position)
        return match.group() if match else ""

    def _statement(self, keyword: str, link: Link) -> list[Statement]:
        start = self.position
        function = _FUNCTION.match(self.text, start)
        if function:
            self.position = function.end()
            body, _ = self._statements(("}",))
            return [Function(function[1] or function[2], body, start)]
        if keyword == "if":
            self.position += 2
            return [self._condition(start)]
        if keyword in _LOOPS:
            self.position += len(keyword)
            if keyword in {"for", "select"}:
                self._skip_words()
                self._separators("")
            self._statements(("do",))
            self._statements(("done",))
            return [NotFollowed(keyword, start)]
        if keyword == "case":
            return [self._choice(start)]
        if keyword == "{":
            self.position += 1
            body, _ = self._statements(("}",))
            return body
        if self.peek(2) == "((":
            inside = self.balanced("(", ")")
            return [Command((), (), start, link, arithmetic=inside[1:-1])]
        if self.peek() == "(":
            self.position += 1
            body, _ = self._statements((")",))
            return body
        return [self._command(link)]

    def _condition(self, start: int) -> Condition:
        branches = []
        end = "elif"
        while end == "elif":
            test, _ = self._statements(("then",))
            body, end = self._statements(("elif", "else", "fi"))
            branches.append((test, body))
        otherwise = self._statements(("fi",))[0] if end == "else" else []
        return Condition(tuple(branches), otherwise, start)

    def _choice(self, start: int) -> Choice:
        self.position += len("case")
        self.skip_blanks()
        word = self.word()
        self._separators("")
        if self._keyword() != "in":
            raise self.error(start, Message("common.missing", word="'in'"))
        self.position += len("in")
        branches, end = [], ";;"
        while end == ";;":
            self._separators("")
            if self._keyword() == "esac":
                self.position += len("esac")
                break
            patterns = self._patterns(start)
            body, end = self._statements((";;", "esac"))
            branches.append((patterns, body))
        return Choice(word, tuple(branches), start)

    def _patterns(self, start: int) -> tuple[Word, ...]:
        """`a | b)`, with or without a bracket before it."""
        self.position += self.peek() == "("
        patterns = list[Word]()
        while True:
            self.skip_blanks()
            if self.position < len(self.text) and self.peek() not in _NO_PATTERN:
                patterns.append(self.word())
                self.skip_blanks()
            end = self.peek()
            if not end:
                raise self.error(start, Message("common.missing", word="'esac'"))
            if end not in "|)" or not patterns:
                raise self.error(self.position, Message("importers.unexpected", token=repr(end)))
            self.position += 1
            if end == ")":
                return tuple(patterns)

    def _skip_words(self) -> None:
        while True:
            self.skip_blanks()
            if self.peek() in {"", "\n", ";"}:
                return
            if self.peek(2) == "((":
                self.balanced("(", ")")
            elif self.peek() in "()<>&|":
                raise self.error(self.position, Message("importers.unexpected", token=repr(self.peek())))
            else:
                self.word()

    def _command(self, link: Link) -> Command:
        start, words, assignments = self.position, list[Word](), list[Assignment]()
        in_test = False
        while True:
            self.skip_blanks()
            character = self.peek()
            if character in {"", "\n"} or (character == "#" and self.text[self.position - 1] in " \t\n"):
                break
            if in_test and character in "<>&|()":
                operator = self.peek(2) if self.peek(2) in {"&&", "||"} else character
                words.append(Word((Text(operator, self.position, quoted=False),), self.position))
                self.position += len(operator)
                continue
            if not words and (assignment := self._assignment()):
                assignments.append(assignment)
                continue
            if words and words[0].plain in {"export", "declare", "local", "readonly", "typeset"}:
                assignment = self._assignment()
                if assignment:
                    assignments.append(assignment)
                    continue
            redirection = _REDIRECTION.match(self.text, self.position)
            if redirection:
                self._skip_redirection(redirection)
                continue
            if character in ";&|)":
                break
            if character == "(":
                raise self.error(self.position, Message("importers.unexpected", token="'('"))
            words.append(self.word())
            in_test = words[0].plain == "[[" and words[-1].plain != "]]"
        if not words and not assignments and self.position == start:
            raise self.error(start, Message("importers.unexpected", token=repr(self.peek())))
        return Command(tuple(words), tuple(assignments), start, link)

    def _assignment(self) -> Assignment | None:
        start = self.position
        name, appends = self.name_before("="), False
        if name is None:
            name, appends = self.name_before("+="), True
        if name is None:
            return None
        self.position += len(name) + (2 if appends else 1)
        if self.peek() == "(":
            return Assignment(name, start, appends, self._array())
        return Assignment(name, start, appends, self.word())

    def _array(self) -> tuple[Word, ...]:
        start, words = self.position, list[Word]()
        self.position += 1
        while self.position < len(self.text):
            self._separators("")
            if self.peek() == ")":
                self.position += 1
                return tuple(words)
            if self.peek() in {"", "(", "<", ">", ";"}:
                break
            words.append(self.word())
        raise self.error(start, Message("common.missing", word="')'"))

    def _skip_redirection(self, redirection: re.Match[str]) -> None:
        self.position = redirection.end()
        self.skip_blanks()
        if self.peek() == "(":  # process substitution
            self.balanced("(", ")")
            return
        if self.peek() in {"", "\n", ";"}:
            raise self.error(self.position, Message("importers.unexpected", token=repr(self.peek())))
        target = self.word()
        if (redirection[1] or "").startswith("<<") and redirection[1] != "<<<":
            self._here_documents.append("".join(part.text for part in target.parts if isinstance(part, Text)))

    def _skip_here_documents(self) -> None:
        for delimiter in self._here_documents:
            match = re.compile(rf"^\t*+{re.escape(delimiter)}[ \t\r]*+$", re.MULTILINE).search(self.text, self.position)
            self.position = len(self.text) if match is None else match.end()
        self._here_documents.clear()
