"""Which layout each phase runs with: the cheapest way through phases, layouts and the changes between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def cheapest_layouts(phase_s: Sequence[Sequence[float]], change_s: float) -> tuple[int, ...] | None:
    """Index of the layout of each phase; None where some phase runs with no layout.

    Parameters
    ----------
    phase_s : [phase][layout] seconds; infinite where the layout can't run the phase.
    change_s : seconds of going from one layout to another between two phases; staying is free.

    Notes
    -----
    A shortest path, exact: the best way to end phase p with layout l extends the best way to end p - 1 with l, or with
    the layout that ended p - 1 cheapest. Of equal ways the one with the lower index is taken.
    """
    best = list(phase_s[0])
    came_from: list[list[int]] = []
    for seconds in phase_s[1:]:
        leader = min(range(len(best)), key=lambda i: best[i])
        origin = [i if best[i] <= best[leader] + change_s else leader for i in range(len(best))]
        best = [best[start] + (0.0 if start == i else change_s) + seconds[i] for i, start in enumerate(origin)]
        came_from.append(origin)
    last = min(range(len(best)), key=lambda i: best[i])
    if math.isinf(best[last]):
        return None
    way = [last]
    for origin in reversed(came_from):
        way.append(origin[way[-1]])
    return tuple(reversed(way))
