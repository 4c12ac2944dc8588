"""Blocks of a report, their tables, and how a terminal and Markdown show them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from autodeploy.reports.wording import pad, width, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

COLUMNS = 100
LEAST_LAST = 24  # columns of the last cell of a table, at least
INDENT = "  "


class Table(NamedTuple):
    """Titles, rows of cells, and the places of the columns that hold numbers."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Set[int] = frozenset()


class Block(NamedTuple):
    """A part of a report: its title, a table, and sentences, one a line."""

    title: str = ""
    lines: Sequence[str] = ()
    table: Table | None = None


def in_columns(*blocks: Block, columns: int = COLUMNS) -> str:
    """The blocks as text of at most so many columns; what has a title is indented below it."""
    shown: list[str] = []
    for block in blocks:
        shown += wrap(block.title, columns, hanging=INDENT * 3) if block.title else []
        shown += aligned(block.table, columns) if block.table is not None else []
        for line in block.lines:
            shown += wrap(line, columns, indent=INDENT if block.title else "", hanging=INDENT)
    return "".join(line.rstrip() + "\n" for line in shown)


def in_markdown(*blocks: Block) -> str:
    """The blocks as Markdown: titles bold, sentences as lists."""
    shown: list[str] = []
    for block in blocks:
        shown += [f"**{escape(block.title)}**", ""] if block.title else []
        shown += [*markdown(block.table), ""] if block.table is not None else []
        shown += [*(f"- {escape(line)}" for line in block.lines), ""] if block.lines else []
    return "".join(f"{line}\n" for line in shown)


def aligned(table: Table, columns: int = COLUMNS) -> list[str]:
    """A table in aligned columns, those of numbers to the right; a last cell that is too long is broken into lines.

    Where the others leave no room for it, it stands below its row.
    """
    rows = [table.titles, *table.rows]
    widths = [max(width(row[column]) for row in rows) for column in range(len(table.titles))]
    gap = " " * (2 if sum(widths) + 2 * len(widths) <= columns else 1)
    left = sum(widths[:-1]) + len(gap) * (len(widths) - 1) + 1
    lines, room = [], columns - left
    for row in rows:
        cells = [pad(cell, widths[i], right=i in table.right) for i, cell in enumerate(row)]
        if widths[-1] > room and room < LEAST_LAST:
            lines.append((" " + gap.join(cells[:-1])).rstrip())
            lines += wrap(row[-1], columns, indent=INDENT * 2) if row[-1] and row is not table.titles else []
            continue
        first, *rest = wrap(row[-1], room) if widths[-1] > room else [cells[-1]]
        lines.append((" " + gap.join([*cells[:-1], first])).rstrip())
        lines += [" " * left + text for text in rest]
    return lines


def markdown(table: Table) -> list[str]:
    """A table of Markdown."""
    rules = ["--:" if column in table.right else "---" for column in range(len(table.titles))]
    head, *rows = ["| " + " | ".join(map(escape, row)) + " |" for row in (table.titles, *table.rows)]
    return [head, "|" + "|".join(rules) + "|", *rows]


def escape(text: str) -> str:
    """Signs that Markdown or HTML would take for its own; `_` within a word is none."""
    return re.sub(r"[\\|*<#`\[\]]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)
