"""The efforts that a search can be asked for, as budgets of work that repeat on every machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from autodeploy.solver.effort import DEFAULT, FAST, cores
from autodeploy.solver.frontier import Budget

if TYPE_CHECKING:
    from autodeploy.solver.effort import Effort
    from autodeploy.specs.search import SearchSpec

SLOTS: Final = 600_000.0
"""Slots that quick plans of the default effort may simulate: a candidate takes pp x vpp x micro batches of them."""


@dataclass(frozen=True, slots=True)
class Level:
    """Work of an effort: candidates solved quickly, refined ones, bounds by paths in small linear programmes.

    earnest : candidates solved in earnest where no bound raises them; narrow : gap at which it is content, once plans
    were made; inner : of the problems that are refined.
    """

    quick: int
    refined: int
    earnest: int
    paths: int
    narrow: float
    inner: Effort

    def times(self, scale: float) -> Level:
        """So many times the work; what is more than the default's narrows the gap as far as it goes."""
        return Level(
            round(self.quick * scale),
            max(1, round(self.refined * scale)),
            max(4, round(self.earnest * scale)),
            round(self.paths * scale),
            self.narrow if scale <= 1.0 else 0.0,
            self.inner,
        )


USUAL: Final = Level(quick=60, refined=2, earnest=8, paths=1800, narrow=0.029, inner=FAST)
"""Sized for 1 to 6 s on two cores."""
LEVELS: Final = {
    "fast": USUAL.times(0.25),
    "default": USUAL,
    "deep": Level(quick=75, refined=3, earnest=96, paths=25_200, narrow=0.0, inner=DEFAULT),
}


def budget(search: SearchSpec, *, alone: bool = False) -> Budget:
    """The deterministic budget of a search; a number as effort is so many times the default.

    alone : half the proof, where nothing but plans is wanted.
    """
    level = LEVELS[search.effort] if isinstance(search.effort, str) else USUAL.times(float(search.effort))
    # Where most work goes into few problems they are proven as far as it goes.
    inner = level.inner if search.effort == "deep" else replace(level.inner, gap=search.gap)
    if search.mode == "fast":
        inner = replace(inner, workers=cores())
    quick = max(2 * search.top_k, level.quick)
    return Budget(
        quick=quick,
        slots=SLOTS * level.quick / USUAL.quick,
        refined=min(level.refined, 4 * search.top_k),
        effort=inner,
        paths=level.paths // (2 if alone else 1),
        earnest=0 if alone else level.earnest,
        narrow=level.narrow,
    )
