"""Values of shell variables: characters with the place they come from, and holes where a value isn't known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_BLANKS = re.compile(r"\s+|\S+")


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
    for value in values:
        if runs:
            runs.append(Run(" ", value.offset))
        runs += value.runs
    return Value(tuple(runs))


class WordBuilder:
    """Collects the words that one unexpanded word becomes."""

    def __init__(self) -> None:
        self.words: list[Value] = []
        self._runs: list[Run] = []
        self._started = False

    def add(self, runs: Iterable[Run]) -> None:
        """Characters that stay in the word."""
        self._runs += runs
        self._started = True

    def split(self, value: Value) -> None:
        """Characters that blanks cut into words."""
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
        if self._started:
            self.words.append(Value(tuple(self._runs)))
        self._runs, self._started = [], False

    def finish(self) -> list[Value]:
        """All words."""
        self.cut()
        return self.words
