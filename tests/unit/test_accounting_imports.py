"""The independent accounting shares specs and numbers with the product and no formula; its README says why."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

OWN = "tests.support.accounting"
FOLDER = Path(__file__).resolve().parents[1] / "support" / "accounting"
FILES = sorted(FOLDER.glob("*.py"))
CASES = "cases.py"
# Only `cases.py` reads the product: what is asked for, the numbers of a machine, and how to hand strategies over.
SHARED = (
    "autodeploy.specs",
    "autodeploy.space.candidates",
    "autodeploy.costs.inputs",
    "autodeploy.stack.host",
    "hardware_profiles",
)


def imported(source: str) -> set[str]:
    """Every module that the source imports, wherever it does, for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            # `from autodeploy import solver` imports a module by its name.
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found |= {"importlib"} if name in {"import_module", "__import__"} else set()
    return found


def within(module: str, rooms: tuple[str, ...]) -> bool:
    """Whether a module is one of the rooms or inside of one."""
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def forbidden(source: str, *, cases: bool) -> list[str]:
    """What the source imports and may not."""
    allowed = (OWN, *sys.stdlib_module_names, *((*SHARED, "numpy", "hypothesis") if cases else ()))
    return sorted(name for name in imported(source) if name.startswith("importlib") or not within(name, allowed))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_accounting_imports_no_formula(path: Path) -> None:
    assert forbidden(path.read_text(encoding="utf-8"), cases=path.name == CASES) == []


def test_nothing_of_the_product_comes_through_the_cases() -> None:
    readers = {
        path.name
        for path in FILES
        if path.name != CASES and any(within(name, (f"{OWN}.cases",)) for name in imported(path.read_text("utf-8")))
    }
    assert readers == set()


@pytest.mark.parametrize(
    ("line", "cases", "found"),
    [
        ("from cost_models.hbm import stream_s", True, ["cost_models.hbm.stream_s"]),
        ("import autodeploy.costs.workload.attention", True, ["autodeploy.costs.workload.attention"]),
        ("from autodeploy import search", True, ["autodeploy.search"]),
        (
            "from autodeploy.costs.stages.step_parts import p2p_s",
            True,
            ["autodeploy.costs.stages.step_parts.p2p_s"],
        ),
        ("def late():\n    from autodeploy.specs.spec import Spec", False, ["autodeploy.specs.spec.Spec"]),
        ("import numpy as np", False, ["numpy"]),
        ("from importlib import import_module", True, ["importlib.import_module"]),
        ("__import__('cost_models')", True, ["importlib"]),
        ("from autodeploy.specs_of_others import x", True, ["autodeploy.specs_of_others.x"]),
    ],
)
def test_what_is_forbidden_is_found(line: str, cases: bool, found: list[str]) -> None:
    assert forbidden(line, cases=cases) == found


def test_the_readme_names_what_is_shared_and_where_the_entry_is() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in SHARED if f"`{name}`" not in page] == []
    named = {word for word in page.split("`") if word.endswith(".py") and "/" not in word}
    assert named <= {path.name for path in FILES}
