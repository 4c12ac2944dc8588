"""Plans in the order of their regret, among those that fit surely enough; the others after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from autodeploy.search.ranking.unproven import share_draws

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.search.ranking.sensitivities import Responses
    from cost_models.arrays import Floats, Ints


# Ranking by risk.
QUANTILE: Final = 0.8
REGRET_TIE: Final = 0.002
"""Regrets that differ by less are of equal worth: what a plan rests on decides, then its headroom."""
DIGITS: Final = 9
"""Of a regret, so that sums of another order rank alike."""


def regrets(log_times: Floats) -> Floats:
    """How much longer each plan takes than the best one of each draw, as a share [draws, plans]."""
    return np.asarray(np.exp(log_times - log_times.min(axis=1, keepdims=True)) - 1.0)


def regret_p80(log_times: Floats) -> Floats:
    """80th percentile of each plan's regret over the draws [plans]; log_times [draws, plans]."""
    return np.asarray(np.round(np.quantile(regrets(log_times), QUANTILE, axis=0), DIGITS))


def regret_median(log_times: Floats) -> Floats:
    """Median of each plan's regret over the draws [plans]; log_times [draws, plans]."""
    return np.asarray(np.round(np.median(regrets(log_times), axis=0), DIGITS))


def cautious_order(regret: Floats, median: Floats, unproven: Ints, headroom: Floats) -> Ints:
    """Plans from the one to recommend on [plans].

    Parameters
    ----------
    regret, median : 80th percentile and median of each plan's regret, as shares. unproven : things that it rests on and
        no run has shown; headroom : the more the better. They decide, one after the other, between plans whose regret,
        and median of it, are within REGRET_TIE of the least that is left.
    """
    left = list(np.lexsort((np.arange(len(regret)), regret)))
    order = []
    while left:
        alike = [row for row in left if regret[row] <= regret[left[0]] + REGRET_TIE]
        usual = min(median[row] for row in alike)
        alike = [row for row in alike if median[row] <= usual + REGRET_TIE]
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

    Parameters
    ----------
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


class Considered(Protocol):
    """One plan among those that were considered.

    unproven : what it rests on that no run has shown. regret : 80th percentile, as a share; None where it fits with
    too little probability. expected_s : its step time with unproven gains by the share that comes true, and where it
    may not fit the remedy's by the probability of that. row : in the responses.
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


@dataclass(frozen=True, eq=False)
class RegretOrder:
    """Rows of plans from the one to recommend on. regret : as shares, by row, of those that fit surely enough.

    expected_s : step time [plans]. least_p_fits : of those that have a regret.
    """

    order: tuple[int, ...]
    regret: dict[int, float]
    expected_s: Floats
    least_p_fits: float


def regret_order(
    log_times: Floats,
    nominal: Floats,
    fits: Floats,
    unproven: Sequence[frozenset[str]],
    level: float,
    *,
    weights: Floats | None = None,
    alike: Sequence[object] | None = None,
) -> RegretOrder:
    """The order of plans by the 80th percentile of their regret.

    Parameters
    ----------
    log_times : in draws of the uncertain numbers [draws, plans]. nominal : as predicted [plans].
    fits : P(fits) [plans]. level : which of it is enough; where no plan reaches it the surest ones count.
    weights : logarithm of what a second counts in the objective [plans]; absent: 0.
    alike : of each plan, what it shares with those that may stand in where it does not fit.
    """
    count = len(nominal)
    weight = np.zeros(count) if weights is None else weights
    kin = [None] * count if alike is None else list(alike)
    safe = np.flatnonzero(fits >= level)
    if not len(safe):
        safe = np.flatnonzero(fits >= fits.max())
    plain = log_times + weight
    shares = share_draws(frozenset().union(*unproven), len(plain))
    weighed = plain.copy()
    weighed[:, safe] = with_unproven_gains(
        plain[:, safe], (nominal + weight)[safe], [unproven[row] for row in safe.tolist()], shares
    )
    regret = regret_p80(weighed[:, safe])
    expected_s = np.exp(nominal + (weighed - plain).mean(axis=0))
    rests = np.array([len(unproven[row]) for row in safe.tolist()])
    first = safe[cautious_order(regret, regret_median(weighed[:, safe]), rests, fits[safe])]
    remedy = {kin[row]: row for row in reversed(first.tolist())}
    rest = []
    for row in sorted(set(range(count)) - set(safe.tolist())):
        instead = remedy.get(kin[row], int(first[0]))
        ratio = float(np.exp(weight[instead] - weight[row]))
        expected_s[row] = fits[row] * expected_s[row] + (1.0 - fits[row]) * ratio * expected_s[instead]
        rest.append((float(np.exp(weight[row]) * expected_s[row]), row))
    return RegretOrder(
        order=(*first.tolist(), *(row for _, row in sorted(rest))),
        regret=dict(zip(safe.tolist(), regret.tolist(), strict=True)),
        expected_s=expected_s,
        least_p_fits=min(level, float(fits[safe].min())),
    )
