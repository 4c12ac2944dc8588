"""The plan that is fastest by the predicted times alone, and what it bets on against the recommended one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.messages import Message
from autodeploy.specs.planset import Bet

if TYPE_CHECKING:
    from autodeploy.ranking.regret_order import Considered, RiskAdvice

MIN_TOLD_COST: Final = 0.01
"""Share of the step that a number costs the one plan more than the other, from which it is a bet."""


def bets_of(advice: RiskAdvice) -> tuple[Bet, ...]:
    """What the fastest plan has to be right about, and what each bet costs where it is lost; the dearest first."""
    fastest, chosen = advice.fastest, advice.weighed[0]
    bets = [*_unproven_bets(fastest, chosen), *_memory_bet(advice, fastest)]
    if fastest.row != chosen.row:
        bets += _number_bets(advice, fastest, chosen)
    return tuple(sorted(bets, key=lambda bet: (-(bet.cost_pct or 0.0), bet.name)))


def _unproven_bets(fastest: Considered, chosen: Considered) -> list[Bet]:
    """Degrees and features that no run has, and the recommended plan does without."""
    names = sorted(fastest.unproven - chosen.unproven) if fastest.row != chosen.row else sorted(fastest.unproven)
    return [
        Bet(kind="unproven", name=name, text=Message("ranking.no_run_on_these_chips_has", what=_worded(fastest, name)))
        for name in names
    ]


def _worded(weighed: Considered, name: str) -> str:
    axes = weighed.axes
    return f"{name} {axes[name]}" if name in axes else name


def _memory_bet(advice: RiskAdvice, fastest: Considered) -> list[Bet]:
    """That it fits at all; where it does not, the next plan that does takes so much longer."""
    if fastest.p_fits >= advice.least_p_fits:
        return []
    remedy = next((each for each in advice.weighed if each.regret is not None), None)
    cost = None
    if remedy is not None:
        cost = round(100.0 * (remedy.step_s / fastest.step_s - 1.0), 3)
    return [Bet(kind="memory", name="memory", text=Message("ranking.it_fits_with_probability_of"), cost_pct=cost)]


def _number_bets(advice: RiskAdvice, fastest: Considered, chosen: Considered) -> list[Bet]:
    """Numbers that at one end cost the fastest plan more than the recommended one."""
    answers = advice.responses
    bets = []
    for number, uncertain in enumerate(answers.box.numbers):
        costs = [
            float(np.expm1(side[fastest.row, number] - side[chosen.row, number]))
            for side in (answers.low, answers.high)
        ]
        cost = max(costs)
        if cost >= MIN_TOLD_COST:
            key = "ranking.number_at_its_low_end" if costs[0] >= costs[1] else "ranking.number_at_its_high_end"
            text = Message(key, number=uncertain.meaning)
            bets.append(Bet(kind="number", name=uncertain.name, text=text, cost_pct=round(100.0 * cost, 3)))
    return bets
