"""Keys of MindSpeed-LLM's FSDP2 backend, read off its argument classes without running them."""

from __future__ import annotations

import ast
import subprocess
from typing import TYPE_CHECKING

from autodeploy.stack.flag_tables import RegisteredFlag

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPONENT = "mindspeed-llm-fsdp2"
ARGUMENTS = "mindspeed_llm/fsdp2/utils/arguments.py"
# Sections of its YAML, each of one class (train_fsdp2.py, Arguments).
SECTIONS = {
    "model": "ModelArguments",
    "data": "DataArguments",
    "parallel": "ParallelArguments",
    "training": "TrainingArguments",
    "optimization": "OptimizationArguments",
}
_TYPES = {"int": "int", "float": "float", "bool": "bool", "str": "str"}


def fsdp2_keys(git_dir: str, ref: str) -> list[RegisteredFlag]:
    """Every field of the argument classes by section, as their parser takes it."""
    module = ast.parse(source_text(git_dir, ref))
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    return [key for section, name in SECTIONS.items() for key in _fields(section, classes[name])]


def source_text(git_dir: str, ref: str) -> str:
    """The module of the argument classes at a commit."""
    show = ["git", "-C", git_dir, "show", f"{ref}:{ARGUMENTS}"]
    return subprocess.run(show, check=True, capture_output=True, text=True).stdout


def _fields(section: str, node: ast.ClassDef) -> Iterator[RegisteredFlag]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            kind, choices, nargs = taken(statement.annotation)
            source = f"{ARGUMENTS}:{statement.lineno}"
            yield RegisteredFlag(f"{section}.{statement.target.id}", kind, choices, nargs, COMPONENT, source)


def taken(annotation: ast.expr) -> tuple[str, tuple[str, ...], str]:
    """Type, choices and number of values, as `_create_argument_parser` makes them of an annotation."""
    name, inner = "", annotation
    while isinstance(inner, ast.Subscript):
        name = ast.unparse(inner.value)
        if name == "Literal":
            listed = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
            return "str", tuple(str(each.value) for each in listed if isinstance(each, ast.Constant)), ""
        if name in {"List", "list"}:
            return _TYPES.get(ast.unparse(inner.slice), ""), (), "+"
        if name != "Optional":
            return "", (), ""
        inner = inner.slice
    kind = _TYPES.get(ast.unparse(inner), "")
    return kind, (), "?" if kind == "bool" else ""
