"""Step times of plans as functions of uncertain numbers: evaluations at the ends of their box, lines between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.steps.scenarios import step_times_in
from autodeploy.search.branch_and_bound.candidate import by_context
from autodeploy.search.ranking.plans import layouts_of_solved
from autodeploy.search.ranking.uncertainty_set import HIGH_QUANTILE
from autodeploy.space.candidates import concatenate
from cost_models.arrays import product

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.costs.steps.scenarios import Scenario
    from autodeploy.search.branch_and_bound.candidate import CandidateSolver, Solved
    from autodeploy.search.ranking.uncertainty_set import UncertaintySet
    from cost_models.arrays import Floats


@dataclass(frozen=True)
class Responses:
    """Log step times of plans: nominal [plans], and what each number adds at its low and at its high end
    [plans, numbers].

    Either side has a law of its own, as something may switch: another rank is the busiest, a window is full, a link is
    the slowest of several. Between nominal and an end the logarithm of the step time is nearly linear in that of the
    number, and the effects of several numbers multiply.
    """

    box: UncertaintySet
    nominal: Floats
    low: Floats
    high: Floats

    @property
    def drawn(self) -> bool:
        """Whether any number moves any plan: where there was no time for it none does."""
        return bool(self.low.any() or self.high.any())

    def at(self, draws: Floats) -> Floats:
        """Log step times in draws of the box's numbers [draws, plans]."""
        share = draws / _half_widths(self.box)
        return np.asarray(
            self.nominal + product(np.maximum(share, 0.0), self.high.T) + product(np.maximum(-share, 0.0), self.low.T)
        )

    def influence(self, rows: Sequence[int] | None = None) -> Floats:
        """Change of the ratio of two plans' step times by each number alone, as a share [numbers]."""
        low, high = (self.low, self.high) if rows is None else (self.low[list(rows)], self.high[list(rows)])
        if not len(low):
            return np.zeros(len(self.box.numbers))
        spread = np.maximum(np.ptp(low, axis=0), np.ptp(high, axis=0))
        return np.asarray(np.expm1(spread))

    def joined(self, other: Responses) -> Responses:
        """Of the plans of both, these first."""
        pairs = ((self.nominal, other.nominal), (self.low, other.low), (self.high, other.high))
        return Responses(self.box, *(np.concatenate(pair) for pair in pairs))


def _half_widths(box: UncertaintySet) -> Floats:
    """Distance of each number's ends from where it is [numbers]."""
    return np.array([abs(box.at(number, HIGH_QUANTILE)[number.name]) for number in box.numbers])


def as_predicted(box: UncertaintySet, step_s: Sequence[float]) -> Responses:
    """Responses of plans of which nothing but the predicted step times is known."""
    none = np.zeros((len(step_s), len(box.numbers)))
    return Responses(box, np.log(np.array(step_s)), none, none)


def responses(
    solved: Sequence[Solved],
    box: UncertaintySet,
    *,
    solver: CandidateSolver | None = None,
    should_cancel: Callable[[], bool] | None = None,
) -> Responses | None:
    """The responses of plans of any contexts; None where the search was cancelled.

    solver : has priced the candidates.
    """
    worlds: list[Scenario] = [{}, *box.ends()]
    layouts = layouts_of_solved(solved, solver)
    times = np.empty((len(solved), len(worlds)))
    for context, rows in by_context(solved):
        if should_cancel is not None and should_cancel():
            return None
        candidates = concatenate([solved[row].candidate for row in rows])
        times[rows] = step_times_in(candidates, context, [layouts[row] for row in rows], box.numbers, worlds)
    return None if should_cancel is not None and should_cancel() else responses_of(box, times)


def responses_of(box: UncertaintySet, times: Floats) -> Responses:
    """The responses of plans whose step times were evaluated nominally and at the box's ends [plans, 1 + ends]."""
    logs = np.log(times)
    nominal = logs[:, 0]
    ends = (logs[:, 1:] - nominal[:, None]).reshape(len(times), len(box.numbers), 2)
    return Responses(box, nominal, ends[:, :, 0], ends[:, :, 1])
