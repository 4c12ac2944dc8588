"""Words and statements of a shell script: assignments, arrays, conditions, functions. Nothing is carried out."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING

from autodeploy.formats.shell.values import (
    Arithmetic,
    Assignment,
    Choice,
    Command,
    Condition,
    Function,
    Link,
    Loop,
    Parameter,
    Part,
    Refused,
    Statement,
    Text,
    Word,
)
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, at_place, joined
from autodeploy.specs.text_files import MAX_DEPTH, MAX_LAUNCH_CHARACTERS, refuse_long

if TYPE_CHECKING:
    from collections.abc import Collection


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTES = {"'": re.compile(r"'[^']*+'"), '"': re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)}
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?!$-]")
_BRACED = re.compile(rf"\$\{{(#?)({_PARAMETER.pattern})(?:\[(['\"]?)([@*]|-?\w{{1,60}})\3\])?(\}}|:?[-=?+]|:)")
_ANSI_QUOTED = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ANSI_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_ANSI = dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True))
_HERE_TEXT = re.compile(r"\$\(\s*cat\s*<<-?\s*(['\"]?)([A-Za-z_]\w*)\1[ \t]*\r?\n")
_IN_HERE_TEXT = re.compile(r"[^\\$`]+")
MAX_WORDS = 20_000
_ENDS = frozenset(" \t\r\n;&|<>()")
_PLAIN = re.compile(r"[^\s;&|<>()\\'\"$`]+")
_IN_QUOTES = re.compile(r'[^"\\$`]+')
_IN_OPERAND = re.compile(r"[^}\\'\"$`]+")


def _starts(text: str, offset: int) -> list[int]:
    """Offsets at which lines begin."""
    return [offset, *(offset + match.end() for match in re.finditer("\n", text))]


class WordReader:
    """Reads words of one text, from `position` on."""

    def __init__(self, text: str) -> None:
        refuse_long(text, MAX_LAUNCH_CHARACTERS)
        self.text = text
        self.position = 0
        self._depth = self._texts = 0
        self._words = 0
        self._starts = _starts(text, 0)
        self._files = [(0, "")]

    def append(self, text: str, file: str) -> None:
        """Goes on with another file, whose name is told with every place in it."""
        refuse_long(self.text + text, MAX_LAUNCH_CHARACTERS)
        self.position = len(self.text) + 1
        self.text += f"\n{text}"
        self._starts += _starts(text, self.position)
        self._files.append((len(self._starts) - text.count("\n") - 1, file))

    def place(self, offset: int) -> tuple[int, int, str]:
        """Line and column, both from 1, and the name of the file where it is another one than the script itself."""
        line = bisect_right(self._starts, offset)
        before, file = self._files[bisect_left(self._files, line, key=itemgetter(0)) - 1]
        return line - before, offset - self._starts[line - 1] + 1, file

    def error(self, offset: int, message: str, hint: str = "") -> SpecError:
        """Fault at that place."""
        return SpecError(at_place(message, self.place(offset)), hint=hint)

    def peek(self, length: int = 1) -> str:
        """The next characters, without taking them."""
        return self.text[self.position : self.position + length]

    def skip_blanks(self) -> None:
        """Blanks and continued lines."""
        while True:
            character = self.peek()
            if character and character in " \t\r":
                self.position += 1
            elif (joined := self._continuation()) > 0:
                self.position += joined
            else:
                return

    def word(self) -> Word:
        """The word at the position; it has at least one character."""
        start, parts = self.position, list[Part]()
        self._words += 1
        if self._words > MAX_WORDS:
            raise self.error(start, Message("field_fault.at_most_entries", bound=f"{MAX_WORDS:,}"))
        while self.position < len(self.text):
            character = self.text[self.position]
            if character in _ENDS:
                break
            match = _PLAIN.match(self.text, self.position)
            if match:
                parts.append(Text(match.group(), self.position, quoted=False))
                self.position = match.end()
            else:
                parts += self._special(quoted=False)
        return Word(tuple(parts), start)

    def name_before(self, mark: str) -> str | None:
        """The name that stands right before the mark, such as `=`, at the position."""
        match = _NAME.match(self.text, self.position)
        return match.group() if match and self.text.startswith(mark, match.end()) else None

    def balanced(self, opening: str, closing: str) -> str:
        """The inside of brackets that open at the position; quotes hide brackets."""
        start, level = self.position, 0
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == "\\":
                self.position += 1
            elif character in "'\"":
                quoted = _QUOTES[character].match(self.text, self.position)
                if quoted is None:
                    break
                self.position = quoted.end() - 1
            elif character == opening:
                level += 1
            elif character == closing:
                level -= 1
                if level == 0:
                    self.position += 1
                    return self.text[start + 1 : self.position - 1]
            self.position += 1
        raise self.error(start, Message("common.missing", word=repr(closing)))

    def _continuation(self) -> int:
        if self.peek(2) == "\\\n":
            return 2
        return 3 if self.peek(3) == "\\\r\n" else 0

    def _special(self, *, quoted: bool) -> list[Part]:
        """Escape, quote, substitution at the position."""
        start, character = self.position, self.text[self.position]
        if joined := self._continuation():
            self.position += joined
            return []
        if character == "\\":
            self.position += 2
            if quoted and self.text[start + 1 : start + 2] not in {"$", "`", '"', "\\", *("}" if self._depth else "")}:
                return [Text(self.text[start : start + 2], start, quoted)]
            return [Text(self.text[start + 1 : start + 2], start + 1, quoted=True)]
        if self.peek(2) == '$"' and not quoted:  # a text that may be translated
            self.position += 1
            return self._double_quoted()
        if character == "$":
            match = _HERE_TEXT.match(self.text, start)
            return [self._dollar(quoted=quoted)] if match is None else self._here_text(match, quoted=quoted)
        if character == "`":
            end = self.text.find("`", start + 1)
            if end < 0:
                raise self.error(start, Message("common.missing", word="'`'"))
            self.position = end + 1
            return [Refused(self.text[start : end + 1], start, quoted)]
        if character == "'" and not quoted:
            return [self._single_quoted(start)]
        if character == '"' and not quoted:
            return self._double_quoted()
        self.position += 1
        return [Text(character, start, quoted)]

    def _here_text(self, match: re.Match[str], *, quoted: bool) -> list[Part]:
        """`$(cat <<NAME`: the lines up to NAME, with their substitutions unless NAME is quoted."""
        end = re.compile(rf"^\t*+{match[2]}\s*+\)", re.MULTILINE).search(self.text, match.end())
        if end is None:
            raise self.error(match.start(), Message("common.missing", word=repr(match[2])))
        self.position = match.end()
        self._texts += 1
        if self._texts > MAX_DEPTH:
            raise self.error(match.start(), Message("profiles.nested_too_deep", depth=MAX_DEPTH))
        # Line ends at the end go, as of every substitution.
        limit = self.position + len(self.text[self.position : end.start()].rstrip("\r\n"))
        parts: list[Part] = []
        while self.position < limit:
            plain = _IN_HERE_TEXT.match(self.text, self.position, limit)
            if match[1] or plain:
                stop = limit if plain is None or match[1] else plain.end()
                parts.append(Text(self.text[self.position : stop], self.position, quoted))
                self.position = stop
            else:
                parts += self._special(quoted=True)
        self.position = end.end()
        self._texts -= 1
        return parts

    def _single_quoted(self, start: int) -> Text:
        end = self.text.find("'", self.position + 1)
        if end < 0:
            raise self.error(start, Message("common.missing", word="'"))
        inside = self.position + 1
        self.position = end + 1
        return Text(self.text[inside:end], inside, quoted=True)

    def _double_quoted(self) -> list[Part]:
        start = self.position
        self.position += 1
        parts: list[Part] = [Text("", start, quoted=True)]  # "" is a word too
        while self.position < len(self.text):
            if self.peek() == '"':
                self.position += 1
                return parts
            match = _IN_QUOTES.match(self.text, self.position)
            if match:
                parts.append(Text(match.group(), self.position, quoted=True))
                self.position = match.end()
            else:
                parts += self._special(quoted=True)
        raise self.error(start, Message("common.missing", word='"'))

    def _dollar(self, *, quoted: bool) -> Part:
        start = self.position
        if self.peek(3) == "$((":
            self.position += 1
            inside = self.balanced("(", ")")
            if inside.startswith("(") and inside.endswith(")"):
                return Arithmetic(inside[1:-1], start, quoted)
            return Refused(self.text[start : self.position], start, quoted)
        if self.peek(2) == "$[":  # what $((...)) was written as before
            self.position += 1
            return Arithmetic(self.balanced("[", "]"), start, quoted)
        if self.peek(2) == "$(":
            self.position += 1
            self.balanced("(", ")")
            return Refused(self.text[start : self.position], start, quoted)
        if self.peek(2) == "${":
            return self._braced(quoted=quoted)
        if not quoted and (match := _ANSI_QUOTED.match(self.text, start)):
            self.position = match.end()
            return Text(_ANSI_ESCAPE.sub(_unescaped, match[1]), start + 2, quoted=True)
        match = _PARAMETER.match(self.text, start + 1)
        if match is None:
            self.position += 1
            return Text("$", start, quoted)
        name = match.group() if match.group()[0].isalpha() or match.group()[0] == "_" else match.group()[0]
        self.position = start + 1 + len(name)
        return Parameter(name, start, quoted, name if name in {"@", "*"} else "")

    def _braced(self, *, quoted: bool) -> Part:
        start = self.position
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error(start, Message("profiles.nested_too_deep", depth=MAX_DEPTH))
        try:
            if match := _BRACED.match(self.text, start):
                counts, name, _, index, operator = match.groups()
                every = index if index in {"@", "*"} else name if name in {"@", "*"} else ""
                name = name if index is None or every else f"{name}[{index}]"
                if operator == "}" or not counts:
                    self.position = match.end()
                    if operator == "}":
                        return Parameter(name, start, quoted, every, counts)
                    # Offset and length of a slice are numbers: never split.
                    operand = self._operand(start, quoted=quoted or operator == ":")
                    return Parameter(name, start, quoted, every, operator, operand)
            self.position = start + 1
            self.balanced("{", "}")
            return Refused(self.text[start : self.position], start, quoted)
        finally:
            self._depth -= 1

    def _operand(self, start: int, *, quoted: bool) -> tuple[Part, ...]:
        parts: list[Part] = []
        while self.position < len(self.text):
            if self.peek() == "}":
                self.position += 1
                return tuple(parts)
            match = _IN_OPERAND.match(self.text, self.position)
            if match:
                parts.append(Text(match.group(), self.position, quoted))
                self.position = match.end()
            elif self.peek() == '"':
                parts += self._double_quoted()
            elif self.peek() == "'" and not quoted:
                parts.append(self._single_quoted(self.position))
            else:
                parts += self._special(quoted=quoted)
        raise self.error(start, Message("common.missing", word="'}'"))


def _unescaped(match: re.Match[str]) -> str:
    """A character that `$'...'` writes with a backslash."""
    octal, hexadecimal, letter = match.groups()
    if letter is None:
        return chr(int(octal, 8) & 0xFF if octal else int(hexadecimal, 16))
    return _ANSI.get(letter, letter if letter in "\\'\"?" else f"\\{letter}")


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

        Raises SpecError with line and column, when the script is not well formed or nested too deep.
        """
        statements, _ = self._statements(())
        return statements

    def _statements(self, ends: Collection[str]) -> tuple[list[Statement], str]:
        """Statements up to one of the keywords, which is taken; `""` is the end of the text."""
        self._level += 1
        start, statements = self.position, list[Statement]()
        if self._level > MAX_DEPTH:
            raise self.error(start, Message("profiles.nested_too_deep", depth=MAX_DEPTH))
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
            name, words, header = self._loop_words() if keyword in {"for", "select"} else ("", None, None)
            test, _ = self._statements(("do",))
            body, _ = self._statements(("done",))
            return [Loop(keyword, start, body, name, words, header, test)]
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

    def _loop_words(self) -> tuple[str, tuple[Word, ...] | None, str | None]:
        """Variable behind `for`, and the words that it goes through or the inside of `((...))`."""
        header, words = None, list[Word]()
        while True:
            self.skip_blanks()
            if self.peek() in {"", "\n", ";"}:
                break
            if self.peek(2) == "((":
                header = self.balanced("(", ")")[1:-1]
            elif self.peek() in "()<>&|":
                raise self.error(self.position, Message("importers.unexpected", token=repr(self.peek())))
            else:
                words.append(self.word())
        self._separators("")
        name = words[0].plain or "" if words else ""
        return name, tuple(words[2:]) if len(words) > 1 and words[1].plain == "in" else None, header

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
