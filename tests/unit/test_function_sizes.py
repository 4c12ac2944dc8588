"""Sizes of functions: what is longer or takes more is in named parts, or explained step by step."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PRODUCT = ("autodeploy", "api", "cost_models", "hardware_profiles")
# Commands and routes take what their users may say.
APART = ("autodeploy/cli/", "api/routes/")
MOST_LINES, MOST_PARAMETERS = 60, 10
ASSIGNED = ":="  # of the steps in a docstring

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions() -> list[tuple[str, Function, list[str]]]:
    """Every function of the product outside of commands and routes: its file, its tree and the lines of its file."""
    found = []
    for path in sorted(file for package in PRODUCT for file in (ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(APART):
            text = path.read_text(encoding="utf-8")
            lines = text.splitlines()
            found += [(name, node, lines) for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
    return found


def code_lines(node: Function, lines: list[str]) -> int:
    """Lines of a function without its docstring, comments and blank lines."""
    said = node.body[0] if ast.get_docstring(node) is not None else None
    prose = range(said.lineno, (said.end_lineno or 0) + 1) if said is not None else range(0)
    numbers = (number for number in range(node.lineno, (node.end_lineno or 0) + 1) if number not in prose)
    return sum(bool(text) and not text.startswith("#") for text in (lines[n - 1].strip() for n in numbers))


def test_functions_fit_a_page_or_say_their_steps() -> None:
    long = [
        (name, node.name, code_lines(node, lines))
        for name, node, lines in functions()
        if ASSIGNED not in (ast.get_docstring(node) or "") and code_lines(node, lines) > MOST_LINES
    ]
    assert long == []


def test_functions_take_few_parameters() -> None:
    def count(given: ast.arguments) -> int:
        named = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
        return named + (given.vararg is not None) + (given.kwarg is not None)

    wide = [(name, node.name) for name, node, _ in functions() if count(node.args) > MOST_PARAMETERS]
    assert wide == []
