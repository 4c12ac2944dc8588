"""Keys of torchtitan-npu's TOML, read off the data classes of torchtitan and of its own without running them."""

from __future__ import annotations

import ast
import subprocess
from typing import TYPE_CHECKING

from autodeploy.stack.flag_tables import RegisteredFlag
from tests.launch_check.fsdp2_keys import taken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMPONENT, BASE = "torchtitan-npu", "torchtitan"
ROOT = "JobConfig"
CLASSES = {BASE: "torchtitan/config/job_config.py", COMPONENT: "torchtitan_npu/config/custom_config.py"}


def torchtitan_keys(git_dirs: Mapping[str, str], commits: Mapping[str, str]) -> list[RegisteredFlag]:
    """Every field of the data classes by section; those of torchtitan-npu extend torchtitan's of the same name."""
    fields: dict[str, dict[str, tuple[ast.expr, str, str]]] = {}
    for component, path in CLASSES.items():
        show = ["git", "-C", git_dirs[component], "show", f"{commits[component]}:{path}"]
        text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                found = fields.setdefault(node.name, {})
                for statement in node.body:
                    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                        source = f"{path}:{statement.lineno}"
                        found[statement.target.id] = (statement.annotation, component, source)
    return list(_rows(fields, ROOT, ""))


def _rows(
    fields: Mapping[str, Mapping[str, tuple[ast.expr, str, str]]], name: str, prefix: str
) -> Iterator[RegisteredFlag]:
    for key, (annotation, component, source) in fields[name].items():
        if isinstance(annotation, ast.Name) and annotation.id in fields:
            yield from _rows(fields, annotation.id, f"{prefix}{key}.")
        else:
            kind, choices, nargs = taken(_without_none(annotation))
            yield RegisteredFlag(prefix + key, kind, choices, nargs, component, source)


def _without_none(annotation: ast.expr) -> ast.expr:
    """The first member of a union: `str | None` is a string."""
    while isinstance(annotation, ast.BinOp):
        annotation = annotation.left
    return annotation
