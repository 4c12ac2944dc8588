"""Numbers of the host that are fitted to runs, beside the stacks that have them and the sources of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.calibration.shipped.unseen_classes import source_of_text
from autodeploy.specs.software import release_of
from autodeploy.stack.host import HOST_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.specs.measurements import RlRecord
    from autodeploy.specs.record import Record
    from autodeploy.stack.software import Fact, Stack

FITTED = "record"  # kind of a fact that measured runs say


@dataclass(frozen=True, slots=True)
class HostConstant:
    """A fitted number: its name, its statement, the stacks that have it, and the independent sources of their runs."""

    name: str
    fact: Fact
    stacks: tuple[str, ...]
    sources: tuple[str, ...]


def host_constants(records: Iterable[Record], steps: Iterable[RlRecord]) -> list[HostConstant]:
    """Every fitted number of the host of a stack that has runs, by name and value; one that stacks share counts once.

    steps : of reinforcement learning.
    """
    stacks: dict[str, tuple[Stack, set[str]]] = {}
    for stack, source in (
        *((release_of(record).stack, record.source) for record in records),
        *((release_of(record).stack, record.source) for record in steps),
    ):
        stacks.setdefault(stack.name, (stack, set()))[1].add(source_of_text(source))
    found: dict[tuple[str, str], tuple[Fact, set[str], set[str]]] = {}
    for name, (stack, sources) in sorted(stacks.items()):
        for constant, ways in stack.facts.get("host", {}).items():
            for fact in ways:
                if fact.kind == FITTED and constant in HOST_UNITS:
                    entry = found.setdefault((constant, fact.value), (fact, set(), set()))
                    entry[1].add(name)
                    entry[2].update(sources)
    return [
        HostConstant(name, fact, tuple(sorted(names)), tuple(sorted(sources)))
        for (name, _), (fact, names, sources) in sorted(found.items())
    ]
