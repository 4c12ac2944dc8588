"""What memory choices can do at best: at which prices of a byte it pays a layer to free more, and what bytes cost.

Points are (bytes freed, seconds added) of legal sets of choices. A price times bytes less seconds is largest at a
corner of their lower convex hull, so a bound over all prices is reached at the slopes between corners.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.solver.memory_options import conflicts
from autodeploy.solver.rivals import rivals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.evaluation.inner_problem import Floats, Ints, MemoryOption
    from autodeploy.solver.rivals import Rivals
    from autodeploy.solver.stage_bound import Choices

    Point = tuple[float, float]

NEAR: Final = 1.02
"""Prices that differ by less serve as one."""


def prices(choices: Iterable[Choices]) -> Floats:
    """Seconds a byte at which the first candidate's layers of some classes would free more, ascending [k]."""
    found: list[float] = []
    for price in sorted(slope for each in choices for slope in _slopes(_corners(each))):
        if not found or price > found[-1] * NEAR:
            found.append(price)
    return np.array([price for price in found if price > 0.0], dtype=np.float64)


def least_extra_s(options: tuple[MemoryOption, ...], layers: Ints, need_bytes: float) -> float:
    """Seconds that any option counts add which free need_bytes of `layers` [classes]; inf when none free as much.

    A layer may be part of one corner and part of the next, and swaps are never waited for: a relaxation.
    """
    price, freed, layer_class = _edges(options)
    offered = freed * layers[layer_class]
    if need_bytes > offered.sum() * (1.0 + 1e-9):
        return float("inf")
    return float(np.clip(need_bytes - (np.cumsum(offered) - offered), 0.0, offered) @ price)


@lru_cache(maxsize=512)
def _edges(options: tuple[MemoryOption, ...]) -> tuple[Floats, Floats, Ints]:
    """Of all classes' hulls, the cheapest byte first: seconds a byte, bytes of one layer, layer class [edges]."""
    found = [
        ((b[1] - a[1]) / (b[0] - a[0]), b[0] - a[0], number)
        for number in {option.layer_class for option in options}
        for a, b in pairwise(_corners_of_class(options, number))
    ]
    columns = np.array(sorted(found), dtype=np.float64).reshape(-1, 3).T
    return columns[0], columns[1], columns[2].astype(np.int64)


def _corners_of_class(options: tuple[MemoryOption, ...], layer_class: int) -> list[Point]:
    mine, compete = [i for i, option in enumerate(options) if option.layer_class == layer_class], conflicts(options)
    return _corners_of(
        tuple(options[i].saved_bytes for i in mine),
        tuple(options[i].extra_backward_s for i in mine),
        rivals(len(mine), lambda a, b: mine[b] in compete[mine[a]]),
    )


def _corners(choices: Choices) -> list[Point]:
    return _corners_of(tuple(choices.saved_bytes[:, 0].tolist()), tuple(choices.extra_s[:, 0].tolist()), choices.groups)


@lru_cache(maxsize=4096)
def _corners_of(saved: tuple[float, ...], extra: tuple[float, ...], groups: tuple[Rivals, ...]) -> list[Point]:
    """Most shapes of a search share the bytes and the seconds of a layer's choices."""

    def sums(some: Sequence[int]) -> list[Point]:
        """Choices of one legal set, the cheapest a byte first, one after the other."""
        useful = sorted((i for i in some if saved[i] > 0.0), key=lambda i: extra[i] / saved[i])
        points = [(0.0, 0.0)]
        for i in useful:
            points.append((points[-1][0] + saved[i], points[-1][1] + extra[i]))
        return points

    total: list[Point] = [(0.0, 0.0)]
    for group in groups:
        apart: list[Point] = [(0.0, 0.0)]
        for sets in group.parts:
            apart = _sum(apart, _hull([point for some in sets for point in sums(some)]))
        if group.instead is not None:
            apart = _hull([*apart, (saved[group.instead], extra[group.instead])])
        total = _sum(total, apart)
    return total


def _hull(points: list[Point]) -> list[Point]:
    """Corners of the lower convex hull, from left to right (Andrew's monotone chain)."""
    found: list[Point] = []
    for x, y in sorted(points):
        if found and x == found[-1][0]:
            continue
        while len(found) > 1 and _above(found[-2], found[-1], (x, y)):
            found.pop()
        found.append((x, y))
    return found


def _above(a: Point, b: Point, c: Point) -> bool:
    """Whether b is on or above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def _sum(one: list[Point], other: list[Point]) -> list[Point]:
    """Corners of the sums of a point of each hull: their edges in the order of their slopes."""
    edges = [(b[0] - a[0], b[1] - a[1]) for hull in (one, other) for a, b in pairwise(hull)]
    found = [(one[0][0] + other[0][0], one[0][1] + other[0][1])]
    for x, y in sorted(edges, key=lambda edge: edge[1] / edge[0]):
        found.append((found[-1][0] + x, found[-1][1] + y))
    return found


def _slopes(corners: list[Point]) -> list[float]:
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(corners)]
