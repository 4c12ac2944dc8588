"""Words of a shell script: quotes, escapes, `$` substitutions. Nothing is carried out.

A bad script is refused with line and column. Nesting is bounded, and every character is read a bounded number of times.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from autodeploy.formats.shell.values import Arithmetic, Parameter, Part, Refused, Text, Word
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, at_place
from autodeploy.specs.document_bounds import MAX_DEPTH, MAX_LAUNCH_CHARACTERS, refuse_long

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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
        self._depth = 0
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
        before, file = next(each for each in reversed(self._files) if each[0] < line)
        return line - before, offset - self._starts[line - 1] + 1, file

    def error(self, offset: int, message: str, hint: str = "") -> SpecError:
        """What is wrong at that place."""
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
                end = self.text.find(character, self.position + 1)
                if end < 0:
                    break
                self.position = end
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
            raise self.error(start, Message("profiles.nested_more_than_levels_deep", depth=MAX_DEPTH))
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
