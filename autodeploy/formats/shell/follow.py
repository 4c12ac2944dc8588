"""Follows a script from top to bottom without running it: which variables it sets and which commands it would start."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from autodeploy.formats.shell.expansion import Variables
from autodeploy.formats.shell.slurm import slurm_job
from autodeploy.formats.shell.statements import StatementReader
from autodeploy.formats.shell.values import (
    Choice,
    Command,
    Condition,
    Function,
    Loop,
    Run,
    Text,
    Value,
    joined,
    line_of,
)
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.text_files import MAX_DEPTH, MAX_LAUNCH_CHARACTERS, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

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
    negations = next((index for index, word in enumerate(words) if word.text != "!"), len(words))
    if negations:
        result = _one(words[negations:])
        return None if result is None else result == (negations % 2 == 0)
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
MOST_FOLDERS = 8  # above a script, up to the top of its checkout
MAX_ARGUMENTS = 1_000
MAX_TURNS = 2_000  # of a loop that counts or waits
SHELLS = frozenset({"bash", "sh"})
# Commands that start a script or a shell behind them.
STARTERS = SHELLS | {"exec", "nohup", "time", "sudo", "sbatch", "srun", "mpirun", "mpiexec", "env"}
CARRIED_OUT = frozenset({"-c", "-lc", "-ec", "-xc", "-exc"})  # before a text
SCRIPT_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
_ASSIGNED = re.compile(r"\s*+([A-Za-z_]\w*)\s*+([-+*/%]?)=(?!=)(.*)", re.DOTALL)
_UNSET = re.compile(r"\$(?!SLURM_)([A-Za-z_]\w{0,60})")
_COUNTED = re.compile(r"\s*+(?:(\+\+|--)\s*+)?([A-Za-z_]\w*)\s*+(\+\+|--)?\s*+")


@dataclass(slots=True)
class ScriptResult:
    """Effects of a script, as far as they can be told without running it.

    `commands` are the words of each command in order; `notes` pairs of an offset and what was not followed there;
    `absent` the names of files that it takes its settings from and that are not beside it.
    """

    source: StatementReader
    variables: Variables
    environment: dict[str, Value] = field(default_factory=dict)
    commands: list[tuple[int, list[Value]]] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def follow(text: str, given: Mapping[str, str] | None = None, folder: Path | None = None) -> ScriptResult:
    """Reads and follows a script, and those that it reads or starts.

    given : variables set from outside; `1` is the first argument.
    folder : where files are looked for that the script names; absent, none is read.

    Raises SpecError with line and column where the script is not well formed; when it is nested or expands without
    measure.
    """
    source = StatementReader(text)
    statements = source.script()
    job = slurm_job(text).variables
    variables = Variables(source, {**job, **(given or {})})
    follower = _Follower(ScriptResult(source, variables), set(given or {}), folder)
    follower.take_arguments(given or {})
    follower.run(statements)
    followed = follower.followed
    refused = {(source.place(offset)[::2], text[:60]): offset for offset, text in reversed(variables.refused)}
    for (_, text), offset in refused.items():  # of one line once
        followed.notes.append((offset, Message("importers.not_executed", text=text)))
    followed.notes = sorted(set(followed.notes))
    return followed


def found_beside(folder: Path | None, place: str) -> Path | None:
    """The file of a name: beside the script, or from a folder above it in its checkout, where it is started.

    One by its place on another machine, or in a folder of this one's name, is looked for by the ends of that place, the
    longest first.
    """
    if folder is None or not place:
        return None
    folders = [folder]
    above = list(folder.resolve().parents)[:MOST_FOLDERS]
    top = next((n for n, each in enumerate([folder, *above]) if (each / ".git").exists()), 0)
    parts = place.split("/")
    parts = parts if place.startswith("/") or parts[-2:-1] == [folder.resolve().name] else []
    ends = [place, *("/".join(parts[start:]) for start in range(1, len(parts)))]
    return next((path for end in ends for each in folders + above[:top] if (path := each / end).is_file()), None)


class _Follower:
    def __init__(self, followed: ScriptResult, fixed: set[str], folder: Path | None) -> None:
        self.followed = followed
        self.variables = followed.variables
        self.variables.printed = self._printed
        self._fixed = fixed
        self._folder = folder
        self._files: dict[Path, Sequence[Statement]] = {}
        self._holes: dict[str, Value] = {}
        self._functions: dict[str, Sequence[Statement]] = {}
        self._depth = 0
        self._count = 0
        self._leaves = ""  # the command that ends the turn of a loop

    def run(self, statements: Sequence[Statement]) -> bool | None:
        """Follows the statements; the last command's status: true, false, or None where it can't be known."""
        status: bool | None = True
        skipped = False
        for statement in statements:
            if isinstance(statement, Function):
                self._functions[statement.name] = statement.body
            elif isinstance(statement, Loop):
                if not self._loop(statement):
                    self.followed.notes.append(
                        (statement.offset, Message("importers.is_not_followed", text=repr(statement.keyword)))
                    )
                status = None
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
            if self._leaves:
                break
        return status

    def _loop(self, loop: Loop) -> bool:
        """Follows a loop as far as its turns are known; whether they are to the end.

        Of `while` a turn that changes no variable, or is not wholly known, is the last one that is followed: a script
        that waits does so for what it does not say.
        """
        if loop.keyword == "for" and loop.header is None:
            words = self.variables.arrays.get("@") if loop.words is None else self._words(loop.words)
            if words is None or any(word.unknown for word in words):
                return False
            for word in words:
                if loop.name in self._fixed:
                    return False
                self.variables.assign(loop.name, word, appends=False)
                self.run(loop.body)
                if self._left():
                    break
            return True
        first, test, step, *more = [*map(str.strip, (loop.header or ";;").split(";")), "", ""]
        if loop.keyword == "select" or any(more) or (first and not self._assign_number(first, loop.offset)):
            return False
        for _ in range(MAX_TURNS):
            changes, notes = self.variables.changes, len(self.followed.notes)
            if loop.header is None:
                goes_on = self.run(loop.test)
            else:
                number = self.variables.number(test, loop.offset) if test else None
                goes_on = None if number is None else number != 0
            if goes_on is None:
                return False
            if goes_on == (loop.keyword == "until"):
                return True
            self.run(loop.body)
            if self._left():
                return True
            if (step and not self._assign_number(step, loop.offset)) or self.variables.changes == changes:
                return False
            if loop.header is None and len(self.followed.notes) > notes:
                return False
        return False

    def _left(self) -> bool:
        """Whether the turn that was followed was the last by `break`; `continue` is over with the turn."""
        leaves, self._leaves = self._leaves, ""
        return leaves == "break"

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
        # Each star goes over the word.
        self.variables.work(10 + 10 * len(pattern.parts) + len(glob) + (glob.count("*") + 1) * len(word.text))
        return fnmatchcase(word.text, glob)

    def _command(self, command: Command) -> bool | None:
        self._count += 1
        if self._count > MAX_COMMANDS:
            raise self.followed.source.error(command.offset, Message("importers.too_many_commands", count=MAX_COMMANDS))
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
            return self._test([self.variables.value(word) for word in command.words])
        words = self._words(command.words)
        if name in TESTS:
            return self._test(words)
        if name in self._functions:
            return self._call(self._functions[name], words[1:], command.offset)
        if self._runs_other(words, command.offset):
            return None
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
        elif name == "set" and len(words) > 1 and words[1].text == "--":
            self._set_arguments(words[2:], command.offset)
        elif name == "shift" and "@" in self.variables.arrays:
            steps = int(words[1].text) if len(words) > 1 and words[1].text.isdigit() else 1
            self._set_arguments(self.variables.arrays["@"][steps:], command.offset)
        elif name in {"break", "continue"}:
            self._leaves = name
        elif name == "printf" and len(words) > 3 and words[1].text == "-v" and words[2].text not in self._fixed:
            text = printed([words[0], *words[3:]])
            hole = "" if text is not None else f"${words[2].text}"
            self.variables.assign(words[2].text, Value((Run(text or "", command.offset, hole),)), appends=False)
        elif words:
            self.followed.commands.append((command.offset, words))
        return name == "true" or (False if name == "false" else None)

    def _words(self, words: Sequence[Word]) -> list[Value]:
        return [value for word in words for value in self.variables.words(word)]

    def _test(self, words: list[Value]) -> bool | None:
        """Whether a condition holds; a variable not set before is empty to `-z` and `-n`, as to `${NAME:-}`."""
        text = self.followed.source.text
        for index, word in enumerate(words[1:], start=1):
            unset = _UNSET.fullmatch(word.text) if words[index - 1].text in {"-z", "-n"} else None
            if unset is None or len(word.runs) > 1:
                continue
            self.variables.work(len(text) // 100)
            if re.search(rf"(?<![\w$]){unset[1]}\+?=", text[: word.offset]) is None:
                words[index] = Value()
                self.followed.notes.append((word.offset, Message("importers.unset_variable", name=unset[1])))
        return truth(words)

    def _printed(self, source: str) -> str | None:
        """Text of a `$(...)` of `echo`, `printf` and assignments; None where there is another command.

        A shell of its own: what it sets is gone afterwards.
        """
        if not PRINTS.match(source) or len(source) > MAX_PRINTING:
            return None
        variables, followed = self.variables, self.followed
        scalars, arrays, environment, depth = variables.scalars, variables.arrays, followed.environment, self._depth
        variables.work(10 * len(source) + len(scalars) + sum(10 + len(elements) for elements in arrays.values()))
        variables.scalars, variables.arrays = dict(scalars), {name: [*elements] for name, elements in arrays.items()}
        followed.environment = dict(environment)
        commands, notes, refused = len(followed.commands), len(followed.notes), len(variables.refused)
        try:
            self._nested(StatementReader(source[2:-1]).script(), 0)
            texts = [printed(words) for _, words in followed.commands[commands:]]
            if None in texts or len(followed.notes) > notes or len(variables.refused) > refused:
                return None
            return "".join(text or "" for text in texts).rstrip("\n")
        except SpecError:
            return None
        finally:
            variables.scalars, variables.arrays, followed.environment = scalars, arrays, environment
            self._depth, self._leaves = depth, ""
            del followed.commands[commands:], followed.notes[notes:], variables.refused[refused:]

    def _assign_number(self, text: str, offset: int) -> bool:
        """`NAME = expression`, `NAME += expression` or `NAME++`, of `let` and `((...))`; whether it is one."""
        counted = _COUNTED.fullmatch(text)
        if counted is not None and (step := counted[1] or counted[3]):
            text = f"{counted[2]}{step[0]}=1"
        assigned = _ASSIGNED.fullmatch(text)
        if assigned is None:
            return False
        name, operator, expression = assigned.groups()
        if operator:
            expression = f"{name}{operator}({expression})"
        if name not in self._fixed:
            number = self.variables.number(expression, offset)
            hole = "" if number is not None else f"$(({expression[:60]}))"
            run = Run("" if number is None else str(number), offset, hole)
            self.variables.assign(name, Value((run,)), appends=False)
        return True

    def take_arguments(self, given: Mapping[str, str]) -> None:
        """Sets the script's own arguments where some of them were given by number; the others stay unknown."""
        numbers = [int(name) for name in given if name.isdigit() and name != "0"]
        if numbers and max(numbers) <= MAX_ARGUMENTS:
            places = (str(number) for number in range(1, max(numbers) + 1))
            runs = (Run(given.get(place, ""), 0, "" if place in given else f"${place}") for place in places)
            self._set_arguments([Value((run,)) for run in runs], 0)
            for place in map(str, numbers):
                self.variables.scalars.pop(place)

    def _runs_other(self, words: list[Value], offset: int) -> bool:
        """Follows what a command reads or starts: another script, or a text; false where it does neither."""
        name = words[0].text if words else ""
        if name in {"source", "."} and len(words) > 1:
            if (statements := self._file(words[1], offset)) is not None:
                self._nested(statements, offset)
            return True
        if name == "eval" and len(words) > 1:
            self._nested(self._text(words[1:], offset), offset)
            return True
        if name.rpartition("/")[2] not in STARTERS and not name.endswith(SCRIPT_SUFFIXES):
            return False
        texts = [word.text for word in words]
        for index, text in enumerate(texts):
            if text in CARRIED_OUT and index and texts[index - 1].rpartition("/")[2] in SHELLS and words[index + 1 :]:
                self._start(self._text(words[index + 1 : index + 2], offset), words[index + 3 :], offset)
                return True
            if text.endswith(SCRIPT_SUFFIXES):
                if (statements := self._file(words[index], offset)) is not None:
                    self._start(statements, words[index + 1 :], offset)
                return statements is not None
            if text.endswith(".py"):
                break
        return False

    def _text(self, words: list[Value], offset: int) -> Sequence[Statement]:
        """Statements of a text that is carried out; what of it is not known stays so."""
        text = ""
        for run in joined(words).runs:
            if run.unknown:
                hole = f"__{len(self._holes)}"
                self.variables.scalars[hole] = self._holes[hole] = Value((run,))
                text += f"${{{hole}}}"
            else:
                text += run.text
        source = self.followed.source
        self.variables.work(len(text) + len(source.text) // 100)
        source.append(text, line_of(source.place(offset)))
        return source.script()

    def _file(self, name: Value, offset: int) -> Sequence[Statement] | None:
        """Statements of a file beside the script; its name may begin with folders that are not known."""
        place = name.place
        path = found_beside(self._folder, place)
        if path is None:
            self.followed.absent.append(place or name.text)
            self.followed.notes.append((offset, Message("importers.absent_file", file=(place or name.text)[:80])))
            return None
        if path not in self._files:
            self.followed.source.append(read_text(path, MAX_LAUNCH_CHARACTERS), place)
            self._files[path] = self.followed.source.script()
        return self._files[path]

    def _start(self, statements: Sequence[Statement], arguments: list[Value], offset: int) -> None:
        """A shell of its own, which sees what is exported and its own arguments, and leaves nothing behind."""
        variables, functions = self.variables, self._functions
        scalars, arrays = variables.scalars, variables.arrays
        self.variables.work(len(self.followed.environment) + len(self._holes))
        exported = {name: scalars[name] for name in self._fixed if name in scalars}
        variables.scalars = exported | self.followed.environment | self._holes
        variables.arrays, self._functions = {}, {}
        self._call(statements, arguments, offset)
        variables.scalars, variables.arrays, self._functions = scalars, arrays, functions

    def _nested(self, statements: Sequence[Statement], offset: int) -> bool | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.followed.source.error(offset, Message("profiles.nested_too_deep", depth=MAX_DEPTH))
        status = self.run(statements)
        self._depth -= 1
        return status

    def _call(self, body: Sequence[Statement], arguments: list[Value], offset: int) -> bool | None:
        """A function or script with its own `$1`, `$@` and `$#`; those of the caller are back afterwards."""
        arrays = self.variables.arrays
        before = {name: arrays[name] for name in ARGUMENTS if name in arrays}
        self._set_arguments(arguments, offset)
        status = self._nested(body, offset)
        for name in ARGUMENTS:
            self.variables.arrays.pop(name, None)
        self.variables.arrays |= before
        return status

    def _set_arguments(self, arguments: list[Value], offset: int) -> None:
        if len(arguments) > MAX_ARGUMENTS:
            raise self.followed.source.error(offset, Message("field_fault.at_most_entries", bound=f"{MAX_ARGUMENTS:,}"))
        self.variables.work(10 * len(arguments))
        for name in ARGUMENTS:
            self.variables.arrays[name] = arguments

    def _assign(self, command: Command, *, exports: bool) -> None:
        """Assignments before a command are the command's environment: they are read like exports."""
        for assignment in command.assignments:
            if assignment.name in self._fixed or (assignment.name == "IFS" and command.words and not exports):
                continue
            if isinstance(assignment.value, tuple):
                values = self._words(assignment.value)
                self.variables.assign_array(assignment.name, values, appends=assignment.appends)
                continue
            value = self.variables.value(assignment.value)
            self.variables.assign(assignment.name, value, appends=assignment.appends)
            if exports or command.words or assignment.name in self.followed.environment:
                self.followed.environment[assignment.name] = self.variables.known(assignment.name) or value


# Output of `echo` and `printf`, the commands whose substitution is known without running anything.
# A command substitution around one of them, with assignments before it.
PRINTS = re.compile(r"\$\(\s*(?:[A-Za-z_]\w*=[^;\n]*;\s*)*(?:echo|printf)\s")
MAX_PRINTING = 4096
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\", "%%": "%"}
_CONVERSION = re.compile(r"%[sdi%]|\\[nt\\]|[^%\\]+")


def printed(words: list[Value]) -> str | None:
    """Text of a command; None of other commands, conversions beyond `%s` and `%d`, and where a word is unknown."""
    command, *arguments = [word.text for word in words] or [""]
    if any(word.unknown for word in words):
        return None
    if command == "echo":
        line_end = "" if arguments[:1] == ["-n"] else "\n"
        rest = arguments[not line_end :]
        return None if rest and re.fullmatch("-[neE]+", rest[0]) else " ".join(rest) + line_end
    if command != "printf" or not arguments or arguments[0].startswith("-"):
        return None
    tokens = _CONVERSION.findall(arguments.pop(0))
    if "".join(tokens) != words[1].text:
        return None
    conversions = sum(token[0] == "%" and token != "%%" for token in tokens)
    rounds = max(1, -(-len(arguments) // conversions)) if conversions else 1
    text = ""
    for token in tokens * rounds:
        if token[0] != "%" or token == "%%":
            text += _ESCAPES.get(token, token)
            continue
        argument = arguments.pop(0) if arguments else "" if token == "%s" else "0"
        if token != "%s" and not argument.removeprefix("-").isdecimal():
            return None
        text += argument if token == "%s" else str(int(argument[:20]))
    return text
