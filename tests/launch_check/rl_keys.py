"""What launches of post-training configure: keys of verl and MindSpeed-RL, read off their sources without running them.

Both hand keys on to Megatron-LM and MindSpeed. Those stand twice in the tables: under the key's path, and as the flag
that says the same, so that features, schedules and memory choices follow from them as in pre-training.
"""

from __future__ import annotations

import ast
import re
import subprocess
from typing import TYPE_CHECKING, Any

import ruamel.yaml

from autodeploy.stack.flag_tables import RegisteredFlag

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

CONFIG = "verl/trainer/config/"
# The configuration of each entry point, those of one backend before the other's; later ones add keys.
VERL_FILES = (
    f"{CONFIG}_generated_ppo_megatron_trainer.yaml",
    f"{CONFIG}_generated_ppo_trainer.yaml",
    "verl/experimental/fully_async_policy/config/fully_async_ppo_megatron_trainer.yaml",
    "verl/experimental/one_step_off_policy/config/one_step_off_ppo_megatron_trainer.yaml",
)
# Composition and tracing say nothing of a plan.
NOT_PLANNED = re.compile(r"(^|\.)(hydra|defaults|_target_|(global_)?profiler|skip|tool_config)(\.|$)")
# Classes of Megatron-LM whose fields verl sets: mapping of the actor -> file and classes.
ACTOR = "actor_rollout_ref.actor."
OVERRIDES = {
    f"{ACTOR}megatron.override_transformer_config": (
        ("megatron/core/model_parallel_config.py", "ModelParallelConfig"),
        ("megatron/core/transformer/transformer_config.py", "TransformerConfig"),
        ("megatron/core/transformer/transformer_config.py", "MLATransformerConfig"),
    ),
    f"{ACTOR}megatron.override_ddp_config": (
        ("megatron/core/distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),
    ),
    f"{ACTOR}optim.override_optimizer_config": (("megatron/core/optimizer/optimizer_config.py", "OptimizerConfig"),),
}
# What of MindSpeed verl can't carry: it builds models by Megatron-Bridge, runs Megatron-LM's own schedules
# (verl/workers/engine/megatron/transformer_impl.py), and hands each expert's weights over by its place.
NOT_CARRIED = re.compile(r"features_manager/(pipeline_parallel/|moe/(fb_overlap|balanced_moe|experts_placement))")
# Registered by Megatron-LM's parser, and read by MindSpeed among the arguments that verl hands on:
# docs/ascend_tutorial/feature_support/npu_advance_features.md of verl.
READ_BY_MINDSPEED = frozenset({"use_flash_attn"})
# Flags whose field has another name, which autodeploy/formats/verl/writer.py knows.
RENAMED = frozenset({"--microbatch-group-size-per-virtual-pipeline-stage"})
MINDSPEED_RL = {"rl_config": "rl_config.py", "generate_config": "generate_config.py"}
# Values that MindSpeed-RL exchanges before the parser sees them (workers/base_worker.py, `setup_distributed_rank`).
EXCHANGED = {"stage": ("ray_dapo",)}
_TYPES = {"int": "int", "float": "float", "bool": "bool", "str": "str"}


def _source(git_dir: str, ref: str, path: str) -> str:
    return subprocess.run(
        ["git", "-C", git_dir, "show", f"{ref}:{path}"], check=True, capture_output=True, text=True
    ).stdout


# -- verl ----------------------------------------------------------------------------------------------------


def verl_keys(git_dir: str, ref: str) -> Iterator[RegisteredFlag]:
    """Keys of the composed configurations; a type is that of the section's data class, or of the default."""
    classes = _ClassFields(git_dir, ref)
    seen: set[str] = set()
    for path in VERL_FILES:
        document = ruamel.yaml.YAML(typ="rt").load(_source(git_dir, ref, path))
        for name, value, line, target in _leaves(document):
            if name in seen or NOT_PLANNED.search(name):
                continue
            seen.add(name)
            kind = classes.type_of(target, name.rpartition(".")[2]) or _type_of_value(value)
            yield RegisteredFlag(name, kind, (), "", "verl", f"{path}:{line}")


def _leaves(document: Any, prefix: str = "", target: str = "") -> Iterator[tuple[str, Any, int, str]]:
    """Dotted path, value, line and the class of the section, of every value that is no mapping."""
    target = str(document.get("_target_", ""))
    for key, value in document.items():
        line = document.lc.key(key)[0] + 1
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.", target)
        else:
            yield f"{prefix}{key}", value, line, target


def _type_of_value(value: Any) -> str:
    """The type of a default; references, lists, mappings and nothing have none."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    return "str" if isinstance(value, str) and not value.startswith(("${", "???")) else ""


class _ClassFields:
    """Annotated types of verl's data classes, by the name that `_target_` gives."""

    def __init__(self, git_dir: str, ref: str) -> None:
        self._classes: dict[str, tuple[dict[str, str], list[str]]] = {}
        listed = subprocess.run(
            ["git", "-C", git_dir, "ls-tree", "-r", "--name-only", ref, "verl/workers/config", "verl/trainer/config"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for path in [*listed, "verl/base_config.py"]:
            if path.endswith(".py"):
                self._read(ast.parse(_source(git_dir, ref, path)))

    def _read(self, module: ast.Module) -> None:
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                self._classes[node.name] = (fields_of(node), [ast.unparse(base) for base in node.bases])

    def type_of(self, target: str, name: str) -> str:
        """The type of a field of the class, of itself or of what it inherits from."""
        waiting = [target.rpartition(".")[2]]
        while waiting:
            fields, bases = self._classes.get(waiting.pop(0), ({}, []))
            if name in fields:
                return fields[name]
            waiting += bases
        return ""


def fields_of(node: ast.ClassDef) -> dict[str, str]:
    """Annotated fields of a data class with their plain types; empty where a field is something else."""
    return {
        statement.target.id: _plain(statement.annotation)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _plain(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Optional":
        annotation = annotation.slice
    return _TYPES.get(ast.unparse(annotation), "")


def override_keys(
    git_dir: str, ref: str, actions: Iterable[argparse.Action], row_of: Callable[[argparse.Action], RegisteredFlag]
) -> Iterator[RegisteredFlag]:
    """Keys that verl hands on: fields of Megatron-LM's classes, and arguments of MindSpeed; as flags, where there are.

    MindSpeed reads all of `override_transformer_config` as its arguments (verl/workers/engine/mindspeed/
    transformer_impl.py, `_mindspeed_repatch`).
    """
    fields: dict[str, tuple[str, str, str]] = {}
    for section, classes in OVERRIDES.items():
        for path, name in classes:
            module = ast.parse(_source(git_dir, ref, path))
            node = next(each for each in module.body if isinstance(each, ast.ClassDef) and each.name == name)
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    where = (section, f"{path}:{statement.lineno}", _plain(statement.annotation))
                    fields.setdefault(statement.target.id, where)
    for name, (section, source, kind) in fields.items():
        yield RegisteredFlag(f"{section}.{name}", kind, (), "", "megatron", source)
    transformer = next(iter(OVERRIDES))
    actions = list(actions)
    mindspeed = any(row_of(action).registered_in == "mindspeed" for action in actions)
    for action in actions:
        row = row_of(action)
        section, source, kind = fields.get(action.dest, (transformer, row.source, "bool" if row.type == "flag" else ""))
        read = row.registered_in == "mindspeed" or (mindspeed and action.dest in READ_BY_MINDSPEED)
        if action.dest not in fields and (not read or NOT_CARRIED.search(row.source)):
            continue
        component = "megatron" if action.dest in fields else row.registered_in
        name = f"{section}.{action.dest}"
        yield RegisteredFlag(name, kind or row.type.replace("flag", "bool"), row.choices, row.nargs, component, source)
        if row.name in {f"--{word}{action.dest.replace('_', '-')}" for word in ("", "no-")} or row.name in RENAMED:
            yield RegisteredFlag(row.name, row.type, row.choices, row.nargs, component, source)


# -- MindSpeed-RL --------------------------------------------------------------------------------------------


def mindspeed_rl_keys(
    git_dir: str, ref: str, flags: dict[str, RegisteredFlag], folder: str = "mindspeed_rl/config_cls"
) -> Iterator[RegisteredFlag]:
    """Attributes of the configuration classes, which refuse every other key (base_config.py, `update`).

    Parameters
    ----------
    flags : of the parser that the attributes of MegatronConfig are handed to (utils.py, `parse_args_from_config`).
    """
    for section, file in MINDSPEED_RL.items():
        path = f"{folder}/{file}"
        text = _source(git_dir, ref, path)
        for name, kind, line in _attributes(text):
            yield RegisteredFlag(f"{section}.{name}", kind, (), "", "mindspeed-rl", f"{path}:{line}")
            if name == "sampling_config":
                for key, key_line in _sampling(text):
                    yield RegisteredFlag(f"{section}.{name}.{key}", "", (), "", "mindspeed-rl", f"{path}:{key_line}")
    path = f"{folder}/megatron_config.py"
    for name, kind, line in _attributes(_source(git_dir, ref, path)):
        known = flags.get(f"--{name.replace('_', '-')}")
        source = f"{path}:{line}"
        kind = known.type.replace("flag", "bool") if known is not None else kind
        choices, nargs = (known.choices, known.nargs) if known is not None else ((), "")
        taken = (*choices, *EXCHANGED.get(name, ()))
        yield RegisteredFlag(f"megatron_training.{name}", kind, taken, nargs, "mindspeed-rl", source)
        if known is not None:
            yield RegisteredFlag(known.name, known.type, choices, nargs, known.registered_in, known.source)


def _attributes(text: str) -> Iterator[tuple[str, str, int]]:
    """`self.NAME = ...` of the constructor, with the type that the docstring gives, and the line."""
    types = dict(re.findall(r"^ {8}(\w+) \((\w+)\):", text, re.MULTILINE))
    seen: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
            if own and isinstance(target, ast.Attribute) and target.attr not in seen:
                seen.add(target.attr)
                yield target.attr, _TYPES.get(types.get(target.attr, ""), ""), node.lineno


def _sampling(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.sampling_config":
            assert isinstance(node.value, ast.Dict)
            for key in node.value.keys:
                assert isinstance(key, ast.Constant)
                yield str(key.value), key.lineno
