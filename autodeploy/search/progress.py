"""Progress of a running search: how far it is, and its plans so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from autodeploy.messages import Message
from autodeploy.search.branch_and_bound.candidate_bounds import RELAXATIONS
from autodeploy.search.branch_and_bound.frontier import SearchState

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.kit.deadline import Deadline
    from autodeploy.search.branch_and_bound.search_space import SearchSpace
    from autodeploy.specs.planset import Counts, PlanSet

Kind = Literal["enumerated", "incumbent", "bound", "solved", "finished"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One report from a running search.

    `rejected_by_rule` counts strategies by the first rule that they break, most first; only the report of kind
    "enumerated" has it, since nothing changes it afterwards.
    """

    kind: Kind
    message: str
    enumerated: int = 0
    rejected: int = 0
    too_big: int = 0
    pruned: int = 0
    solved: int = 0
    incumbent_s: float | None = None
    bound_s: float | None = None
    gap: float | None = None
    elapsed_s: float = 0.0
    rejected_by_rule: dict[str, int] = field(default_factory=dict)


class SearchReporter:
    """Turns what the search knows into progress events."""

    def __init__(
        self,
        progress: Callable[[Progress], None] | None,
        started: float,
        searched: SearchSpace,
        ratio: float,
        stop: Deadline,
    ) -> None:
        self._progress, self._started, self._searched, self._ratio = progress, started, searched, ratio
        self._incumbent: float | None = None
        self._stop, self._frontier = stop, SearchState(cancelled=True)

    def so_far(self) -> SearchState:
        """Result of a search that was interrupted."""
        frontier = self._frontier
        state = replace(
            frontier, best=list(frontier.best), cancelled=True, relaxation=frontier.relaxation or RELAXATIONS[0]
        )
        state.cut(len(state.best))
        return state

    def _send(
        self,
        kind: Kind,
        message: str,
        **more: float | dict[str, int] | None,
    ) -> None:
        if self._progress is not None:
            counts: Counts = self._searched.counts
            self._progress(
                Progress(
                    kind,
                    message,
                    enumerated=counts.enumerated,
                    rejected=sum(counts.rejected.values()),
                    too_big=counts.too_big,
                    elapsed_s=time.monotonic() - self._started,
                    **more,  # type: ignore[arg-type]
                )
            )

    def enumerated(self) -> None:
        counts = self._searched.counts
        legal = len(self._searched.candidates)
        message = Message("progress.strategies_legal", count=counts.enumerated, legal=legal)
        self._send("enumerated", message, rejected_by_rule=dict(counts.rejected))

    def solved(self, frontier: SearchState, index: int) -> None:
        self._frontier = frontier
        if frontier.best:
            self._stop.has_plan()
        incumbent = None if frontier.incumbent_s is None else self._ratio * frontier.incumbent_s
        better = incumbent is not None and incumbent != self._incumbent
        self._incumbent = incumbent
        message = (
            Message("progress.best_so_far", step=incumbent) if incumbent is not None else Message("common.no_plan_fits")
        )
        self._send(
            "incumbent" if better else "solved",
            message,
            incumbent_s=incumbent,
            solved=frontier.solved,
            pruned=frontier.pruned,
            bound_s=None if frontier.bound_s is None else self._ratio * frontier.bound_s,
            gap=None if frontier.bound_s is None or not incumbent else frontier.gap,
        )

    def finished(self, result: PlanSet) -> None:
        best = result.fastest.step_time_s if result.fastest is not None else None
        seconds = result.optimality.objective != "peak_memory"
        self._send(
            "finished",
            result.status,
            incumbent_s=best,
            bound_s=result.optimality.bound if seconds else None,
            gap=result.optimality.gap,
            solved=result.counts.solved,
            pruned=result.counts.pruned,
        )
