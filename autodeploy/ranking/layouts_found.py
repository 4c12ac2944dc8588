"""What a search for layouts found, for a caller that reads nothing but their strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.ranking.chosen import chosen
from autodeploy.ranking.plans import strategies_of_solved
from autodeploy.ranking.search_result import gap_of, proven_bound

if TYPE_CHECKING:
    from autodeploy.ranking.advice import Advice
    from autodeploy.ranking.prepared import Prepared
    from autodeploy.solver.outer.frontier import SearchState
    from autodeploy.solver.search_space import Searched
    from autodeploy.specs.strategy import Strategy


@dataclass(frozen=True)
class LayoutsFound:
    """Strategies in the order of their rank, at most as many as were asked for.

    gap : by which the fastest of them may be slower than any other; None: unknown. enumerated : strategies of the
    space.
    """

    strategies: tuple[Strategy, ...]
    gap: float | None
    enumerated: int


def layouts_found(prepared: Prepared, searched: Searched, frontier: SearchState, advice: Advice | None) -> LayoutsFound:
    """The strategies of the plans that `search_result.finish` describes, with the gap of those."""
    search, ratio = prepared.spec.search, prepared.identity.ratio
    order, neutral = chosen(frontier, advice, search)
    described = strategies_of_solved([*order, *neutral])
    fastest = min((seconds for _, seconds in described), default=None)
    bound = proven_bound(frontier, search.objective, ratio)
    return LayoutsFound(
        strategies=tuple(strategy for strategy, _ in described[: len(order)]),
        gap=None if fastest is None else gap_of(ratio * fastest, bound),
        enumerated=searched.counts.enumerated,
    )
