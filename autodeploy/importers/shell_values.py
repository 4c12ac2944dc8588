"""Values of shell variables: characters with the place they come from, and holes where a value isn't known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_BLANKS = re.compile(r"[ \t\r\n]+|[^ \t\r\n]+")  # a carriage return ends the lines of some scripts


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
    def offset(self) -> int:
        """Where the value begins in the source."""
        return self.runs[0].offset if self.runs else 0

    @property
    def size(self) -> int:
        """Work that the value makes: its characters, and each run as much as ten of them."""
        return sum(len(run.text) for run in self.runs) + 10 * len(self.runs)


def joined(values: Iterable[Value]) -> Value:
    """Values one after another with a blank between them."""
    runs: list[Run] = []
    for index, value in enumerate(values):
        if index:
            runs.append(Run(" ", value.offset))
        runs += value.runs
    return Value(tuple(runs))


class WordBuilder:
    """Collects the words that one unexpanded word becomes; of an assignment's value only one.

    Source: POSIX.1-2017, Shell Command Language, 2.5.2 and 2.6; bash 5.2 where that leaves a choice.
    """

    def __init__(self, *, splits: bool = True) -> None:
        self.words: list[Value] = []
        self._splits = splits
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

    def split(self, value: Value) -> None:
        """Characters that blanks cut into words."""
        if not self._splits:
            self.add(value.runs)
            return
        for run in value.runs:
            if run.unknown:
                self.add([run])
                continue
            for match in _BLANKS.finditer(run.text):
                if match.group().isspace():
                    self.cut()
                else:
                    self.add([Run(match.group(), run.offset + match.start())])

    def cut(self) -> None:
        """Ends the word."""
        if not self._splits:
            self._runs.append(Run(" ", self._runs[-1].offset if self._runs else 0))
            return
        if self._started:
            self.words.append(Value(tuple(self._runs)))
        self._runs, self._started = [], False

    def finish(self) -> list[Value]:
        """All words."""
        if self._splits:
            self.cut()
            return self.words
        return [Value(tuple(self._runs))]
