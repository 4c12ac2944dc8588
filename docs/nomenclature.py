"""Writes cost_models/nomenclature.md from docstrings: what parameters and fields are, in which units."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from docs.schema_tables import code, table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "cost_models"
PAGE = MODELS / "nomenclature.md"
HEAD = """# Nomenclature of the cost models

Parameters and fields by file, with units and meanings, and what each function gives. Times are seconds, sizes bytes,
rates bytes or operations a second, all in SI units (GB = 1e9 B); memory limits are given in GiB = 2^30 B and converted
at the edge. `[n]` is one value per candidate. "Local" is on one rank. Names that several files share stand under their
package. Formulas and their sources are in the functions' docstrings.
"""
# Units of names without a unit in brackets.
SUFFIXES = {
    "bytes_per_s": "B/s",
    "s_per_byte": "s/B",
    "tokens_per_s": "tokens/s",
    "s": "s",
    "bytes": "B",
    "flops": "FLOP",
}
NAMES = r"[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*"
ENTRY = re.compile(rf"(?:^|(?<=[.;)\]] ))({NAMES}) : ")
UNIT = re.compile(r" \[([^\[\],.]{2,}|s|B)\][.;]?$")  # not a shape: [n], [P, slots], [..., ranks]


@dataclass(frozen=True)
class Entry:
    """What a docstring says about parameters or fields."""

    names: tuple[str, ...]
    unit: str
    meaning: str


@dataclass(frozen=True)
class Module:
    """A file of formulas: its path below the package, its first line, its entries, and its functions' first lines."""

    path: str
    title: str
    entries: tuple[Entry, ...]
    functions: tuple[tuple[str, str], ...]


def modules() -> Iterator[Module]:
    """All files that have entries or functions; a package before what is in it."""
    files = sorted(MODELS.rglob("*.py"), key=lambda path: (path.parent, path.name != "__init__.py", path.name))
    declared = {path: list(_declared(ast.parse(path.read_text(encoding="utf-8")))) for path in files}
    for path in files:
        inside = [each for each in files if path.parent in each.parents] if path.name == "__init__.py" else [path]
        known = {name for each in inside for _, _, names in declared[each] for name in names}
        tree = ast.parse(path.read_text(encoding="utf-8"))
        entries = [*entries_of(ast.get_docstring(tree) or "", known)]
        for _, text, names in declared[path]:
            entries += entries_of(text, set(names))
        functions = [(name, first_sentence(text)) for name, text, _ in declared[path] if text and "." not in name]
        if entries or functions:
            title = first_sentence(ast.get_docstring(tree) or "")
            yield Module(str(path.relative_to(MODELS)), title, tuple(dict.fromkeys(entries)), tuple(functions))


def _declared(tree: ast.Module) -> Iterator[tuple[str, str, list[str]]]:
    """(name, docstring, parameters or fields) of public functions, methods and classes."""

    def visit(body: list[ast.stmt], inside: str) -> Iterator[tuple[str, str, list[str]]]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                fields = [
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                ]
                yield f"{inside}{node.name}", ast.get_docstring(node) or "", fields
                yield from visit(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                each = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                yield f"{inside}{node.name}", ast.get_docstring(node) or "", [argument.arg for argument in each]

    return visit(tree.body, "")


def entries_of(text: str, known: set[str]) -> list[Entry]:
    """Entries `names : meaning [unit]` of a docstring about known names; several may stand on one line."""
    logical_lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines: list[str] = []
        for line in map(str.strip, paragraph.splitlines()):
            if re.match(rf"{NAMES} : ", line):
                lines.append(line)
            elif lines:
                lines[-1] += f" {line}"
        logical_lines += lines
    return [entry for line in logical_lines for entry in _entries_of_line(line, known)]


def _entries_of_line(line: str, known: set[str]) -> Iterator[Entry]:
    starts = [match for match in ENTRY.finditer(line) if set(match[1].split(", ")) <= known]
    for start, after in zip(starts, [*starts[1:], None], strict=False):
        names = tuple(start[1].split(", "))
        meaning = line[start.end() : after.start() if after else None].strip()
        unit = UNIT.search(meaning)
        yield Entry(names, unit[1] if unit else _unit_of_names(names), UNIT.sub("", meaning).rstrip(".;"))


def _unit_of_names(names: tuple[str, ...]) -> str:
    units = {next((unit for end, unit in SUFFIXES.items() if re.search(rf"(^|_){end}$", name)), "") for name in names}
    return units.pop() if len(units) == 1 else ""


def first_sentence(text: str) -> str:
    """The first paragraph, without its last full stop."""
    return " ".join(re.split(r"\n\s*\n", text)[0].split()).removesuffix(".")


def nomenclature_page() -> str:
    """The whole page."""
    text = HEAD
    for module in modules():
        text += f"\n## {code(module.path)}\n\n{module.title}.\n"
        rows = [(", ".join(map(code, entry.names)), entry.unit, entry.meaning) for entry in module.entries]
        if rows:
            text += "\n" + table(("name", "unit", "meaning"), rows)
        if module.functions:
            text += "\n" + table(
                ("function or class", "what it gives"), [(code(name), first) for name, first in module.functions]
            )
    return text
