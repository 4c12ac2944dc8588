"""Costs of many candidates, kept by how they cut tensors and looked up by candidate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layers.unit_costs import UnitCosts, unit_costs
from autodeploy.strategies.tree import distinct_cuts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Ints


CUTS = 256
"""Cuts whose costs are kept alone: candidates that are planned share a few."""


@dataclass(frozen=True, eq=False)
class CutCosts:
    """Costs of candidates, under the features that each of them uses.

    tables : costs of cuts. table, cut [n] : the table of each candidate, and its row there.
    """

    tables: tuple[UnitCosts, ...]
    table: Ints
    cut: Ints

    def of(self, rows: Ints | slice) -> UnitCosts:
        """Of the candidates at some rows, which share a context."""
        table = self.table[rows]
        return self.tables[int(table[0])].take(self.cut[rows])

    def at(self, index: int) -> UnitCosts:
        """Of one candidate."""
        return self._alone(int(self.table[index]), int(self.cut[index]))

    @cached_property
    def _alone(self) -> Callable[[int, int], UnitCosts]:
        tables = self.tables

        @lru_cache(maxsize=CUTS)
        def alone(table: int, cut: int) -> UnitCosts:
            return tables[table].take(np.array([cut]))

        return alone

    def take(self, rows: Ints) -> CutCosts:
        """Of the candidates at some rows alone."""
        return CutCosts(self.tables, self.table[rows], self.cut[rows])


def joined(parts: Sequence[CutCosts]) -> CutCosts:
    """Of the candidates of all parts, in order."""
    first = np.cumsum([0, *(len(part.tables) for part in parts)])
    return CutCosts(
        tuple(table for part in parts for table in part.tables),
        np.concatenate([part.table + start for part, start in zip(parts, first, strict=False)]),
        np.concatenate([part.cut for part in parts]),
    )


def cut_costs(candidates: Candidates, contexts: Callable[[int], Context]) -> CutCosts:
    """Costs of any candidates; contexts : that of a candidate by its index, with nothing open."""
    numbers: dict[int, int] = {}
    known: list[Context] = []
    table = np.zeros(len(candidates), dtype=np.int64)
    for index in range(len(candidates)):
        context = contexts(index)
        if id(context) not in numbers:
            numbers[id(context)] = len(known)
            known.append(context)
        table[index] = numbers[id(context)]
    cut, tables = np.zeros(len(candidates), dtype=np.int64), []
    for number, context in enumerate(known):
        mine = np.flatnonzero(table == number)
        some = candidates.take(mine)
        first, cut[mine] = distinct_cuts(some, by_replicas=context.cuts_by_replicas)
        tables.append(unit_costs(context, some.take(first)))
    return CutCosts(tuple(tables), table, cut)
