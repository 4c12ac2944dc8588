"""Plans in the order of their expected cost, among those that fit surely enough; the others after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from autodeploy.search.ranking.expected_cost import RiskPrice, expected_costs
from autodeploy.search.ranking.unproven import share_draws

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.search.ranking.expected_cost import ExpectedCosts
    from autodeploy.search.ranking.sensitivities import Responses
    from cost_models.arrays import Floats, Ints


# Ranking by risk.
QUANTILE: Final = 0.8
WORTH_TIE: Final = 0.0015
"""Costs that differ by less, as a share, are of equal worth: what a plan rests on decides, then its headroom."""
DIGITS: Final = 9
"""Of a regret, so that sums of another order rank alike."""


def regrets(log_times: Floats) -> Floats:
    """Regret of each plan against the best one of each draw, as a share [draws, plans]."""
    return np.asarray(np.exp(log_times - log_times.min(axis=1, keepdims=True)) - 1.0)


def regret_p80(log_times: Floats) -> Floats:
    """80th percentile of each plan's regret over the draws [plans]; log_times [draws, plans]."""
    return np.asarray(np.round(np.quantile(regrets(log_times), QUANTILE, axis=0), DIGITS))


def cautious_order(costs: Floats, unproven: Ints, headroom: Floats) -> Ints:
    """Plans from the one to recommend on [plans].

    costs : what is expected of each plan. unproven : things that it rests on and no run has shown; headroom : the more
        the better. They decide, one after the other, between plans whose costs are within WORTH_TIE of the least left.
    """
    left = list(np.lexsort((np.arange(len(costs)), costs)))
    order = []
    while left:
        alike = [row for row in left if costs[row] <= costs[left[0]] * (1.0 + WORTH_TIE)]
        best = min(alike, key=lambda row: (int(unproven[row]), -round(float(headroom[row]), 2), left.index(row)))
        order.append(best)
        left.remove(best)
    return np.array(order, dtype=np.int64)


def with_unproven_gains(
    log_times: Floats,
    nominal: Floats,
    unproven: Sequence[frozenset[str]],
    shares: Mapping[str, Floats],
) -> Floats:
    """Log step times with the gains of what no run has shown counted by the share that comes true [draws, plans].

    A plan's gain is what it is faster in a draw than its anchor: of the plans that rest on less, the fastest one by the
    nominal times. Where features come on top of each other each counts against the plan without it. What all plans rest
    on has no anchor, and changes no order.

    nominal : log step times without any draw [plans]. unproven : what each plan rests on that no run has shown.
    shares : of each such thing, the share of its gain that comes true in each draw [draws].
    """
    lost = np.zeros_like(log_times)
    order = sorted(range(len(nominal)), key=lambda row: (len(unproven[row]), nominal[row], row))
    for place, row in enumerate(order):
        anchors = [other for other in order[:place] if unproven[other] < unproven[row]]
        if not anchors:
            continue
        expected = lost.mean(axis=0)
        anchor = min(anchors, key=lambda other: (round(nominal[other] + expected[other], DIGITS), other))
        gain = np.maximum(0.0, log_times[:, anchor] - log_times[:, row])
        names = sorted(unproven[row] - unproven[anchor])
        share = np.mean([shares[name] for name in names], axis=0)
        lost[:, row] = lost[:, anchor] + (1.0 - share) * gain
    return log_times + lost


DEFAULT_PRICE: Final = RiskPrice()


class Considered(Protocol):
    """One plan among those that were considered.

    unproven : what it rests on that no run has shown. regret : 80th percentile, as a share; None where it fits with
    too little probability. expected_s : its step time on average over the draws, with unproven gains by the share that
    comes true, failed launches and restarts. row : in the responses.
    """

    @property
    def step_s(self) -> float:
        """Its predicted step time."""

    @property
    def axes(self) -> Mapping[str, object]:
        """Its degrees and words by the name of their axis."""

    @property
    def p_fits(self) -> float: ...
    @property
    def unproven(self) -> frozenset[str]: ...
    @property
    def regret(self) -> float | None: ...
    @property
    def expected_s(self) -> float: ...
    @property
    def row(self) -> int: ...


class RiskAdvice(Protocol):
    """Plans that were considered, from the one to recommend on, and how each follows the uncertain numbers.

    least_p_fits : with which probability those that have a regret fit.
    """

    @property
    def weighed(self) -> Sequence[Considered]: ...
    @property
    def fastest(self) -> Considered: ...
    @property
    def responses(self) -> Responses: ...
    @property
    def least_p_fits(self) -> float: ...
    @property
    def weights(self) -> Floats:
        """Values of a second of each plan's step in the objective, by row."""


@dataclass(frozen=True, eq=False)
class RegretOrder:
    """Rows of plans from the one to recommend on. regret : as shares, by row, of those that fit surely enough.

    expected_s : of a step, with failed launches and restarts [plans]. least_p_fits : of those that have a regret.
    fallbacks : row of the plan to launch where one does not start [plans].
    """

    order: tuple[int, ...]
    regret: dict[int, float]
    expected_s: Floats
    least_p_fits: float
    fallbacks: Ints


def regret_order(
    log_times: Floats,
    nominal: Floats,
    fits: Floats,
    unproven: Sequence[frozenset[str]],
    level: float,
    *,
    starts: Floats | None = None,
    weights: Floats | None = None,
    alike: Ints | None = None,
    price: RiskPrice = DEFAULT_PRICE,
) -> RegretOrder:
    """The order of plans by their expected cost, those that fit surely enough first.

    log_times : in draws of the uncertain numbers [draws, plans]. nominal : as predicted [plans].
    fits : P(fits) [plans]. level : which of it is enough; where no plan reaches it the surest ones count.
    starts : P(starts) [plans]; absent: P(fits). weights : logarithm of what a second counts in the objective [plans];
    absent: 0. alike : number of each plan's outer strategy; absent: all differ [plans].
    """
    count = len(nominal)
    weight = np.zeros(count) if weights is None else weights
    outer = np.arange(count) if alike is None else alike
    enough = min(level, float(fits.max()))
    safe = np.flatnonzero(fits >= enough)
    plain = log_times + weight
    shares = share_draws(frozenset().union(*unproven), len(plain))
    weighed = with_unproven_gains(plain, nominal + weight, unproven, shares)
    weighed[:, safe] = with_unproven_gains(  # what may not fit is no anchor of what does
        plain[:, safe], (nominal + weight)[safe], [unproven[row] for row in safe.tolist()], shares
    )
    regret = regret_p80(weighed[:, safe])
    worth = _worth(weighed, safe, nominal + weight, (weighed - plain).mean(axis=0))
    expected = expected_costs(worth, fits if starts is None else starts, fits, outer, safe, price)
    rests = np.array([len(each) for each in unproven])
    usual = np.exp(nominal + weight)
    first = _undominated(
        safe[cautious_order(expected.costs[safe], rests[safe], fits[safe])], usual, expected, fits, rests
    )
    others = sorted(set(range(count)) - set(safe.tolist()), key=lambda row: (float(expected.costs[row]), row))
    return RegretOrder(
        order=(*first, *others),
        regret=dict(zip(safe.tolist(), regret.tolist(), strict=True)),
        expected_s=expected.costs * np.exp(-weight),
        least_p_fits=enough,
        fallbacks=expected.fallbacks,
    )


def _worth(weighed: Floats, safe: Ints, nominal: Floats, lost: Floats) -> Floats:
    """Expected step time [plans]: mean times over the best of each draw, in units of the plan that is
    least behind on average. What slows all plans alike is nobody's risk: predictions are right on average.
    """
    behind = np.exp(weighed - weighed[:, safe].min(axis=1, keepdims=True)).mean(axis=0)
    least = int(safe[behind[safe].argmin()])
    return np.asarray(behind / behind[least] * np.exp(nominal[least] + lost[least]))


def _undominated(order: Ints, usual: Floats, expected: ExpectedCosts, fits: Floats, rests: Ints) -> list[int]:
    """The order with its first plan behind one that is nowhere behind it: in time, expected time, P(fits), evidence."""
    columns = np.stack([usual, expected.costs, -fits, rests], axis=1)
    first, rows = int(order[0]), order.tolist()

    def better(row: int) -> bool:
        return bool((columns[row] <= columns[first]).all() and (columns[row] < columns[first]).any())

    while (instead := next(filter(better, rows), None)) is not None:
        first = instead
    return list(dict.fromkeys([first, *rows]))
