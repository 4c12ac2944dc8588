"""Gains of a plan that no run has shown, and draws of the share of such gains that comes true."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.evidence import (
    AXES_SHOWN,
    USED_WITH,
    evidence_of,
    is_unproven,
    named_by,
    realised_share,
    unproven,
)
from autodeploy.costs.prediction_spread import RUN_AXES
from autodeploy.search.ranking.uncertainty import run_of
from autodeploy.space.tree import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import Evidence
    from cost_models.arrays import Floats, Ints

DIGITS = 6


def evidence_for(candidate: Candidates, context: Context) -> tuple[Evidence, ...]:
    """Published runs of each axis and feature of a candidate."""
    return evidence_of(run_of(candidate, context), context.family)


def unproven_of(candidate: Candidates, context: Context) -> frozenset[str]:
    """Axes and features of a candidate that no run has shown."""
    return unproven(run_of(candidate, context), context.family)


def unproven_in(evidence: Iterable[Evidence]) -> frozenset[str]:
    """Features, schedules and dispatchers by name and degrees by their axis, of which there is no run."""
    return frozenset(named_by(each.axis, each.value) for each in evidence if not each.runs)


def unproven_axes(candidates: Candidates, context: Context) -> Ints:
    """Number of degrees and words of each candidate no run has [n]; features are left out, which a layout may add."""
    counts = np.zeros(len(candidates), dtype=np.int64)
    for axis in AXES_SHOWN:
        read = [axis, USED_WITH.get(axis, axis)] if axis in RUN_AXES else []
        first, inverse = distinct([getattr(candidates, name) for name in read] or [counts * 0])
        rows = (run_of(candidates.take(slice(row, row + 1)), context, features=False) for row in first.tolist())
        counts += np.array([is_unproven(row, context.family, axis) for row in rows], dtype=np.int64)[inverse]
    return counts


def share_draws(names: Iterable[str], count: int) -> dict[str, Floats]:
    """Shares of the gains of these that come true in `count` draws, in [0, 1]; each name has draws of its own.

    Normal about the realised share with its standard deviation, at the midpoints of `count` equally probable parts in
    an order of each name's own.
    """
    share, sigma = realised_share()
    normal = NormalDist(share, sigma) if sigma > 0.0 else None
    levels = [(number + 0.5) / count for number in range(count)]
    values = np.array([normal.inv_cdf(level) if normal else share for level in levels])
    values = np.round(np.clip(values, 0.0, 1.0), DIGITS)
    return {name: values[_order_of(place, count)] for place, name in enumerate(sorted(names))}


def _order_of(place: int, count: int) -> np.ndarray:
    """A permutation, another one for each place: of the multiples of the square roots of primes, less whole numbers."""
    prime = _prime(place)
    return np.argsort((np.arange(1, count + 1) * np.sqrt(prime)) % 1.0, kind="stable")


def _prime(place: int) -> int:
    """Prime number of a place, 2 the first."""
    primes: list[int] = []
    number = 2
    while len(primes) <= place:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    return primes[place]
