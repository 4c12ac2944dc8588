"""Every format is a row of one table, which every door asks."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from autodeploy.formats.common.source import Source
from autodeploy.formats.registry import FORMATS, ROWS, Format, function_of

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = {"": 0, "language": 1, "timeline": 1}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_functions_of_a_row_are_there(row: Format) -> None:
    assert bool(row.detects) == bool(row.reads)
    assert row.detects or row.refuses or row.writes
    for name in filter(None, (row.detects, row.refuses, row.reads)):
        assert len(inspect.signature(function_of(name)).parameters) == 1, name
    if row.writes:
        assert isinstance(row.writes, str)
        assert len(inspect.signature(function_of(row.writes)).parameters) == 2 + PARAMETERS[row.takes], row.writes


def test_names_are_of_one_row_each() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.title for row in ROWS)


def test_the_table_loads_no_reader_so_that_the_help_can_ask_it() -> None:
    asked = "import sys, autodeploy.formats.registry; print(*sorted(n for n in sys.modules if 'formats' in n))"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == ["autodeploy.formats", "autodeploy.formats.registry"]


def test_the_page_on_launch_files_names_every_format() -> None:
    page = (ROOT / "docs" / "how-to" / "launch_files.md").read_text(encoding="utf-8")
    assert [name for name in FORMATS if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("filename", "text", "syntax"),
    [
        ("a.toml", "[model]", "toml"),
        ("", "[parallelism]\n", "toml"),
        ("a.SBATCH", "", "script"),
        ("", "torchrun pretrain_gpt.py", "script"),
        ("a.yaml", "x: torchrun", "yaml"),
        ("", ' {"a": 1}', "json"),
        ("a.yml", "{a: 1}", "yaml"),
    ],
)
def test_the_syntax_is_that_of_the_suffix_else_of_the_content(filename: str, text: str, syntax: str) -> None:
    assert Source(text, filename).syntax == syntax
