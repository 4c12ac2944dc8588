"""The picture of the rooms: which package imports which, read from the source, as SVG text.

An arrow that follows from others is left out (the transitive reduction), as are imports for type checking only and the
small modules that every room may use (errors, settings, logs). Rooms that import each other share a box.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("autodeploy", "api", "cost_models", "hardware_profiles", "migrations")
ENTRY_POINTS = frozenset({"cli", "api", "migrations"})
BOX_HEIGHT, ROW, GAP, MARGIN, LETTER = 30, 68, 26, 24, 7.6

STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)

Graph = dict[str, set[str]]


def room_of(module: str) -> str:
    """`autodeploy.search.branch_and_bound` -> `solver`; `cost_models.hbm` -> `cost_models`."""
    first, *rest = module.split(".")
    return rest[0] if first == "autodeploy" and rest else first


def rooms(root: Path = ROOT) -> dict[str, Path]:
    """Folder of every room by its name."""
    inside = {path.parent.name: path.parent for path in sorted((root / "autodeploy").glob("*/__init__.py"))}
    return inside | {name: root / name for name in PACKAGES if name != "autodeploy"}


def imported_modules(source: str) -> Iterator[str]:
    """Modules that the code imports when it runs, at the top or inside a function."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from names if node.module == "autodeploy" else (node.module,)
        else:
            waiting += (each for each in ast.iter_child_nodes(node) if isinstance(each, STATEMENTS))


@cache
def import_graph(root: Path = ROOT) -> Graph:
    """Room -> rooms that it imports; read once, and changed by nobody."""
    folders = rooms(root)
    graph: Graph = {name: set() for name in folders}
    for name, folder in folders.items():
        for path in folder.rglob("*.py"):
            for module in imported_modules(path.read_text(encoding="utf-8")):
                if module.split(".")[0] in PACKAGES and room_of(module) in folders:
                    graph[name].add(room_of(module))
        graph[name].discard(name)
    return graph


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Everything that is imported from `start`, directly or not."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def joined(graph: Graph) -> Graph:
    """Rooms that import each other as one, named `a, b`: the result has no cycle."""
    reach = {name: reachable(graph, name) for name in graph}
    cycle = {name: {name} | {other for other in reach[name] if name in reach[other]} for name in graph}
    title = {name: ", ".join(sorted(members)) for name, members in cycle.items()}
    merged: Graph = defaultdict(set)
    for name, others in graph.items():
        merged[title[name]] |= {title[other] for other in others} - {title[name]}
    return dict(merged)


def reduced(graph: Graph) -> Graph:
    """The fewest arrows from which all others follow; `graph` has no cycle."""
    reach = {name: reachable(graph, name) for name in graph}
    return {
        name: {other for other in others if not any(other in reach[between] for between in others - {other})}
        for name, others in graph.items()
    }


def floors(graph: Graph) -> list[list[str]]:
    """Rooms by their height, the ground floor first: one above the highest room that they import."""
    height: dict[str, int] = {}

    def height_of(name: str) -> int:
        if name not in height:
            height[name] = 1 + max((height_of(other) for other in graph[name]), default=-1)
        return height[name]

    rows: list[list[str]] = [[] for _ in range(1 + max(height_of(name) for name in graph))]
    for name in sorted(graph):
        rows[height[name]].append(name)
    return rows


def placed(graph: Graph) -> dict[str, tuple[float, float]]:
    """Centre of each box in pixels. A row stands in the order of what it imports, so that few arrows cross."""
    rows = floors(graph)
    x: dict[str, float] = {}
    for row in rows:
        row.sort(key=lambda name: (sum(x[other] for other in graph[name]) / max(1, len(graph[name])), name))
        total = sum(box_width(name) for name in row) + GAP * (len(row) - 1)
        left = -total / 2
        for name in row:
            x[name] = left + box_width(name) / 2
            left += box_width(name) + GAP
    shift = MARGIN - min(x[name] - box_width(name) / 2 for name in x)
    top = len(rows) - 1
    return {
        name: (x[name] + shift, MARGIN + BOX_HEIGHT / 2 + ROW * (top - level))
        for level, row in enumerate(rows)
        for name in row
    }


def box_width(name: str) -> float:
    return 24 + LETTER * len(name)


def picture(root: Path = ROOT) -> str:
    """The SVG: boxes in rows, arrows from a room down to what it imports, purpose of a room as its tooltip."""
    graph = reduced(joined(import_graph(root)))
    centre = placed(graph)
    width = max(x + box_width(name) / 2 for name, (x, _) in centre.items()) + MARGIN
    height = max(y for _, y in centre.values()) + BOX_HEIGHT / 2 + MARGIN
    words = "; ".join(f"{name} imports {', '.join(sorted(graph[name]))}" for name in sorted(graph) if graph[name])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" font-family="sans-serif" font-size="13">',
        "<title>Which room imports which</title>",
        f"<desc>{escape(words)}.</desc>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#7a8797"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    for name in sorted(graph):
        for other in sorted(graph[name]):
            (x1, y1), (x2, y2) = centre[name], centre[other]
            parts.append(
                f'<path d="M{x1:.1f},{y1 + BOX_HEIGHT / 2:.1f} C{x1:.1f},{y1 + ROW * 0.7:.1f} {x2:.1f},'
                f'{y2 - ROW * 0.7:.1f} {x2:.1f},{y2 - BOX_HEIGHT / 2:.1f}" fill="none" stroke="#9aa7b5" '
                'stroke-width="1.3" marker-end="url(#tip)"/>'
            )
    folders = rooms(root)
    for name, (x, y) in sorted(centre.items()):
        half = box_width(name) / 2
        fill = "#fdf1e3" if name in ENTRY_POINTS else "#eaf1fb"
        parts += [
            f"<g><title>{escape(' '.join(purpose(folders[each]) for each in name.split(', ')))}</title>"
            f'<rect x="{x - half:.1f}" y="{y - BOX_HEIGHT / 2:.1f}" width="{2 * half:.1f}" height="{BOX_HEIGHT}" '
            f'rx="5" fill="{fill}" stroke="#3a6fb7"/>'
            f'<text x="{x:.1f}" y="{y:.1f}" dy="4.5" text-anchor="middle" fill="#1c2733">{escape(name)}</text></g>'
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def purpose(folder: Path) -> str:
    """First line of the docstring of a room."""
    doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    return (doc or folder.name).splitlines()[0]
