"""cost_models/nomenclature.md names every parameter and every field of the cost models, and nothing that is gone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "cost_models"
PAGE = (MODELS / "nomenclature.md").read_text(encoding="utf-8")
FILES = sorted(path for path in MODELS.rglob("*.py") if path.name != "__init__.py")


def sections() -> list[tuple[str, str]]:
    """(heading, text) of every section."""
    parts = re.split(r"(?m)^## ", PAGE)[1:]
    return [(part.partition("\n")[0], part) for part in parts]


def named(text: str) -> set[str]:
    """Identifiers in code quotes."""
    return set(re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"`([^`]+)`", text))))


def names_for(path: Path) -> set[str]:
    """What the page says about a file: its own sections, and those of no file."""
    mine = [text for heading, text in sections() if path.name in heading or ".py" not in heading]
    return named("\n".join(mine))


def declared(path: Path) -> dict[str, str]:
    """Parameters of public functions and methods, and fields of public classes -> where."""
    found: dict[str, str] = {}

    def visit(body: list[ast.stmt], inside: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                visit(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                each = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                found.update({a.arg: f"{inside}{node.name}" for a in each if a.arg not in {"self", "cls"}})
            elif inside and isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = inside.rstrip(".")

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_parameter_and_field_is_in_the_nomenclature(path: Path) -> None:
    known = names_for(path)
    missing = {name: where for name, where in declared(path).items() if name not in known}
    assert not missing, f"{path.name}: add these to cost_models/nomenclature.md: {missing}"


def test_every_file_with_formulas_has_a_section() -> None:
    headings = "\n".join(heading for heading, _ in sections())
    assert [path.name for path in FILES if declared(path) and f"`{path.name}`" not in headings] == []


def test_the_nomenclature_names_nothing_that_is_gone() -> None:
    code = " ".join(
        path.read_text(encoding="utf-8")
        for room in ("cost_models", "autodeploy", "hardware_profiles")
        for path in (ROOT / room).rglob("*.py")
    )
    known = set(re.findall(r"[A-Za-z_]\w*", code))
    rows = re.findall(r"(?m)^\| [^|]+\| ([^|]+) \|", PAGE)
    assert sorted(name for name in named("\n".join(rows)) if name not in known) == []


def test_a_missing_name_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "compute.py"
    file.write_text("def area_m2(width_of_nothing: float) -> float:\n    return width_of_nothing**2\n")
    assert declared(file) == {"width_of_nothing": "area_m2"}
    assert "width_of_nothing" not in names_for(file)
    assert "gemm_fraction" in names_for(file)
    assert "fan_out" not in names_for(file), "a name of another file's section does not count"
