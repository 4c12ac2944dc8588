"""The picture of the rooms shows what the code imports: no more, and all that follows from it."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import pytest

import autodeploy
from docs import rooms_picture
from docs.rooms_picture import ROOT, import_graph, imported_modules, joined, picture, reachable, reduced

if TYPE_CHECKING:
    from pathlib import Path

MOST_ENTRIES, MOST_ARROWS, MOST_FILES = 18, 110, 560


def folder_imports(root: Path) -> dict[str, set[str]]:
    """Folder -> folders that its files import, for type checking too."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in rooms_picture.PACKAGES
        for path in (root / package).rglob("*.py")
    }
    folders = {name: name if path.stem == "__init__" else name.rpartition(".")[0] for name, path in files.items()}
    graph: dict[str, set[str]] = {folder: set() for folder in folders.values()}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                named = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[folders[name]] |= {
                    folders[each] for each in (named & files.keys()) or {node.module} & files.keys()
                }
    return {folder: others - {folder} for folder, others in graph.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Names of a circle; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize(
    "graph", [{"a": {"b"}, "b": {"a"}}, {"a": {"b"}, "b": {"c"}, "c": {"a"}}, {"x": {"a"}, "a": {"b"}, "b": {"a"}}]
)
def test_a_circle_is_found(graph):
    assert circle(graph)


def test_no_two_folders_import_each_other_not_even_for_types():
    graph = folder_imports(ROOT)
    assert {"api.http", "autodeploy.service.searches", "autodeploy.search.ranking"} <= graph.keys()
    assert circle(graph) == []


def test_the_first_page_the_arrows_and_the_files_stay_few():
    entries = [path for path in (ROOT / "autodeploy").iterdir() if path.name != "__pycache__"]
    files = [path for package in rooms_picture.PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(entries) <= MOST_ENTRIES
    assert sum(map(len, import_graph(ROOT).values())) <= MOST_ARROWS
    assert len(files) <= MOST_FILES


def test_no_module_bears_the_name_of_a_public_function():
    """Importing a submodule binds its name in the package."""
    modules = {path.stem for path in (ROOT / "autodeploy").iterdir()}
    assert modules & set(autodeploy.__all__) == set()


def test_imports_are_read_wherever_they_run():
    source = """
import autodeploy.specs.spec
from autodeploy import kit
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from autodeploy.api_only import x
else:
    import cost_models.hbm
def late():
    from autodeploy.search.branch_and_bound import search
"""
    found = set(imported_modules(source))
    assert found == {
        "autodeploy.specs.spec",
        "autodeploy.kit",
        "typing",
        "cost_models.hbm",
        "autodeploy.search.branch_and_bound",
    }


def test_an_arrow_that_follows_from_others_is_left_out():
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert reduced(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_rooms_that_import_each_other_share_a_box():
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": set[str]()}
    assert joined(graph) == {"a, b": {"c"}, "c": set()}


def test_the_reduction_keeps_what_can_be_reached():
    graph = joined(import_graph(ROOT))
    fewer = reduced(graph)
    assert {name: reachable(fewer, name) for name in graph} == {name: reachable(graph, name) for name in graph}
    assert sum(map(len, fewer.values())) < sum(map(len, graph.values())) / 3


def test_every_room_has_a_box_and_no_arrow_points_up():
    graph = joined(import_graph(ROOT))
    text = picture()
    boxes = re.findall(r'text-anchor="middle" fill="#1c2733">([^<]+)<', text)
    assert sorted(boxes) == sorted(graph)
    centre = rooms_picture.placed(reduced(graph))
    assert all(centre[other][1] > centre[name][1] for name, others in graph.items() for other in others)


def test_boxes_of_a_row_do_not_touch():
    centre = rooms_picture.placed(reduced(joined(import_graph(ROOT))))
    for name, (x, y) in centre.items():
        for other, (x2, y2) in centre.items():
            if name != other and y == y2:
                assert abs(x - x2) > (rooms_picture.box_width(name) + rooms_picture.box_width(other)) / 2


def test_the_page_of_the_architecture_shows_it_and_says_each_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert "explanation/figures/rooms.svg" in text
    table = text.partition("## Packages")[2].partition("\n## ")[0]
    missing = {name for name in rooms_picture.rooms() if not re.search(rf"`(?:autodeploy/)?{name}/`", table)}
    assert missing == set()


def modules_named(text: str) -> set[tuple[str, str]]:
    """Paths with a slash in the ways of the page, each with the name inside the file that follows its dot."""
    ways = text.partition("\n## A spec, from")[2].partition("\n## Invariants")[0]
    code = re.findall(r"```text\n(.*?)```", ways, re.DOTALL) + re.findall(r"`([^`\n]+)`", ways)
    return {found for each in code for found in re.findall(r"\b([a-z_]+(?:/[a-z_]+)+)(?:\.(?!py|yaml)(\w+))?", each)}


def test_every_module_of_the_ways_is_there_with_its_function():
    named = modules_named((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert ("api/routes/searches", "create_search") in named
    paths = [path for package in rooms_picture.PACKAGES for path in (ROOT / package).rglob("*")]
    for module, function in named:
        found = [path for path in paths if f"/{path.with_suffix('')}".endswith(f"/{module}")]
        assert found, module
        assert not function or any(f"def {function}(" in path.read_text(encoding="utf-8") for path in found), module
