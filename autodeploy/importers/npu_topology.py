"""`npu-smi info -t topo`: how each pair of devices of a node is joined.

A matrix under `NPU0 NPU1 ...` (a chip a card) or `Phy-ID0 Phy-ID1 ...` (a die a rank), with `CPU Affinity` behind it
and a legend below. Words of the pairs as in the legend and in `aclrtGetDevicesTopo` of CANN.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autodeploy.errors import SpecError
from autodeploy.importers.measured_text import bad_line, lines_of
from autodeploy.messages import Message

MAX_DEVICES = 64
SELF = "X"
LINKS = ("HCCS", "HCCS_SW", "SIO", "PIX", "PXB", "PHB", "SYS", "NA")
_NAME = re.compile(r"(?:NPU|Phy-ID)(\d{1,4})")


@dataclass(frozen=True, slots=True)
class NpuTopology:
    """`links[i][j]`: how device `devices[i]` reaches `devices[j]`; X for itself."""

    devices: tuple[int, ...]
    links: tuple[tuple[str, ...], ...]


def is_npu_topology(text: str) -> bool:
    """Whether a line has the names of several devices."""
    return any(_is_head(line.split()) for line in text[:100_000].split("\n"))


def read_npu_topology(text: str) -> NpuTopology:
    """The matrix of links of one node.

    Raises
    ------
    SpecError
        with the line of what can't be read.
    """
    columns: list[str] = []
    rows: dict[str, tuple[int, tuple[str, ...]]] = {}
    for line, cells in enumerate((line.split() for line in lines_of(text)), start=1):
        if _is_head(cells):
            if columns:
                raise bad_line(
                    line,
                    Message("common.given_twice", name=columns[0]),
                    hint=Message("importers.one_file_for_each_node"),
                )
            columns = [cell for cell in cells if _NAME.fullmatch(cell)]
            if repeated := [name for name in columns if columns.count(name) > 1]:
                raise bad_line(line, Message("common.given_twice", name=repeated[0]))
            if len(columns) > MAX_DEVICES:
                raise bad_line(line, Message("field_fault.at_most_entries", bound=f"{MAX_DEVICES:,}"))
        elif columns and cells and _NAME.fullmatch(cells[0]):
            if cells[0] in rows:
                raise bad_line(line, Message("common.given_twice", name=cells[0]))
            rows[cells[0]] = line, _links(cells, len(columns), line)
    if not columns:
        raise SpecError(
            Message("importers.no_measured_row"), hint=Message("importers.output_of", command="npu-smi info -t topo")
        )
    if missing := [name for name in columns if name not in rows]:
        raise SpecError(
            Message("common.missing", word=missing[0]),
            hint=Message("importers.output_of", command="npu-smi info -t topo"),
        )
    for name, (line, links) in rows.items():
        if name not in columns:
            raise bad_line(line, Message("common.missing", word=name))
        for other, link in zip(columns, links, strict=True):
            if (link == SELF) != (name == other) or rows[other][1][columns.index(name)] != link:
                raise bad_line(line, Message("importers.links_differ_by_direction", one=name, other=other))
    numbers = tuple(int(name.lstrip("NPUhy-ID")) for name in columns)
    return NpuTopology(numbers, tuple(rows[name][1] for name in columns))


def _is_head(cells: list[str]) -> bool:
    """Whether these are titles: a row has a link behind its name."""
    return len(cells) > 1 and all(_NAME.fullmatch(cell) for cell in cells[:2])


def _links(cells: list[str], count: int, line: int) -> tuple[str, ...]:
    links = tuple(cells[1 : count + 1])
    if len(links) < count:
        raise bad_line(line, Message("common.entries_expected", count=count, found=len(links)))
    for link in links:
        if link not in {SELF, *LINKS}:
            raise bad_line(line, Message("field_fault.is_invalid", value=repr(link[:40])), hint=", ".join(LINKS))
    return links
