"""Ranking by risk: by the 80th percentile, over shared draws, of how much longer a plan takes than the best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.evaluation.stages.inner_problem import Floats, Ints

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
