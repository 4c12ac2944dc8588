"""Tables as titles and rows of text, and how a terminal and Markdown show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from autodeploy.reports.wording import pad, width

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

COLUMNS = 100
UNWRAPPED = 10_000  # columns where the reader's program breaks lines itself


class Table(NamedTuple):
    """Titles, rows of cells, and the places of the columns that hold numbers."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Set[int] = frozenset()


def aligned(table: Table) -> list[str]:
    """A table in aligned columns, those of numbers to the right; what is too long for the line is cut at its end."""
    rows = [table.titles, *table.rows]
    widths = [max(width(row[column]) for row in rows) for column in range(len(table.titles))]
    gap = 2 if sum(widths) + 2 * len(widths) <= COLUMNS else 1
    lines = []
    for row in rows:
        line = " " + (" " * gap).join(pad(cell, widths[i], right=i in table.right) for i, cell in enumerate(row))
        lines.append(_cut(line.rstrip()))
    return lines


def _cut(line: str) -> str:
    while width(line) > COLUMNS:
        line = line[:-2].rstrip() + "…"
    return line


def markdown(table: Table) -> list[str]:
    """A table of Markdown; its cells are Markdown already, where `escaped` has not made them so."""
    rules = ["--:" if column in table.right else "---" for column in range(len(table.titles))]
    rows = ["| " + " | ".join(row) + " |" for row in (table.titles, *table.rows)]
    return [rows[0], "|" + "|".join(rules) + "|", *rows[1:]]


def escaped(table: Table) -> Table:
    """The table with its cells as plain text of Markdown."""
    return table._replace(rows=[[escape(cell) for cell in row] for row in table.rows])


def escape(text: str) -> str:
    """Signs that Markdown or HTML would take for its own."""
    for sign in "\\|*_<>#":
        text = text.replace(sign, "\\" + sign)
    return text
