"""What stands behind a missed figure: runs left aside with their reasons, and intervals that hold too many or few."""

from __future__ import annotations

from math import comb, exp
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.accuracy_splits import share_inside
from autodeploy.calibration.accuracy_worst import diagnoses, doubted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.calibration.accuracy_errors import Runs
    from autodeploy.calibration.accuracy_splits import Held

NOMINAL = 0.8  # of a plan's interval
UNLIKELY = 0.05  # a chance below which a share speaks against the intervals
INTERVAL = (0.72, 0.88)  # share of runs inside that is aimed at


def met(share: float) -> bool:
    """Whether a share of runs inside their intervals is as aimed at."""
    low, high = INTERVAL
    return low <= share <= high


def binomial_at_least(count: int, runs: int, share: float = NOMINAL) -> float:
    """Probability of `count` or more of `runs` independent runs inside intervals that hold `share` of all runs."""
    return sum(comb(runs, k) * share**k * (1.0 - share) ** (runs - k) for k in range(count, runs + 1))


def left_aside(all_runs: Iterable[Runs]) -> str:
    """Each run whose own source or repeats contradict it: its error of speed with the family left out, and why."""
    lines, first = [], dict[str, str]()
    known = diagnoses()
    for runs in all_runs:
        for record, residual, mark in zip(runs.records, runs.left_out, doubted(runs), strict=True):
            if mark:
                text = known[record.id].text
                same = first.setdefault(text, record.id)
                reason = text if same == record.id else f"As `{same}`."
                lines.append(f"- `{record.id}` ({100 * np.expm1(-residual):+.1f} %): {reason}")
    return "\n".join(lines)


def interval_miss(name: str, held: Sequence[Held]) -> str:
    """Why a share of runs inside their intervals is not as aimed at; "" where it is.

    Few runs give few shares: says which are possible, how likely the one found is where the intervals are right, and
    the run that decides.
    """
    runs, inside = len(held), sum(each.inside for each in held)
    share = share_inside(held)
    if met(share):
        return ""
    wide = share > INTERVAL[1]
    chance = binomial_at_least(inside, runs) if wide else 1.0 - binomial_at_least(inside + 1, runs)
    possible = [f"{k} ({100 * k / runs:.1f} %)" for k in range(runs + 1) if met(k / runs)]
    side, words = ("too wide", "or more") if wide else ("too narrow", "or fewer")
    evidence = f"so they are likely {side}" if chance < UNLIKELY else f"so this is no evidence that they are {side}"
    text = (
        f"**{name}**: {inside} of {runs} runs inside; the aim needs {' or '.join(possible) or 'more runs'}. Intervals "
        f"that hold exactly {100 * NOMINAL:.0f} % of all runs hold {inside} {words} of {runs} with a probability of "
        f"{100 * chance:.0f} %, {evidence}."
    )
    return f"{text} {_too_wide(held) if wide else _outside(held)}"


def _too_wide(held: Sequence[Held]) -> str:
    """The run nearest to the end of its interval, and by how much narrower it would have to be."""
    nearest = max((each for each in held if each.inside), key=lambda each: each.filled)
    outside = [f"`{each.record.id}`" for each in held if not each.inside]
    beside = f"{', '.join(outside)} lies outside. " if outside else ""
    return (
        f"{beside}For one fewer inside, the interval of {_words(nearest)} would have to be "
        f"{100 * (1.0 - nearest.filled):.0f} % narrower: a width chosen for these runs, which are there to test it."
    )


def _outside(held: Sequence[Held]) -> str:
    """The runs outside their intervals, and by how much."""
    far = sorted((each for each in held if not each.inside), key=lambda each: -each.filled)
    listed = "; ".join(_words(each) for each in far)
    return f"Outside: {listed}."


def _words(held: Held) -> str:
    """A run with its error of speed and the errors that its interval allows."""
    low, high = exp(-held.half_width) - 1.0, exp(held.half_width) - 1.0
    return (
        f"`{held.record.id}` ({held.record.model.name}, {100 * (exp(-held.residual) - 1.0):+.1f} %, where its interval "
        f"allows {100 * low:+.1f} to {100 * high:+.1f} %)"
    )
