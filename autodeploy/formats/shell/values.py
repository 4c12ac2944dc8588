"""Values of shell variables: characters with the place they come from, and holes where a value isn't known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# A shell script as a tree.
@dataclass(frozen=True, slots=True)
class Text:
    """Characters as they stand in the source at `offset`; quoted ones are never split into words."""

    text: str
    offset: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$NAME`, `${NAME}`, `${NAME[@]}` or `${NAME:-operand}` with one of the operators `:- - := = :? ? :+ +`.

    The operator `:` is a slice, `#` the length of `${#NAME}` or `${#NAME[@]}`. `every` is `@` or `*` where all elements
    are meant; one of them, `${NAME[0]}`, has the name `NAME[0]`.
    """

    name: str
    offset: int
    quoted: bool
    every: str = ""
    operator: str = ""
    operand: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((expression))`."""

    expression: str
    offset: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A word that is not carried out: its value stays unknown, unless it is `$(...)` around what only prints."""

    source: str
    offset: int
    quoted: bool


Part = Text | Parameter | Arithmetic | Refused


@dataclass(frozen=True, slots=True)
class Word:
    """Parts without a blank between them."""

    parts: tuple[Part, ...]
    offset: int

    @property
    def plain(self) -> str | None:
        """The word where it has no substitution and no quotes: a keyword or a command's name."""
        if all(isinstance(part, Text) and not part.quoted for part in self.parts):
            return "".join(part.text for part in self.parts if isinstance(part, Text))
        return None


@dataclass(frozen=True, slots=True)
class Assignment:
    """`NAME=word`, `NAME+=word` or `NAME=(words)`."""

    name: str
    offset: int
    appends: bool
    value: Word | tuple[Word, ...]


Link = Literal["", "&&", "||", "|"]


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command; `link` joins it to the command before, `arithmetic` is the inside of `((...))`."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    offset: int
    link: Link = ""
    arithmetic: str | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """`if`: conditions with their bodies in order; the `else` body has no condition."""

    branches: tuple[tuple[Sequence[Statement], Sequence[Statement]], ...]
    otherwise: Sequence[Statement]
    offset: int


@dataclass(frozen=True, slots=True)
class Choice:
    """`case`: a word, and the patterns of each branch with its body."""

    word: Word
    branches: tuple[tuple[tuple[Word, ...], Sequence[Statement]], ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Function:
    """A function's body, followed where it is called."""

    name: str
    body: Sequence[Statement]
    offset: int


@dataclass(frozen=True, slots=True)
class Loop:
    """`for NAME in words`, `for ((header))`, `while` and `until` with their test, or `select`, which is never followed.

    `words` are None where a `for` goes over the arguments.
    """

    keyword: str
    offset: int
    body: Sequence[Statement]
    name: str = ""
    words: tuple[Word, ...] | None = None
    header: str | None = None
    test: Sequence[Statement] = ()


Statement = Command | Condition | Choice | Function | Loop


BLANKS = " \t\r\n"  # a carriage return ends the lines of some scripts


@lru_cache(maxsize=64)
def _fields(separators: str) -> re.Pattern[str]:
    """Separators of fields, those in `hard` even of an empty one, and what stands between them."""
    white = "".join(each for each in separators if each in BLANKS)
    hard = "".join(each for each in separators if each not in BLANKS)
    soft, ends = (f"[{re.escape(each)}]" if each else "(?!)" for each in (white, hard))
    either = f"[{re.escape(separators)}]" if separators else "(?!)"
    return re.compile(
        rf"(?P<hard>(?:{soft})*+{ends}(?:{soft})*+)|(?P<soft>(?:{soft})++)|(?:(?!{either}).)++", re.DOTALL
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Characters from one place of the source; `unknown` names what a hole stands for, such as `$1`."""

    text: str
    offset: int
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """One word, or the value of a variable."""

    runs: tuple[Run, ...] = ()

    @property
    def text(self) -> str:
        """The characters; a hole reads as the source that stands there."""
        return "".join(run.unknown or run.text for run in self.runs)

    @property
    def unknown(self) -> str:
        """The first hole, or nothing."""
        return next((run.unknown for run in self.runs if run.unknown), "")

    @property
    def place(self) -> str:
        """Name of a file: what is known behind the last hole, as its first folders are often the machine's."""
        last = max((index for index, run in enumerate(self.runs) if run.unknown), default=-1)
        known = "".join(run.text for run in self.runs[last + 1 :])
        return known.lstrip("/") if last >= 0 else known

    @property
    def offset(self) -> int:
        """Start of the value in the source."""
        return self.runs[0].offset if self.runs else 0

    @property
    def size(self) -> int:
        """Work that the value makes: each run as much as ten steps, and eight characters, copied at once, as one."""
        return sum(len(run.text) for run in self.runs) // 8 + 10 * len(self.runs)


def joined(values: Iterable[Value], between: str = " ") -> Value:
    """Values one after another with a blank between them, or what stands for it."""
    runs: list[Run] = []
    for index, value in enumerate(values):
        if index:
            runs.append(Run(between, value.offset))
        runs += value.runs
    return Value(tuple(runs))


def line_of(place: tuple[int, int, str]) -> str:
    """A place as the words of notes name it: its line, after the file where that is another one than the script."""
    return f"{place[2]}: line {place[0]}" if place[2] else f"line {place[0]}"


class WordBuilder:
    """Collects the words that one unexpanded word becomes; of an assignment's value only one.

    Source: POSIX.1-2017, Shell Command Language, 2.5.2 and 2.6; bash 5.2 where that leaves a choice.
    """

    def __init__(self, *, splits: bool = True) -> None:
        self.words: list[Value] = []
        self.splits = splits
        self._runs: list[Run] = []
        self._started = self._only_quotes = False
        self.kept = False  # inside quotes that stay, whatever becomes of their elements

    def add(self, runs: Iterable[Run]) -> None:
        """Characters that stay in the word."""
        self._runs += (run for run in runs if run.text or run.unknown)
        self._started = self._started or bool(self._runs)

    def begin(self, *, element: bool = False) -> None:
        """Makes a word of what follows, even of nothing, as quotes and elements in quotes do."""
        in_quotes = not self._started or (self.kept and self._only_quotes)
        self._started, self._only_quotes = True, in_quotes and not element

    def vanish(self) -> None:
        """Forgets the quotes around no element at all, unless something else began the word."""
        self._started = self._started and (self.kept or not self._only_quotes or bool(self._runs))

    def split(self, value: Value, separators: str = BLANKS) -> None:
        """Characters that blanks, or other separators, cut into words."""
        if not self.splits:
            self.add(value.runs)
            return
        for run in value.runs:
            if run.unknown:
                self.add([run])
                continue
            for match in _fields(separators).finditer(run.text):
                if match["hard"] or match["soft"]:
                    if match["hard"]:
                        self.begin(element=True)
                    self.cut()
                else:
                    self.add([Run(match.group(), run.offset + match.start())])

    def cut(self) -> None:
        """Ends the word."""
        if not self.splits:
            self._runs.append(Run(" ", self._runs[-1].offset if self._runs else 0))
            return
        if self._started:
            self.words.append(Value(tuple(self._runs)))
        self._runs, self._started = [], False

    def finish(self) -> list[Value]:
        """All words."""
        if self.splits:
            self.cut()
            return self.words
        return [Value(tuple(self._runs))]
