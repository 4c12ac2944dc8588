"""Strategies of a search at what is proven of them, without solving any."""

from __future__ import annotations

from autodeploy.specs.base import Document


class StrategyBound(Document):
    """A strategy that is legal and may fit. No layout and no memory choice of it takes less time or memory than this.

    axes: as `search.fix` writes them. mfu: at that time, the most it can reach.
    """

    axes: dict[str, int | str]
    dp: int
    num_npus: int
    step_time_s: float
    peak_memory_gib: float
    mfu: float


class StrategyBounds(Document):
    """A sample of the strategies of a search. total: how many there are."""

    total: int
    sample: tuple[StrategyBound, ...] = ()
