"""What real kernels save for the backward pass, on record, and what stand-ins do in their place.

python -m tests.witness.saved te=DIR ms=DIR

DIR are git directories; every record is looked up in the source at its commit.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from autodeploy.analysis.witness.run import PROGRAM
from hardware_profiles.shipped_yaml import load_shipped_yaml

DOCUMENT: dict[str, Any] = load_shipped_yaml(Path(__file__).with_name("saved.yaml").read_text(encoding="utf-8"))
FUNCTIONS: dict[str, dict[str, Any]] = DOCUMENT["functions"]
OWN = {"te_attention.SplitAlongDim"}  # saves nothing


def saved_by_stand_ins() -> dict[str, list[str]]:
    """Arguments of every `save_for_backward` in the stand-ins, as the source writes them, by module and class."""
    found: dict[str, list[str]] = {}
    for path in sorted(PROGRAM.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
            for call in ast.walk(owner):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "ctx.save_for_backward":
                    found[f"{path.stem}.{owner.name}"] = _names(call.args)
    return found


def _names(arguments: list[ast.expr]) -> list[str]:
    """Names of arguments; of a starred choice between tuples those of the longer one."""
    names: list[str] = []
    for one in arguments:
        value = one.value if isinstance(one, ast.Starred) else one
        if isinstance(value, ast.IfExp):
            value = max(value.body, value.orelse, key=lambda side: len(ast.unparse(side)))
        names += [ast.unparse(part) for part in value.elts] if isinstance(value, ast.Tuple) else [ast.unparse(value)]
    return names


def written(function: dict[str, Any]) -> list[str]:
    """What a record says that the source saves, without stars."""
    return [name.strip().lstrip("*") for name in re.split(r",(?![^(]*\))", function["text"])]


def missing(directories: dict[str, str]) -> list[str]:
    """Records whose text isn't at their line of the source."""
    wrong = []
    for name, function in FUNCTIONS.items():
        repository, _, place = function["source"].partition(" ")
        of = DOCUMENT["repositories"][repository]
        path, _, line = place.partition(":")
        shown = ["git", f"--git-dir={directories[repository]}", "show", f"{of['commit']}:{of['folder']}/{path}"]
        lines = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.splitlines()
        there = re.sub(r"[\s,]", "", "".join(lines[int(line) - 1 : int(line) + 11]))
        if re.sub(r"[\s,]", "", function["text"]) not in there:
            wrong.append(f"{name}: {function['source']}")
    return wrong


if __name__ == "__main__":
    found = missing(dict(word.split("=", 1) for word in sys.argv[1:]))
    print("\n".join(found) or f"{len(FUNCTIONS)} records are as their sources")
    sys.exit(bool(found))
