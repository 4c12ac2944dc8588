"""The launch that a shell script would start: its flags with their places, its launcher and its environment."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.flag_effects import known_flags
from autodeploy.formats.shell.follow import ScriptResult, follow, found_beside
from autodeploy.formats.shell.slurm import slurm_job
from autodeploy.formats.shell.values import Run, Value, WordBuilder, line_of
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message, at_place, joined
from autodeploy.specs.diagnostics import not_modelled
from autodeploy.specs.text_files import MAX_LAUNCH_CHARACTERS, load_json, load_yaml, read_text, refuse_framework
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from autodeploy.formats.common.source import Source


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable or configuration key, its values, constraints and source."""

    name: str
    kind: str
    framework: str
    values: str
    feature: str
    constraints: str
    source: str


@cache
def settings_table() -> tuple[Setting, ...]:
    """Every entry, environment variables first, by name."""
    text = (files("autodeploy.formats") / "settings.csv").read_text(encoding="utf-8")
    return tuple(Setting(**row) for row in csv.DictReader(text.splitlines()))


@cache
def environment_variables() -> dict[str, Setting]:
    """Environment variables of torch_npu and CANN, by name."""
    return {entry.name: entry for entry in settings_table() if entry.kind == "env"}


@cache
def platform_keys() -> dict[str, Setting]:
    """Keys of MindFormers' configurations that it hands on to MindSpore, by dotted path."""
    return {entry.name: entry for entry in settings_table() if entry.kind == "yaml"}


RL, DPO, FSDP2 = "RL", "DPO", "FSDP2"
FOREIGN = "/framework"
"""Place of a refusal of another framework, by whose rules no flag can be judged."""
STAGES = {"sft": "SFT", "dpo": DPO, "simpo": DPO, "orpo": "ORPO", "prm": "PRM"}


_REFUSED: dict[str, Any] = shipped("autodeploy.formats.common", "refused_launches.yaml")


def _purposes(table: str) -> dict[str, str]:
    """Names of a table with the training that each says, which are listed by training."""
    return {name: what for what, listed in _REFUSED[table].items() for name in listed.split()}


# A flag that is given says what the launch does; the first that is found is named.
FLAGS = _purposes("flags")
# Read in fine-tuning, those of pairs in preference tuning; elsewhere they too say what the launch does.
TUNING_FLAGS, PREFERENCE_FLAGS = _purposes("tuning_flags"), _purposes("preference_flags")
READ_STAGES = frozenset({"sft", "dpo"})
TUNING_PROGRAM = "posttrain_gpt.py"
PROGRAMS, BEGINNINGS = _purposes("programs"), _purposes("beginnings")
INSTEAD = {"torchtitan": Message("importers.torchtitan_without_toml")}
KIND = "/training/kind"
_RL_SECTIONS = ("rl_config", "actor_config", "actor_rollout_ref", "generate_config")
_FSDP2_KEYS = frozenset({"ep_fsdp_modules", "cp_fsdp_mode"})  # of other backends than MindSpeed-LLM's


def refuse_other_training(script: LaunchScript) -> None:
    """Refuses a launch that neither pre-trains nor fine-tunes, under supervision or by preferences.

    Raises UnsupportedError with the place and the name of what it does.
    """
    stage = script.flags.get("--stage")
    word = "" if stage is None else stage.text.strip().lower()
    tunes = word in READ_STAGES
    elsewhere = ({} if tunes else TUNING_FLAGS) | ({} if word == "dpo" else PREFERENCE_FLAGS)
    for flag, what in (elsewhere | FLAGS).items():
        if flag in script.flags:
            given = script.flags[flag]
            raise refused(what, flag, given.at)
    if stage is not None and not tunes:
        what = STAGES.get(word) or (RL if word.startswith(("ray_", "trl_")) or "ppo" in word else "fine-tuning")
        raise refused(what, f"--stage {stage.text[:40]}", stage.at)
    if not (tunes and script.program.rpartition("/")[2] == TUNING_PROGRAM):
        refuse_program([script.program])


def refuse_program(words: Iterable[str]) -> None:
    """Refuses entry points that do something else than pre-training.

    Raises UnsupportedError with the name of what the program does.
    """
    for word in words:
        program = word.rpartition("/")[2]
        what = PROGRAMS.get(program) or next((w for name, w in BEGINNINGS.items() if program.startswith(name)), None)
        if what is not None:
            raise refused(what, program)


def refuse_python(source: Source) -> None:
    """Refuses a configuration that is a Python program, by the framework that it imports.

    Raises SpecError: of every such file.
    """
    if source.suffix != ".py":
        return
    text = source.text
    found = next(
        (name for name in _REFUSED["python"] if re.search(rf"^\s*(?:from|import) {name}\b", text, re.MULTILINE)), ""
    )
    raise SpecError(
        Message("importers.python_is_not_run", what=_REFUSED["python"].get(found, "Python")),
        hint=INSTEAD.get(found, Message("importers.importable_files")),
    )


def refuse_launcher(commands: Iterable[Sequence[Value]]) -> None:
    """Refuses commands that start another trainer than those whose flags are read.

    Raises UnsupportedError with the name of the trainer.
    """
    for words in commands:
        for word in words[:2]:
            launcher = word.text.rpartition("/")[2]
            if launcher in _REFUSED["launchers"] and not word.unknown:
                raise refused(_REFUSED["launchers"][launcher], launcher)


def refuse_other_configuration(source: Source) -> None:
    """Refuses configurations of other trainings, other FSDP2 and reinforcement learning, and of other frameworks.

    Raises UnsupportedError with the JSON pointer of the key that says so.
    """
    document = source.document
    parallel, training = document.get("parallel"), document.get("training")
    if isinstance(parallel, Mapping) and (keys := sorted(_FSDP2_KEYS & parallel.keys())):
        raise refused(FSDP2, keys[0], path=f"/parallel/{keys[0]}")
    if isinstance(training, Mapping) and isinstance(training.get("stage"), str) and "model" in document:
        stage = training["stage"].lower()
        raise refused(STAGES.get(stage, FSDP2), f"stage {stage[:40]}", path="/training/stage")
    for section in _RL_SECTIONS:
        if isinstance(document.get(section), Mapping):
            raise refused(RL, section, path=f"/{section}")
    refuse_framework(document)


def refused(what: str, by: str, place: tuple[int, int, str] | None = None, path: str = "") -> UnsupportedError:
    """The error that names what a launch does, and the word of the file that says so.

    path : place of the refusal; empty: that of another framework where `what` is one, else of the kind of training.
    """
    nothing = Message("importers.trains_nothing", what=Message("common.text_and_numbers", text=what, numbers=by))
    message = at_place(nothing if what in _REFUSED["trains_nothing"] else not_modelled(what, by), place)
    path = path or (FOREIGN if what in _REFUSED["frameworks"] else KIND)
    hint = INSTEAD.get(what.partition("'")[0], Message("importers.give_full_pre_training"))
    return UnsupportedError(message, path=path, hint=hint)


# A variable of flags, by the names that scripts give them, or all arguments; unset it is no flag's value, and empty.
BUNDLE = re.compile(r"\$\{?([@*]|\w*(?:ARGS?|OPTS?|OPTIONS?|FLAGS?))(?:\[[@*]\])?\}?", re.IGNORECASE)
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
ENVIRONMENTS = frozenset(
    {
        "set_env.sh",
        "env.sh",
        "environment.sh",
        "modules.sh",
        ".sh",
        "activate",
        "conda.sh",
        ".bashrc",
        "profile",
        ".env",
    }
)
"""Names of files that set up a machine, where no flag stands."""
ASSIGNED = re.compile(
    r"""^[ \t]*(?:export[ \t]+)?(\w{1,40})=(?:["']?\$\{?(\d{1,3})\}?["']?[ \t]*(?:#.*)?$)?""", re.MULTILINE
)
FRONT_DOORS = [["megatron", task] for task in ("pt", "sft", "rlhf")]
DOCUMENTS = (".yaml", ".yml", ".json")
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
        """Part of the values that isn't known, or nothing."""
        return next((value.unknown for value in self.values if value.unknown), "")

    @property
    def place(self) -> str:
        """The place as messages name it."""
        return f"{line_of(self.at)}: {self.name}"


@dataclass(frozen=True, slots=True)
class LaunchScript:
    """Arguments of one launch command: `flags` in order, the last one of each name; `repeated` are earlier ones.

    `is_spelled` is whether they are another program's words, which its own parser reads, in Megatron's flags.
    `environment` are settings that a prediction may rest on, `variables` all that the launch's environment has,
    `given` are the variables that were set from outside, `assigned` those that the script sets somewhere,
    with the number of its own argument where it is that, `notes` what was not followed, with its place, `unset` the
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
    assigned: Mapping[str, str] = field(default_factory=dict)
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

    text : the script.
    variables : values of variables, as the environment of the script would set them.
    folder : where files are looked for that it names.

    Raises SpecError with line and column where the script is not well formed; where it starts no training that is
    understood.
    """
    followed = follow(text, variables, folder)
    words, place = _training_words(followed, folder)
    unset = {match[1]: None for word in words if word.unknown and (match := BUNDLE.fullmatch(word.text))}
    words = [word for word in words if not (word.unknown and BUNDLE.fullmatch(word.text))]
    if front_door(words):
        words[2:] = _with_file(followed, words[2:], folder)
    before, program, after = ([], place, words[2:]) if front_door(words) else _cut_at_program(words)
    flags, repeated = _flags(followed, after)
    recognised = environment_variables()
    exported = {name: value.text for name, value in followed.environment.items()}
    notes = tuple((line_of(followed.source.place(offset)), note) for offset, note in followed.notes)
    return LaunchScript(
        program=program or place,
        flags=flags,
        repeated=repeated,
        launcher=launcher_of(followed, before),
        asked_ranks=slurm_job(text).ranks,
        environment={name: text for name, text in exported.items() if name in recognised},
        variables=exported,
        notes=notes,
        given=variables or {},
        assigned=dict(ASSIGNED.findall(text)),
        unset=tuple(unset),
    )


def _training_words(followed: ScriptResult, folder: Path | None) -> tuple[list[Value], str]:
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
    missing = [name[:80] for name in followed.absent if name.rpartition("/")[2] not in ENVIRONMENTS]
    absent = joined(dict.fromkeys(missing[:5]))
    places = [value.place for value in followed.environment.values() if value.place.endswith(DOCUMENTS)]
    settings = next((place[:80] for place in reversed(places) if _has_shape_in(found_beside(folder, place))), "")
    raise SpecError(
        Message("common.missing", word=", ".join(sorted(SHAPE))),
        hint=Message("importers.give_settings", file=settings)
        if settings
        else Message("importers.put_files_beside", files=absent)
        if absent
        else Message("importers.give_script_with_command"),
    )


def _has_shape_in(path: Path | None) -> bool:
    """Whether a file says a model's shape in Megatron's words, be they keys or flags."""
    text = "" if path is None else read_text(path).replace("_", "-")
    return all(flag[2:] in text for flag in SHAPE)


def _with_file(followed: ScriptResult, words: list[Value], folder: Path | None) -> list[Value]:
    """Arguments of ms-swift with what stands in the file that is the first of them, before all others.

    References
    ----------
    modelscope/ms-swift @3602360a, swift/cli/main.py:38, parse_yaml_args.
    """
    if not words or not words[0].place.endswith(DOCUMENTS):
        return words
    place = words[0].place
    path = found_beside(folder, place)
    if path is None:
        absent = Message("importers.absent_file", file=place[:80])
        hint = Message("importers.put_files_beside", files=place[:80])
        raise SpecError(at_place(absent, followed.source.place(words[0].offset)), hint=hint)
    text = read_text(path, MAX_LAUNCH_CHARACTERS)
    document = load_json(text) if place.endswith(".json") else load_yaml(text)
    if not isinstance(document, dict):
        raise SpecError(Message("importers.not_importable"), path=place)
    environment = document.pop("ENV", None)
    for name, value in environment.items() if isinstance(environment, dict) else ():
        followed.environment.setdefault(str(name), Value((Run(str(value), 0),)))
    followed.source.append(text, place)
    start, given = len(followed.source.text) - len(text), list[Value]()
    for name, value in document.items():
        found = re.search(rf"^{re.escape(str(name))}\b", text, re.MULTILINE)
        at = start + (found.start() if found else 0)
        texts = [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        given += [Value((Run(each, at),)) for each in texts]
    return given + words[1:]


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


def _flags(followed: ScriptResult, words: list[Value]) -> tuple[dict[str, GivenFlag], tuple[GivenFlag, ...]]:
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


def launcher_of(followed: ScriptResult, words: list[Value]) -> dict[str, int]:
    """Numbers of processes and nodes that the words before a program say."""
    flags, _ = _flags(followed, words)
    launcher = {}
    for name, key in LAUNCHER_OPTIONS.items():
        text = flags[name].text if name in flags else ""
        if text.isdigit() and 0 < int(text[:9]) < 10_000_000:
            launcher[key] = int(text[:9])
    if "--nnodes" in flags and "nodes" not in launcher:
        launcher.pop("ranks_per_node", None)  # nodes that nobody told are not one node
    return launcher
