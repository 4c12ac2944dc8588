"""Flags (or keys of a configuration) that each release's parser registers: types, choices and values.

The tables are made from the releases' sources: `make flags` loads each release's own parser and writes what it finds.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autodeploy.messages import Message
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FLAG, INT, FLOAT = "flag", "int", "float"
_LEAST_VALUES = {"*": 0, "+": 1}


@dataclass(frozen=True, slots=True)
class RegisteredFlag:
    """A flag as a parser knows it.

    name : with its dashes; of a configuration key the dotted path.
    type : `flag` (it takes no value), int, float, str, or the name of the parser's own converter.
    choices : the only values there are; empty: any.
    nargs : number of values, "?", "*" or "+"; empty: one.
    registered_in : component of the release whose source registers it.
    source : path and line in that component's repository.
    """

    name: str
    type: str
    choices: tuple[str, ...]
    nargs: str
    registered_in: str
    source: str

    def fault(self, values: Sequence[str]) -> str | None:
        """Fault of these values in the parser; None: nothing.

        Values that a shell fills in later, as "${TP}", are only counted.
        """
        if fault := self._count_fault(len(values)):
            return fault
        for value in values:
            if "$" in value:
                continue
            if self.choices and value not in self.choices:
                return Message("common.unknown_value", flag=self.name, value=repr(value), names=", ".join(self.choices))
            if self.type in {INT, FLOAT} and not _is_number(value, self.type):
                return Message(
                    "common.takes_not",
                    name=self.name,
                    kind=Message("field_fault.a_whole_number") if self.type == INT else Message("field_fault.a_number"),
                    value=repr(value),
                )
        return None

    def _count_fault(self, count: int) -> str | None:
        if self.type == FLAG:
            least, most = 0, 0
        elif self.nargs == "?":
            least, most = 0, 1
        elif self.nargs in _LEAST_VALUES:
            least, most = _LEAST_VALUES[self.nargs], count
        else:
            least = most = int(self.nargs or 1)
        if least <= count <= most:
            return None
        expected = f">= {least}" if self.nargs in _LEAST_VALUES else f"{least}" if least == most else f"{least}-{most}"
        return Message("stack.takes_values", flag=self.name, expected=expected, found=count)


def _is_number(text: str, kind: str) -> bool:
    try:
        int(text) if kind == INT else float(text)
    except ValueError:
        return False
    return True


@cache
def defaults_of(framework: str) -> Mapping[str, Any]:
    """Values of a framework for flags or keys of which a launch says nothing, by name."""
    values: dict[str, Any] = shipped("autodeploy.stack", "parser_defaults.yaml")[framework]["values"]
    return values


@cache
def flag_table(release: str) -> Mapping[str, RegisteredFlag]:
    """Flags or keys of the release of that name, by name.

    Raises FileNotFoundError when no table was made for it.
    """
    text = (files("autodeploy.stack") / "flags" / f"{release}.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    own = ("type", "nargs", "registered_in", "source")
    return {
        row["flag"]: RegisteredFlag(
            row["flag"], choices=tuple(filter(None, row["choices"].split("|"))), **{name: row[name] for name in own}
        )
        for row in rows
    }
