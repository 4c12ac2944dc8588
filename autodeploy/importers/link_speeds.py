"""`hccn_tool -i N -speed -g`: the negotiated rate of each device's network port, as `Speed: 200000 Mb/s`.

The outputs of a node stand one after the other. A line with `-i N` says whose the next speed is; without, they count
from 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from autodeploy.errors import SpecError
from autodeploy.importers.measured_text import bad_line, lines_of
from autodeploy.messages import Message

MAX_SPEED_MB = 3_200_000  # Mb/s
MAX_DEVICES = 20_000
_SPEED = re.compile(r"(?:current )?speed\s*:\s*(\S.{0,80})?", re.IGNORECASE)
_RATE = re.compile(r"(\d{1,9}) *Mb/s", re.IGNORECASE)
_DEVICE = re.compile(r"-i\s+(\d{1,6})\b")


@dataclass(frozen=True, slots=True)
class LinkSpeeds:
    """Mbit/s, one way, by device."""

    mbit_per_s: dict[int, int]


def is_link_speeds(text: str) -> bool:
    """Whether a line says a speed."""
    return any(_SPEED.match(line.strip()) for line in text[:100_000].split("\n"))


def read_link_speeds(text: str) -> LinkSpeeds:
    """The speed of every device.

    Raises
    ------
    SpecError
        with the line of what can't be read, or of a port that is down.
    """
    speeds: dict[int, int] = {}
    named: int | None = None
    for line, content in enumerate(lines_of(text), start=1):
        if device := _DEVICE.search(content[:2000]):
            named = int(device[1])
        said = _SPEED.match(content.strip())
        if said is None:
            continue
        rate = _RATE.fullmatch((said[1] or "").strip())
        if rate is None:
            raise bad_line(
                line,
                Message("field_fault.is_invalid", value=repr((said[1] or "")[:40])),
                hint=Message("importers.speed_200000_mb_s_is_port_up"),
            )
        if not 1 <= int(rate[1]) <= MAX_SPEED_MB:
            raise bad_line(line, Message("common.is_outside", value=rate[1], range=f"[1, {MAX_SPEED_MB:,}] Mb/s"))
        number = len(speeds) if named is None else named
        if number in speeds:
            raise bad_line(
                line,
                Message("common.given_twice", name=f"device {number}"),
                hint=Message("importers.one_file_for_each_node"),
            )
        if len(speeds) >= MAX_DEVICES:
            raise bad_line(line, Message("field_fault.at_most_entries", bound=f"{MAX_DEVICES:,}"))
        speeds[number], named = int(rate[1]), None
    if not speeds:
        raise SpecError(
            Message("importers.no_measured_row"),
            hint=Message("importers.output_of", command="hccn_tool -i 0 -speed -g"),
        )
    return LinkSpeeds(speeds)
