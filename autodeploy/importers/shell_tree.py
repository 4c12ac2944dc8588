"""A shell script as a tree: words of parts, commands, conditions. What the reader makes and the follower walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    """What is never carried out, such as a command substitution: its value stays unknown."""

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
class NotFollowed:
    """A loop: what it does depends on more than the script."""

    keyword: str
    offset: int


Statement = Command | Condition | Choice | Function | NotFollowed
