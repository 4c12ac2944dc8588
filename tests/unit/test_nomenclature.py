"""cost_models/nomenclature.md is made from docstrings; a name has one unit in a file."""

from __future__ import annotations

import pytest

from docs.nomenclature import SUFFIXES, Entry, Module, entries_of, modules, nomenclature_page

MODULES = {module.path: module for module in modules()}


def units(module: Module) -> dict[str, set[str]]:
    """name -> the units that docstrings of the file give it."""
    found: dict[str, set[str]] = {}
    for entry in module.entries:
        for name in entry.names:
            found.setdefault(name, set()).update({entry.unit} - {""})
    return found


@pytest.mark.parametrize("path", MODULES)
def test_a_name_has_one_unit_in_a_file(path: str) -> None:
    assert {name: each for name, each in units(MODULES[path]).items() if len(each) > 1} == {}


@pytest.mark.parametrize("path", MODULES)
def test_a_name_that_ends_in_a_unit_is_measured_in_it(path: str) -> None:
    def at_the_end(name: str) -> str | None:
        return next((unit for end, unit in SUFFIXES.items() if f"_{name}".endswith(f"_{end}")), None)

    wrong = {
        name: each
        for name, each in units(MODULES[path]).items()
        if (unit := at_the_end(name)) and not all(said.startswith(unit) for said in each)
    }
    # FLOP/s of a device, bytes a parameter: the suffix says what, the brackets by what it is divided.
    assert wrong == {}


def test_entries_are_read_as_docstrings_have_them() -> None:
    text = """Seconds of a thing.

    Parameters
    ----------
    depth, width : of it, in
        two lines [elements]. share : of the whole [fraction].
    window_s : beside it; None: nothing [n].

    Notes
    -----
    other : is no parameter.
    """
    assert entries_of(text, {"depth", "width", "share", "window_s"}) == [
        Entry(("depth", "width"), "elements", "of it, in two lines"),
        Entry(("share",), "fraction", "of the whole"),
        Entry(("window_s",), "s", "beside it; None: nothing [n]"),
    ]


def test_the_page_has_names_units_meanings_and_functions() -> None:
    page = nomenclature_page()
    assert "| `hbm_bytes_per_s` | B/s | datasheet bandwidth of device memory |" in page
    assert "| `contention` | ratio | a collective beside computation takes this much longer |" in page
    assert "| `imbalance_of` | Imbalance of experts or ranks" in page
    assert "`_level_s`" not in page, "what is private stays in its file"
