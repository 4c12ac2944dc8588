"""The launch that a shell script would start: its flags with their places, its launcher and its environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autodeploy.formats.common.flag_effects import known_flags
from autodeploy.formats.common.other_trainings import refuse_launcher, refuse_program
from autodeploy.formats.common.settings_table import environment_variables
from autodeploy.formats.shell.follow import Followed, follow
from autodeploy.formats.shell.slurm import slurm_job
from autodeploy.formats.shell.values import Run, Value, WordBuilder, line_of
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# A variable of flags, by the names that scripts give them, or all arguments; unset it is no flag's value, and empty.
BUNDLE = re.compile(r"\$\{?([@*]|\w*(?:ARGS|OPTS|OPTIONS|FLAGS))(?:\[[@*]\])?\}?", re.IGNORECASE)
FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
LAUNCHER_OPTIONS = {
    **dict.fromkeys(("--ntasks-per-node",), "ranks_per_node"),
    **dict.fromkeys(("--nodes", "-N"), "nodes"),
    **dict.fromkeys(("--ntasks", "-n", "-np"), "ranks"),
    "--nproc_per_node": "ranks_per_node",
    "--nproc-per-node": "ranks_per_node",
    "--local_worker_num": "ranks_per_node",
    "--nnodes": "nodes",
    "--worker_num": "ranks",
}
PRINTED = frozenset({"echo", "printf"})
FRONT_DOORS = [["megatron", task] for task in ("pt", "sft", "rlhf")]
SHAPE = frozenset({"--num-layers", "--hidden-size", "--num-attention-heads"})


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """A flag, its values, and where it stands."""

    name: str
    values: tuple[Value, ...]
    line: int
    column: int
    file: str = ""

    @property
    def at(self) -> tuple[int, int, str]:
        """Line, column and file."""
        return self.line, self.column, self.file

    @property
    def text(self) -> str:
        """The values with blanks between them."""
        return " ".join(value.text for value in self.values)

    @property
    def unknown(self) -> str:
        """What in the values isn't known, or nothing."""
        return next((value.unknown for value in self.values if value.unknown), "")

    @property
    def place(self) -> str:
        """The place as messages name it."""
        return f"{line_of(self.at)}: {self.name}"


@dataclass(frozen=True, slots=True)
class LaunchScript:
    """What one launch command says: `flags` in order, the last one of each name; `repeated` are earlier ones.

    `is_spelled` is whether they are another program's words, which its own parser reads, in Megatron's flags.
    `environment` are settings that a prediction may rest on, `variables` all that the launch's environment has,
    `given` are the variables that were set from outside, `notes` what was not followed, with its place, `unset` the
    variables for flags that the script nowhere sets, `asked_ranks` those of the job that its header asks for.
    """

    program: str
    flags: Mapping[str, GivenFlag]
    is_spelled: bool = False
    repeated: tuple[GivenFlag, ...] = ()
    launcher: Mapping[str, int] = field(default_factory=dict)
    asked_ranks: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()

    @property
    def ranks(self) -> int | None:
        """Processes of the whole launch, where the script says so."""
        given = self.launcher
        if given.get("ranks_per_node", 1) > 1 and "ranks" not in given:
            return given["ranks_per_node"] * given.get("nodes", 1)
        return given.get("ranks") or self.asked_ranks or given.get("ranks_per_node")


def read_launch_script(
    text: str, variables: Mapping[str, str] | None = None, folder: Path | None = None
) -> LaunchScript:
    """Reads a launch script; it is never run.

    Parameters
    ----------
    text : the script.
    variables : values of variables, as the environment of the script would set them.
    folder : where files are looked for that it names.

    Raises
    ------
    SpecError
        with line and column where the script is not well formed; where it starts no training that is understood.
    """
    followed = follow(text, variables, folder)
    words, place = _training_words(followed)
    unset = {match[1]: None for word in words if word.unknown and (match := BUNDLE.fullmatch(word.text))}
    words = [word for word in words if not (word.unknown and BUNDLE.fullmatch(word.text))]
    before, program, after = ([], place, words[2:]) if front_door(words) else _cut_at_program(words)
    flags, repeated = _flags(followed, after)
    launcher, _ = _flags(followed, before)
    recognised = environment_variables()
    exported = {name: value.text for name, value in followed.environment.items()}
    notes = tuple((line_of(followed.source.place(offset)), note) for offset, note in followed.notes)
    return LaunchScript(
        program=program or place,
        flags=flags,
        repeated=repeated,
        launcher=_launcher(launcher),
        asked_ranks=slurm_job(text).ranks,
        environment={name: text for name, text in exported.items() if name in recognised},
        variables=exported,
        notes=notes,
        given=variables or {},
        unset=tuple(unset),
    )


def _training_words(followed: Followed) -> tuple[list[Value], str]:
    """The command with most flags of the table; without a launch, the flags that the script's variables hold."""
    flags = known_flags()

    def understood(words: Sequence[Value]) -> int:
        return sum(word.text in flags for word in words)

    front = next((words for _, words in followed.commands if front_door(words)), None)
    if front is not None:
        return front, front_door(front)
    started = (words for _, words in followed.commands if words[0].text not in PRINTED)
    best = max(started, key=understood, default=[])
    if _has_shape(best):
        return best, ""
    kept_words: list[Value] = []
    for values in followed.variables.arrays.values():
        kept_words += values if values and values[0].text.startswith("--") else ()
    for value in followed.variables.scalars.values():
        if value.text.lstrip().startswith("--"):
            kept_words += _words(value)
    if _has_shape(kept_words):
        return kept_words, "its variables"
    refuse_program(word.text for _, words in followed.commands for word in words)
    refuse_launcher(words for _, words in followed.commands)
    absent = joined(dict.fromkeys(name[:80] for name in followed.absent[:5]))
    raise SpecError(
        Message("common.missing", word=", ".join(sorted(SHAPE))),
        hint=Message("importers.put_files_beside", files=absent)
        if absent
        else Message("importers.give_script_with_command"),
    )


def front_door(words: Sequence[Value]) -> str:
    """The program and task of a command that takes a model's name for its shape; nothing of another command."""
    texts = [word.text.rpartition("/")[2] for word in words[:2]]
    return " ".join(texts) if texts in FRONT_DOORS else ""


def _has_shape(words: Sequence[Value]) -> bool:
    return {word.text.partition("=")[0] for word in words} >= SHAPE


def _words(value: Value) -> list[Value]:
    builder = WordBuilder()
    builder.split(value)
    return builder.finish()


def _cut_at_program(words: list[Value]) -> tuple[list[Value], str, list[Value]]:
    for index, word in enumerate(words):
        if word.text.endswith(".py") and not word.text.startswith("--"):
            return words[:index], word.text, words[index + 1 :]
    return words, "", words


def _flags(followed: Followed, words: list[Value]) -> tuple[dict[str, GivenFlag], tuple[GivenFlag, ...]]:
    """Flags with the values that follow them; a later flag of the same name replaces an earlier one."""
    flags: dict[str, GivenFlag] = {}
    repeated: list[GivenFlag] = []
    index = 0
    while index < len(words):
        name, values = words[index].text, list[Value]()
        place = followed.source.place(words[index].offset)
        index += 1
        if not FLAG.fullmatch(name.partition("=")[0]) or words[index - 1].unknown:
            continue
        if "=" in name:
            name, _, text = name.partition("=")
            values.append(Value((Run(text, words[index - 1].offset),)))
        while index < len(words) and not FLAG.fullmatch(words[index].text.partition("=")[0]):
            values.append(words[index])
            index += 1
        if name in flags:
            repeated.append(flags.pop(name))
        flags[name] = GivenFlag(name, tuple(values), *place)
    return flags, tuple(repeated)


def _launcher(flags: Mapping[str, GivenFlag]) -> dict[str, int]:
    launcher = {}
    for name, key in LAUNCHER_OPTIONS.items():
        text = flags[name].text if name in flags else ""
        if text.isdigit() and 0 < int(text[:9]) < 10_000_000:
            launcher[key] = int(text[:9])
    if "--nnodes" in flags and "nodes" not in launcher:
        launcher.pop("ranks_per_node", None)  # nodes that nobody told are not one node
    return launcher
