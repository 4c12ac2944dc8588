"""Does refusals.csv list all that Megatron core refuses? The statements that refuse, counted in its source.

    python -m tests.launch_check.refusals --megatron GITDIR

Every `assert`, and every `raise` of a ValueError, RuntimeError or AssertionError, in FILES at the commits of COLUMNS. A
row of the list is one condition of a function, or several that are alike: how many statements it stands for at each
commit, what must hold in own words, and a verdict on launches. `rule`: rules of ours hold it; `unreachable`: no launch
gets there; `inside`: the code holds itself to it, whatever is launched; `outside`: of what is installed, or of a file
that a launch only names. Prints each function whose counts differ. Exit 0: none does.
"""

from __future__ import annotations

import argparse
import ast
import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autodeploy.stack.releases import release_named

if TYPE_CHECKING:
    from collections.abc import Iterator

LIST = Path(__file__).with_suffix(".csv")
FILES = (
    "parallel_state.py",
    "model_parallel_config.py",
    "transformer/transformer_config.py",
    "transformer/transformer_block.py",
    "transformer/moe/moe_layer.py",
    "transformer/moe/token_dispatcher.py",
    "pipeline_parallel/schedules.py",
    "optimizer/distrib_optimizer.py",
    "distributed/distributed_data_parallel.py",
    "distributed/distributed_data_parallel_config.py",
)
# Columns of counts: the release whose commit of Megatron-LM each is of.
COLUMNS = {"core_v0.12.1": "mindspeed-llm-master", "main": "megatron-main"}
REFUSALS = frozenset({"ValueError", "RuntimeError", "AssertionError"})
VERDICTS = ("rule", "unreachable", "inside", "outside")


class Refusal(NamedTuple):
    """One row of the list. `counts`: by column; `words`: the names of the rules, or why there is none."""

    file: str
    function: str
    counts: dict[str, int]
    condition: str
    verdict: str
    words: str


def refusals() -> list[Refusal]:
    """The list, in the order of its file."""
    with LIST.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [
        Refusal(
            row["file"],
            row["function"],
            {name: int(row[name]) for name in COLUMNS},
            row["condition"],
            row["verdict"],
            row["words"],
        )
        for row in rows
    ]


def statements(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Statements that refuse, with the qualified name of the function that each is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from statements(child, f"{function}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.Assert) or (isinstance(child, ast.Raise) and _raised(child) in REFUSALS):
            yield function, child
        yield from statements(child, function)


def _raised(statement: ast.Raise) -> str:
    made = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
    return made.id if isinstance(made, ast.Name) else ""


def counted(source: str) -> Counter[str]:
    """How many statements of each function refuse."""
    return Counter(function for function, _ in statements(ast.parse(source)))


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", metavar="GITDIR", required=True)
    given = parser.parse_args(argv)
    listed: Counter[tuple[str, str, str]] = Counter()
    for row in refusals():
        for column, count in row.counts.items():
            listed[column, row.file, row.function] += count
    found: Counter[tuple[str, str, str]] = Counter()
    for column, release in COLUMNS.items():
        commit = release_named(release).components["megatron"].commit
        for file in FILES:
            shown = ["git", "-C", given.megatron, "show", f"{commit}:megatron/core/{file}"]
            source = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
            for function, count in counted(source).items():
                found[column, file, function] = count
    differing = sorted(key for key in found | listed if found[key] != listed[key])
    for key in differing:
        print(*key, f"{found[key]} in the source, {listed[key]} in the list")
    print(f"{found.total()} statements in {len(found)} functions, {listed.total()} in the list")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
