"""Choices that compete, as a graph: what hangs together, what all competes, and what can be used together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Graph = Mapping[int, frozenset[int]] | Sequence[frozenset[int]]
    """The neighbours of each number."""


@dataclass(frozen=True, slots=True)
class Rivals:
    """Choices that compete, directly or through others: a layer uses one set of each part, or what is instead of all.

    parts : of each the largest sets that can be used together; choices of different parts never compete.
    """

    parts: tuple[tuple[tuple[int, ...], ...], ...]
    instead: int | None


def rivals(count: int, compete: Callable[[int, int], bool]) -> tuple[Rivals, ...]:
    """Choices 0 .. count - 1 in groups; choices of different groups never compete."""
    numbers = frozenset(range(count))
    graph = [frozenset(b for b in numbers if b != a and compete(a, b)) for a in range(count)]
    found = []
    for group in connected(numbers, graph):
        # Recomputing the whole layer competes with all that it would save.
        whole = next((a for a in sorted(group) if len(group) > 1 and graph[a] >= group - {a}), None)
        parts = connected(group - {whole}, graph)
        friends = [{a: part - graph[a] - {a} for a in part} for part in parts]
        sets = (tuple(maximal_cliques(part, each)) for part, each in zip(parts, friends, strict=True))
        found.append(Rivals(tuple(sets), whole))
    return tuple(found)


def connected(numbers: frozenset[int], graph: Graph) -> list[frozenset[int]]:
    """Numbers in groups of neighbours, direct or through others of them; in the order of their least."""
    left, found = set(numbers), []
    while left:
        group: set[int] = set()
        grown = {min(left)}
        while grown:
            group |= grown
            grown = (set().union(*(graph[i] for i in grown)) & numbers) - group
        found.append(frozenset(group))
        left -= group
    return found


def maximal_cliques(numbers: frozenset[int], graph: Graph) -> list[tuple[int, ...]]:
    """Sets of numbers that are all neighbours, which no other number can join, each in order.

    Source: Bron and Kerbosch, Algorithm 457, Communications of the ACM 16 (1973).
    """
    found: list[tuple[int, ...]] = []

    def grow(clique: tuple[int, ...], candidates: frozenset[int], done: frozenset[int]) -> None:
        if not candidates and not done:
            found.append(tuple(sorted(clique)))
        for number in sorted(candidates):
            grow((*clique, number), candidates & graph[number], done & graph[number])
            candidates, done = candidates - {number}, done | {number}

    grow((), numbers, frozenset())
    return sorted(found)
