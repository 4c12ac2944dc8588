"""Effects of a layer's memory choices: bytes that they free, seconds that they take, what pays at a price.

Points are (bytes freed, seconds added) of legal sets of choices. A price times bytes less seconds is largest at a
corner of their lower convex hull, so a bound over all prices is reached at the slopes between corners.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from autodeploy.search.choices.memory_options import conflicts, rivals
from cost_models.arrays import product

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.costs.stages.inner_problem import MemoryOption
    from autodeploy.search.choices.memory_options import Rivals
    from cost_models.arrays import Floats, Ints

    Point = tuple[float, float]

PRICE_STEP: Final = 1.02
"""Prices that differ by less serve as one."""


class Choices(NamedTuple):
    """Memory choices of one layer class, in groups of rivals.

    saved_bytes, extra_s : bytes freed and seconds added by a layer and micro batch [choices, n].
    most_saved_bytes : no legal set of choices frees more from one layer [n].
    """

    saved_bytes: Floats
    extra_s: Floats
    groups: tuple[Rivals, ...]
    most_saved_bytes: Floats

    @classmethod
    def none(cls, n: int) -> Choices:
        """No choice for n candidates."""
        empty = np.zeros((0, n))
        return cls(empty, empty, (), np.zeros(n))

    def take(self, rows: Ints) -> Choices:
        """Of some candidates."""
        return self._replace(**{name: getattr(self, name)[..., rows] for name in ARRAYS_OF_CHOICES})

    def gained_s(self, price: Floats) -> Floats:
        """Most that a layer saves at a price of its bytes, less the seconds of its choices [n, prices]."""
        gain = [
            np.maximum(price * saved[:, None] - extra[:, None], 0.0)
            for saved, extra in zip(self.saved_bytes, self.extra_s, strict=True)
        ]
        best = np.zeros_like(price)
        for group in self.groups:
            apart = sum(np.maximum.reduce([sum(gain[i] for i in members) for members in sets]) for sets in group.parts)
            best = best + (apart if group.instead is None else np.maximum(apart, gain[group.instead]))
        return np.asarray(np.minimum(best, price * self.most_saved_bytes[:, None]))

    def best(self, price: float) -> list[int]:
        """The choices with which the first candidate's layer gains most at a price of its bytes."""
        gain = (price * self.saved_bytes[:, 0] - self.extra_s[:, 0]).clip(min=0.0).tolist()
        chosen: list[int] = []
        for group in self.groups:
            members = [i for sets in group.parts for i in max(sets, key=lambda each: sum(gain[i] for i in each))]
            whole = group.instead
            chosen += members if whole is None or sum(gain[i] for i in members) > gain[whole] else [whole]
        return [i for i in chosen if gain[i] > 0.0]

    def dearest(self) -> Floats:
        """Seconds a byte of the dearest choice: the scale of prices [n]."""
        saved = self.saved_bytes
        price = np.where(saved > 0.0, self.extra_s / np.maximum(saved, 1e-30), 0.0)
        return np.asarray(price.max(axis=0, initial=0.0))

    def corners(self) -> list[Point]:
        """Corners of the hull of the first candidate's layers, from left to right."""
        return _corners(tuple(self.saved_bytes[:, 0].tolist()), tuple(self.extra_s[:, 0].tolist()), self.groups)


ARRAYS_OF_CHOICES: Final = ("saved_bytes", "extra_s", "most_saved_bytes")


@dataclass(frozen=True, eq=False)
class Part:
    """A layer class, or a piece with its place: seconds and bytes of one micro batch [n].

    hidden_forward_s, hidden_backward_s: what its passes hide in a pair, at most.
    """

    forward_s: Floats
    backward_s: Floats
    static_bytes: Floats
    activation_bytes: Floats
    tail_s: Floats
    hidden_forward_s: Floats
    hidden_backward_s: Floats
    choices: Choices
    count: int = 1
    stage: int = 0
    chunk: int = 0

    def take(self, rows: Ints) -> Part:
        """Of some candidates."""
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in ARRAYS_OF_PARTS}
        return replace(self, choices=self.choices.take(rows), **arrays)

    def lean_bytes(self, in_flight: Floats) -> Floats:
        """Bytes of a layer with everything saved, by the micro batches in flight of its chunk [n, *held]."""
        wide = (slice(None), *(None for _ in in_flight.shape))
        kept = self.activation_bytes - self.choices.most_saved_bytes
        return np.asarray(self.static_bytes[wide] + kept[wide] * in_flight)

    def paid_s(self, price: Floats, in_flight_price: Floats, place: Ints) -> Floats:
        """Seconds that a layer's bytes cost at prices of a byte, less what its choices gain [n, *prices, vpp].

        price [n, *prices] : of a byte held once. in_flight_price [n, m] : of one held by the micro batches in flight in
        a chunk, each different one once. place [*prices, vpp] : which of these it is.
        """
        wide = (slice(None), *(None for _ in place.shape))
        price_in_flight = in_flight_price[:, place]
        gained = self.choices.gained_s(in_flight_price)[:, place]
        return np.asarray(
            price[..., None] * self.static_bytes[wide] + price_in_flight * self.activation_bytes[wide] - gained
        )


COSTS_OF_PARTS: Final = ("forward_s", "backward_s", "static_bytes", "activation_bytes", "tail_s")
ARRAYS_OF_PARTS: Final = (*COSTS_OF_PARTS, "hidden_forward_s", "hidden_backward_s")


def join(parts: Sequence[Part]) -> Part:
    """Candidates of several batches as those of one; all know the same choices."""

    def joined(owners: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
        return {name: np.concatenate([getattr(owner, name) for owner in owners], axis=-1) for name in names}

    choices = [part.choices for part in parts]
    return replace(
        parts[0],
        choices=choices[0]._replace(**joined(choices, ARRAYS_OF_CHOICES)),
        **joined(parts, ARRAYS_OF_PARTS),
    )


@lru_cache(maxsize=1024)
def choices_of(options: tuple[MemoryOption, ...], layer_class: int) -> Choices:
    """Of one problem's options those of a class, as choices of one candidate."""
    of_class, compete = [i for i, option in enumerate(options) if option.layer_class == layer_class], conflicts(options)
    saved, extra = (tuple(getattr(options[i], name) for i in of_class) for name in ("saved_bytes", "extra_backward_s"))
    groups = rivals(len(of_class), lambda a, b: of_class[b] in compete[of_class[a]])
    most = np.array([_corners(saved, extra, groups)[-1][0]])
    saved_bytes, extra_s = (np.array(each, dtype=np.float64).reshape(-1, 1) for each in (saved, extra))
    return Choices(saved_bytes, extra_s, groups, most)


def most_saved(options: tuple[MemoryOption, ...], layer_class: int) -> float:
    """Most bytes that one layer of a class can free: the heaviest set of options that don't compete."""
    return float(choices_of(options, layer_class).most_saved_bytes[0])


def prices(choices: Iterable[Choices]) -> Floats:
    """Seconds a byte at which the first candidate's layers of some classes would free more, ascending [k]."""
    slopes: list[float] = []
    for price in sorted(slope for each in choices for slope in _slopes(each.corners())):
        if not slopes or price > slopes[-1] * PRICE_STEP:
            slopes.append(price)
    return np.array([price for price in slopes if price > 0.0], dtype=np.float64)


def least_extra_s(options: tuple[MemoryOption, ...], layers: Ints, need_bytes: float) -> float:
    """Seconds that any option counts add which free need_bytes of `layers` [classes]; inf when none free as much.

    A layer may be part of one corner and part of the next, and swaps are never waited for: a relaxation.
    """
    price, freed, layer_class = _edges(options)
    offered = freed * layers[layer_class]
    if need_bytes > offered.sum() * (1.0 + 1e-9):
        return float("inf")
    return float(product(np.clip(need_bytes - (np.cumsum(offered) - offered), 0.0, offered), price))


@lru_cache(maxsize=512)
def _edges(options: tuple[MemoryOption, ...]) -> tuple[Floats, Floats, Ints]:
    """Of all classes' hulls, the cheapest byte first: seconds a byte, bytes of one layer, layer class [edges]."""
    edges = [
        ((b[1] - a[1]) / (b[0] - a[0]), b[0] - a[0], number)
        for number in {option.layer_class for option in options}
        for a, b in pairwise(choices_of(options, number).corners())
    ]
    columns = np.array(sorted(edges), dtype=np.float64).reshape(-1, 3).T
    return columns[0], columns[1], columns[2].astype(np.int64)


@lru_cache(maxsize=4096)
def _corners(saved: tuple[float, ...], extra: tuple[float, ...], groups: tuple[Rivals, ...]) -> list[Point]:
    """Most shapes of a search share the bytes and the seconds of a layer's choices."""

    def sums(members: Sequence[int]) -> list[Point]:
        """Choices of one legal set, the cheapest a byte first, one after the other."""
        useful = sorted((i for i in members if saved[i] > 0.0), key=lambda i: extra[i] / saved[i])
        points = [(0.0, 0.0)]
        for i in useful:
            points.append((points[-1][0] + saved[i], points[-1][1] + extra[i]))
        return points

    total: list[Point] = [(0.0, 0.0)]
    for group in groups:
        apart: list[Point] = [(0.0, 0.0)]
        for sets in group.parts:
            apart = _sum(apart, _hull([point for members in sets for point in sums(members)]))
        if group.instead is not None:
            apart = _hull([*apart, (saved[group.instead], extra[group.instead])])
        total = _sum(total, apart)
    return total


def _hull(points: list[Point]) -> list[Point]:
    """Corners of the lower convex hull, from left to right (Andrew's monotone chain)."""
    corners: list[Point] = []
    for x, y in sorted(points):
        if corners and x == corners[-1][0]:
            continue
        while len(corners) > 1 and _above(corners[-2], corners[-1], (x, y)):
            corners.pop()
        corners.append((x, y))
    return corners


def _above(a: Point, b: Point, c: Point) -> bool:
    """Whether b is on or above the line from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def _sum(one: list[Point], other: list[Point]) -> list[Point]:
    """Corners of the sums of a point of each hull: their edges in the order of their slopes."""
    edges = [(b[0] - a[0], b[1] - a[1]) for hull in (one, other) for a, b in pairwise(hull)]
    corners = [(one[0][0] + other[0][0], one[0][1] + other[0][1])]
    for x, y in sorted(edges, key=lambda edge: edge[1] / edge[0]):
        corners.append((corners[-1][0] + x, corners[-1][1] + y))
    return corners


def _slopes(corners: list[Point]) -> list[float]:
    return [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(corners)]
