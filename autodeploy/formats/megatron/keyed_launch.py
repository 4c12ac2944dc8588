"""Megatron-LM's settings as keys of a YAML document: FlagScale's tasks, recipes of Megatron-LM, tables of flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.launch_script import SHAPE, LaunchScript, environment_variables
from autodeploy.formats.megatron.post_training_launch import flags_of_keys, lines_of_keys
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.text_files import MAX_LAUNCH_CHARACTERS, load_yaml, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autodeploy.formats.common.source import Source

# Sections of FlagScale's tasks, whose keys are Megatron's words; source: FlagScale @da4935ec, examples/*/conf/train.
SECTIONS = ("system", "model", "data")
ROUNDED = frozenset({"multiple_of", "hidden_dim_multiplier"})
# Of Megatron-MoE-ModelZoo's tables of flags; source: @e8650517, model_configs/benchmarking.
VARIABLES = "ENV_VARS"
# Of Megatron-LM's recipes, which have the same variables; source: Megatron-LM dev, examples/moe_recipes.
ARGUMENTS = "ARGS"


# Of FlagScale's experiments, which name a task, the program that it is for, and its ranks.
EXPERIMENT, TASKS = "experiment", "train"
MOST_EXPERIMENTS, MOST_NODES = 50, 1_000_000


def with_experiment(source: Source) -> Source:
    """A task with the experiment that runs it: either may be the source, the other lies beside it.

    Raises SpecError where the task of an experiment is not beside it.
    """
    document, base_dir = source.document, source.base_dir
    experiment = document.get(EXPERIMENT)
    if isinstance(experiment, Mapping):
        name = _task_of(document)
        path = base_dir / TASKS / f"{name}.yaml" if base_dir is not None and name else None
        if not name:
            return replace(source, experiment=experiment)
        if path is not None and path.is_file():
            return replace(source, text=_loaded(path)[1], experiment=experiment)
        raise SpecError(
            Message("importers.absent_file", file=f"{TASKS}/{name}.yaml"),
            path="/defaults",
            hint=Message("importers.put_files_beside", files=f"{TASKS}/{name}.yaml"),
        )
    if base_dir is None or base_dir.name != TASKS or not _is_task(document):
        return source
    beside = sorted(base_dir.resolve().parent.glob("*.yaml"))[:MOST_EXPERIMENTS]
    experiments = [each for each, _ in map(_loaded, beside) if isinstance(each.get(EXPERIMENT), Mapping)]
    named = [each for each in experiments if _task_of(each) == PurePath(source.filename).stem]
    programs = {program_of(each[EXPERIMENT]) for each in experiments if _task_of(each)}
    if named or len(programs) != 1:
        return replace(source, experiment=named[0][EXPERIMENT]) if named else source
    return replace(source, experiment={"task": {"entrypoint": programs.pop()}})  # of all tasks of the folder


def _loaded(path: Path) -> tuple[Mapping[str, Any], str]:
    try:
        text = read_text(path, MAX_LAUNCH_CHARACTERS)
        document = load_yaml(text)
    except SpecError:
        return {}, ""
    return (document, text) if isinstance(document, Mapping) else ({}, "")


def _task_of(document: Mapping[str, Any]) -> str:
    """Name of the task that an experiment trains; nothing where it names none."""
    defaults = document.get("defaults")
    names = (each.get(TASKS) for each in defaults if isinstance(each, Mapping)) if isinstance(defaults, list) else ()
    return next((name for name in names if isinstance(name, str) and re.fullmatch(r"[\w.-]+", name)), "")


def program_of(experiment: Mapping[str, Any]) -> str:
    """The program that an experiment starts; nothing where it names none."""
    task = experiment.get("task")
    return str(task.get("entrypoint") or "") if isinstance(task, Mapping) else ""


def is_keyed(document: Mapping[str, Any]) -> bool:
    """Whether the keys of a document say the shape of a model in Megatron's words, or as its flags."""
    return flags_of_keys(_settings(document), {}).keys() >= SHAPE


def keyed_launch(source: Source) -> LaunchScript:
    """The launch that a document describes; of a `${NAME}` that is no variable the flags stay unknown."""
    document, told, variables = source.document, source.experiment, source.variables or {}
    environment, recognised = told.get("envs", document.get(VARIABLES)), environment_variables()
    runner = told.get("runner")
    said = [runner.get(name) for name in ("nnodes", "nproc_per_node")] if isinstance(runner, Mapping) else []
    counts = [count for count in said if isinstance(count, int) and 0 < count < MOST_NODES]
    settings = environment.items() if isinstance(environment, Mapping) else ()
    return LaunchScript(
        program=program_of(told),
        launcher=dict(zip(("nodes", "ranks_per_node"), counts, strict=True)) if len(counts) == 2 else {},
        flags=flags_of_keys(_settings(document), lines_of_keys(source.text), variables),
        is_spelled=_is_task(document),
        environment={name: str(value) for name, value in settings if name in recognised},
        given=variables,
    )


def _is_task(document: Mapping[str, Any]) -> bool:
    return all(isinstance(document.get(section), Mapping) for section in SECTIONS)


def _settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting by its last key: below the sections of a task or recipe, or written as a flag anywhere."""
    recipe = document.get(ARGUMENTS)
    if isinstance(recipe, Mapping) and not any(str(key).startswith("--") for key in recipe):
        return dict(_leaves(recipe))
    if _is_task(document):
        return _with_width({key: value for section in SECTIONS for key, value in _leaves(document[section])})
    return {key: value for key, value in _leaves(document) if key.startswith("--")}


def _with_width(settings: dict[str, Any]) -> dict[str, Any]:
    """A task's settings with the width of a gated MLP that FlagScale rounds up to `multiple_of`.

    References
    ----------
    FlagScale @da4935ec flagscale/runner/auto_tuner/utils.py:183.
    """
    multiple, width = settings.get("multiple_of"), settings.get("hidden_size")
    if not (isinstance(multiple, int) and multiple > 0 and isinstance(width, int)) or "ffn_hidden_size" in settings:
        return settings
    wide = int(int(8 * width / 3) * (settings.get("hidden_dim_multiplier") or 1))
    gated = {"ffn_hidden_size": -(-wide // multiple) * multiple} if settings.get("swiglu") else {}
    return {key: value for key, value in settings.items() if key not in ROUNDED} | gated


def _leaves(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner)
        else:
            yield str(key), inner
