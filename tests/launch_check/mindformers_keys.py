"""Keys that MindFormers' configurations have, read off its source without running it."""

from __future__ import annotations

import ast
import subprocess
from typing import TYPE_CHECKING

from autodeploy.stack.flag_tables import RegisteredFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPLATE = "mindformers/tools/register/template.py"
MAPPING = "mindformers/parallel_core/transformer_config_utils.py"
# The classes of which a model's configuration becomes one; later ones inherit from earlier ones.
CONFIG_CLASSES = (
    ("mindformers/parallel_core/mf_model_config.py", "MFModelConfig"),
    ("mindformers/parallel_core/model_parallel_config.py", "ModelParallelConfig"),
    ("mindformers/parallel_core/transformer_config.py", "TransformerConfig"),
    ("mindformers/parallel_core/transformer_config.py", "MLATransformerConfig"),
)
MODEL = "model.model_config."
_TYPES = {"int": "int", "float": "float", "bool": "bool", "str": "str"}


def mindformers_keys(git_dir: str, ref: str) -> list[RegisteredFlag]:
    """Sections of the template, and the model's keys under every name that is translated."""
    sources = {path: _module(git_dir, ref, path) for path in {TEMPLATE, MAPPING, *(p for p, _ in CONFIG_CLASSES)}}
    found = {key.name: key for key in _sections(sources[TEMPLATE])}
    found |= {key.name: key for key in _model_keys(sources)}
    return sorted(found.values(), key=lambda key: key.name)


def _module(git_dir: str, ref: str, path: str) -> ast.Module:
    text = subprocess.run(
        ["git", "-C", git_dir, "show", f"{ref}:{path}"], check=True, capture_output=True, text=True
    ).stdout
    return ast.parse(text)


def _sections(module: ast.Module) -> Iterator[RegisteredFlag]:
    """Attributes of the template's classes; those of the general one stand at the top."""
    for node in module.body:
        if not isinstance(node, ast.ClassDef):
            continue
        values = {
            target.id: statement
            for statement in node.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        }
        if "_name" not in values or not isinstance(values["_name"].value, ast.Constant):
            continue
        section = values["_name"].value.value
        prefix = "" if section in {"", "general_config"} else f"{section}."
        for name, statement in values.items():
            if not name.startswith("_") and section:
                yield _key(f"{prefix}{name}", _type_of_value(statement.value), TEMPLATE, statement.lineno)


def _model_keys(sources: dict[str, ast.Module]) -> Iterator[RegisteredFlag]:
    types = {}
    for path, name in CONFIG_CLASSES:
        node = next(n for n in sources[path].body if isinstance(n, ast.ClassDef) and n.name == name)
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                types[statement.target.id] = _type_of_annotation(statement.annotation)
    mapping = next(
        node.value
        for node in sources[MAPPING].body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "COMMON_CONFIG_MAPPING"
    )
    assert isinstance(mapping, ast.Dict)
    yield from _names_of_networks(sources[MAPPING])
    for key, value in zip(mapping.keys, mapping.values, strict=True):
        assert key is not None
        becomes = value.elts[0] if isinstance(value, ast.Tuple) else value
        converted = isinstance(value, ast.Tuple)
        assert isinstance(becomes, ast.Constant)
        names = key.elts if isinstance(key, ast.Tuple) else [key]
        for name in names:
            assert isinstance(name, ast.Constant)
            kind = "" if converted else types.get(becomes.value, "")
            yield _key(f"{MODEL}{name.value}", kind, MAPPING, name.lineno)


def _names_of_networks(module: ast.Module) -> Iterator[RegisteredFlag]:
    """`model_type` and `architectures`: they choose the network, and nothing translates them."""
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and node.value in {"model_type", "architectures"}:
            yield _key(f"{MODEL}{node.value}", "", MAPPING, node.lineno)


def _key(name: str, kind: str, path: str, line: int) -> RegisteredFlag:
    return RegisteredFlag(name, kind, (), "", "mindformers", f"{path}:{line}")


def _type_of_value(value: ast.expr) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, bool):
        return "bool"
    return ""


def _type_of_annotation(annotation: ast.expr) -> str:
    """A plain type; a key that may be None or of several types has none."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Optional":
        annotation = annotation.slice
    return _TYPES.get(ast.unparse(annotation), "")
