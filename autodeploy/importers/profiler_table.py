"""CSV tables of the Ascend profiler: long ones, read row by row, with titles that depend on what was collected."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.importers.measured_text import MAX_COLUMNS, MAX_LINE_LENGTH, TableRow, bad_line
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_TEXT_BYTES = 128_000_000
MAX_KERNELS = 600_000


def profiler_rows(text: str, required: tuple[str, ...]) -> Iterator[TableRow]:
    """Rows under the titles of the first line, which are in lower case; values may end with a tab.

    Raises
    ------
    SpecError
        with the line of what can't be read, or when a required title is missing.
    """
    titles: list[str] | None = None
    for line, content in enumerate(_lines(text), start=1):
        if not content.strip():
            continue
        if len(content) > MAX_LINE_LENGTH:
            raise bad_line(line, Message("field_fault.at_most_characters", bound=f"{MAX_LINE_LENGTH:,}"))
        if "\0" in content:
            raise bad_line(line, Message("field_fault.is_invalid", value=repr("\0")))
        try:
            cells = [cell.strip() for cell in next(csv.reader([content], strict=True))]
        except csv.Error as error:
            raise bad_line(line, Message("common.not_of_format", reason=error, format="CSV")) from None
        if titles is None:
            titles = [cell.lower() for cell in cells]
            if len(titles) > MAX_COLUMNS:
                raise bad_line(line, Message("field_fault.at_most_entries", bound=f"{MAX_COLUMNS:,}"))
            if repeated := [title for title in titles if titles.count(title) > 1]:
                raise bad_line(line, Message("common.given_twice", name=repr(repeated[0][:40])))
            for name in required:
                if name not in titles:
                    raise bad_line(
                        line,
                        Message("common.missing", word=repr(name)),
                        hint=Message("importers.output_of", command="torch_npu.profiler"),
                    )
            continue
        if len(cells) != len(titles):
            raise bad_line(line, Message("common.entries_expected", count=len(titles), found=len(cells)))
        if line > MAX_KERNELS:
            raise bad_line(
                line,
                Message("field_fault.at_most_entries", bound=f"{MAX_KERNELS:,}"),
                hint=Message("importers.profile_one_or_two_steps"),
            )
        yield TableRow(line, dict(zip(titles, cells, strict=True)))
    if titles is None:
        raise SpecError(Message("field_fault.is_empty"))


def _lines(text: str) -> Iterator[str]:
    """Lines of a text without a second copy of it."""
    start = 1 if text.startswith("\ufeff") else 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end].rstrip("\r")
        start = end + 1
