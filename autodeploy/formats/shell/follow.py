"""Follows a script from top to bottom without running it: which variables it sets and which commands it would start."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from autodeploy.formats.shell.expansion import Variables
from autodeploy.formats.shell.statements import StatementReader
from autodeploy.formats.shell.values import Choice, Command, Condition, Function, NotFollowed, Run, Text, Value
from autodeploy.messages import Message
from autodeploy.specs.text_files import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.formats.shell.values import Statement, Word


# Conditions of `[ ]`, `[[ ]]` and `test`, decided where all they compare is known.
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}
_MAX_DIGITS = 18


def truth(words: list[Value]) -> bool | None:
    """Whether the condition holds; None where that depends on something unknown, such as whether a file exists."""
    inside = [word for word in words[1:] if word.text not in {"]", "]]"} or word.unknown]
    return _any(inside)


def _split(words: list[Value], operators: set[str]) -> list[list[Value]]:
    parts: list[list[Value]] = [[]]
    for word in words:
        if word.text in operators and not word.unknown:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _any(words: list[Value]) -> bool | None:
    results = [_all(part) for part in _split(words, {"||", "-o"})]
    return True if True in results else None if None in results else False


def _all(words: list[Value]) -> bool | None:
    results = [_one(part) for part in _split(words, {"&&", "-a"})]
    return False if False in results else None if None in results else True


def _one(words: list[Value]) -> bool | None:
    if words and words[0].text == "!":
        result = _one(words[1:])
        return None if result is None else not result
    if any(word.unknown for word in words) or any(word.text in {"(", ")"} for word in words):
        return None
    texts = [word.text for word in words]
    if len(texts) == 1:
        return texts[0] != ""
    if len(texts) == 2 and texts[0] in {"-n", "-z"}:
        return (texts[1] != "") == (texts[0] == "-n")
    if len(texts) == 3 and texts[1] in {"=", "==", "!="} and not set(texts[2]) & set("*?["):
        return (texts[0] == texts[2]) == (texts[1] != "!=")
    if len(texts) == 3 and texts[1] in _NUMBERS and _is_number(texts[0]) and _is_number(texts[2]):
        return _NUMBERS[texts[1]](int(texts[0]), int(texts[2]))
    return None


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit() and len(text) <= _MAX_DIGITS


ARGUMENTS = ("@", "*")
TESTS = frozenset({"[", "test"})
MAX_COMMANDS = 20_000
MAX_ARGUMENTS = 1_000
_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)


@dataclass(slots=True)
class Followed:
    """What a script does, as far as that can be said without running it.

    `commands` are the words of each command in order; `notes` pairs of an offset and what was not followed there.
    """

    source: StatementReader
    variables: Variables
    environment: dict[str, Value] = field(default_factory=dict)
    commands: list[tuple[int, list[Value]]] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)


def follow(text: str, given: Mapping[str, str] | None = None) -> Followed:
    """Reads and follows a script; `given` are variables set from outside.

    Raises
    ------
    SpecError
        with line and column where the script is not well formed; when it is nested or expands without measure.
    """
    source = StatementReader(text)
    statements = source.script()
    variables = Variables(source, given or {})
    follower = _Follower(Followed(source, variables), set(given or {}))
    follower.run(statements)
    followed = follower.followed
    refused = {(source.place(offset)[0], text[:60]): offset for offset, text in reversed(variables.refused)}
    for (_, text), offset in refused.items():  # of one line once
        followed.notes.append((offset, Message("importers.is_not_carried_out_its_value_stays_unknown", text=text)))
    followed.notes = sorted(set(followed.notes))
    return followed


class _Follower:
    def __init__(self, followed: Followed, fixed: set[str]) -> None:
        self.followed = followed
        self.variables = followed.variables
        self._fixed = fixed
        self._functions: dict[str, Sequence[Statement]] = {}
        self._depth = 0
        self._count = 0

    def run(self, statements: Sequence[Statement]) -> bool | None:
        """Follows the statements; the last command's status: true, false, or None where it can't be known."""
        status: bool | None = True
        skipped = False
        for statement in statements:
            if isinstance(statement, Function):
                self._functions[statement.name] = statement.body
            elif isinstance(statement, NotFollowed):
                self.followed.notes.append(
                    (statement.offset, Message("importers.is_not_followed", text=repr(statement.keyword)))
                )
            elif isinstance(statement, Condition):
                self._branch(statement)
                status = None
            elif isinstance(statement, Choice):
                self._choose(statement)
                status = None
            else:
                skipped = self._is_skipped(statement, status, skipped=skipped)
                if not skipped:
                    status = self._command(statement)
        return status

    def _is_skipped(self, command: Command, status: bool | None, *, skipped: bool) -> bool:
        """Whether `&&` or `||` keeps the command from running. What can't be known is taken to have worked."""
        if command.link == "&&":
            return skipped or status is False
        if command.link == "||":
            return status is not False
        return False

    def _branch(self, condition: Condition) -> None:
        for test, body in condition.branches:
            met = self.run(test)
            if met is None:
                self.followed.notes.append((condition.offset, Message("importers.condition_is_not_known", word="if")))
                return
            if met:
                self.run(body)
                return
        self.run(condition.otherwise)

    def _choose(self, choice: Choice) -> None:
        """Follows the first branch whose pattern fits a word that is known."""
        word = self.variables.value(choice.word)
        for patterns, body in choice.branches:
            met = [None if word.unknown else self._fits(word, pattern) for pattern in patterns]
            if True in met:
                self.run(body)
                return
            if None in met:
                self.followed.notes.append((choice.offset, Message("importers.condition_is_not_known", word="case")))
                return

    def _fits(self, word: Value, pattern: Word) -> bool | None:
        """Whether the word fits a pattern, where quotes make `*?[` plain; None where the pattern isn't known."""
        glob = ""
        for part in pattern.parts:
            if isinstance(part, Text):
                glob += re.sub(r"([*?\[])", r"[\1]", part.text) if part.quoted else part.text
            else:
                value = self.variables.value(type(pattern)((part,), pattern.offset))
                if value.unknown:
                    return None
                glob += value.text
        return fnmatchcase(word.text, glob)

    def _command(self, command: Command) -> bool | None:
        self._count += 1
        if self._count > MAX_COMMANDS:
            raise self.followed.source.error(
                command.offset, Message("importers.script_follows_more_than_commands", count=MAX_COMMANDS)
            )
        if command.arithmetic is not None:
            if self._assign_number(command.arithmetic, command.offset):
                return None
            if "=" in command.arithmetic.replace("==", "").replace("!=", "").replace("<=", "").replace(">=", ""):
                self.followed.notes.append(
                    (command.offset, Message("importers.is_not_followed", text=f"(({command.arithmetic[:40]}))"))
                )
                return None
            number = self.variables.number(command.arithmetic, command.offset)
            return None if number is None else number != 0
        name = command.words[0].plain if command.words else None
        self._assign(command, exports=name == "export")
        if name is None and not command.words:
            return True
        if name == "[[":  # splits no word
            return truth([self.variables.value(word) for word in command.words])
        words = [value for word in command.words for value in self.variables.words(word)]
        if name in TESTS:
            return truth(words)
        if name in self._functions:
            return self._call(name, words[1:], command.offset)
        if name == "export":
            for word in words[1:]:
                if (assigned := self.variables.known(word.text)) is not None:
                    self.followed.environment[word.text] = assigned
        elif name == "unset":
            for word in words[1:]:
                if word.text not in self._fixed:
                    self.variables.unset(word.text)
                    self.followed.environment.pop(word.text, None)
        elif name == "let":
            for word in words[1:]:
                if not self._assign_number(word.text, command.offset):
                    self.followed.notes.append((command.offset, f"'let {word.text[:50]}' is not followed"))
        elif name == "shift" and "@" in self.variables.arrays:
            steps = int(words[1].text) if len(words) > 1 and words[1].text.isdigit() else 1
            self._set_arguments(list(self.variables.arrays["@"][steps:]), command.offset)
        elif words:
            self.followed.commands.append((command.offset, words))
        return name == "true" or (False if name == "false" else None)

    def _assign_number(self, text: str, offset: int) -> bool:
        """`NAME = expression`, of `let` and `((...))`; whether it is one."""
        assigned = _ASSIGNED.fullmatch(text)
        if assigned is None:
            return False
        name, expression = assigned.groups()
        if name not in self._fixed:
            number = self.variables.number(expression, offset)
            hole = "" if number is not None else f"$(({expression[:60]}))"
            run = Run("" if number is None else str(number), offset, hole)
            self.variables.assign(name, Value((run,)), appends=False)
        return True

    def _call(self, name: str, arguments: list[Value], offset: int) -> bool | None:
        """A function with its own `$1`, `$@` and `$#`; those of the caller are back afterwards."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.followed.source.error(offset, Message("profiles.nested_more_than_levels_deep", depth=MAX_DEPTH))
        if len(arguments) > MAX_ARGUMENTS:
            raise self.followed.source.error(offset, Message("field_fault.at_most_entries", bound=f"{MAX_ARGUMENTS:,}"))
        scalars = {key: value for key, value in self.variables.scalars.items() if key.isdigit() or key == "#"}
        arrays = {key: value for key, value in self.variables.arrays.items() if key in ARGUMENTS}
        self._set_arguments(arguments, offset)
        status = self.run(self._functions[name])
        self._forget_arguments()
        self.variables.scalars |= scalars
        self.variables.arrays |= arrays
        self._depth -= 1
        return status

    def _set_arguments(self, arguments: list[Value], offset: int) -> None:
        self._forget_arguments()
        for index, argument in enumerate(arguments, start=1):
            self.variables.scalars[str(index)] = argument
        self.variables.scalars["#"] = Value((Run(str(len(arguments)), offset),))
        for name in ARGUMENTS:
            self.variables.arrays[name] = tuple(arguments)

    def _forget_arguments(self) -> None:
        for name in [key for key in self.variables.scalars if key.isdigit() or key == "#"]:
            del self.variables.scalars[name]
        for name in ARGUMENTS:
            self.variables.arrays.pop(name, None)

    def _assign(self, command: Command, *, exports: bool) -> None:
        """Assignments before a command are the command's environment: they are read like exports."""
        for assignment in command.assignments:
            if assignment.name in self._fixed:
                continue
            if isinstance(assignment.value, tuple):
                values = [value for word in assignment.value for value in self.variables.words(word)]
                self.variables.assign_array(assignment.name, values, appends=assignment.appends)
                continue
            value = self.variables.value(assignment.value)
            self.variables.assign(assignment.name, value, appends=assignment.appends)
            if exports or command.words or assignment.name in self.followed.environment:
                self.followed.environment[assignment.name] = self.variables.known(assignment.name) or value
