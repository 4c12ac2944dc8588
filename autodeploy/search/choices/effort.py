"""Work that a search may do, in units that repeat on every machine, and the efforts that it can be asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autodeploy.specs.search import SearchSpec


@dataclass(frozen=True, slots=True)
class Effort:
    """Budgets of one inner problem.

    deterministic_time: CP-SAT's own unit (about a second of one core); rounds: master problems solved; moves: steps
    of the local search; gap: stop when the proven gap is no larger; most_choices: no master has more columns; sets: of
    options that are on for all layers or none, each with masters of its own; workers: threads of CP-SAT, whose answer
    repeats with one only.
    """

    deterministic_time: float
    rounds: int
    moves: int
    gap: float
    most_choices: int
    sets: int
    workers: int = 1


QUICK: Final = Effort(deterministic_time=0.0, rounds=0, moves=4, gap=0.02, most_choices=0, sets=0)
FAST: Final = Effort(deterministic_time=0.1, rounds=3, moves=12, gap=0.02, most_choices=600, sets=3)
DEFAULT: Final = Effort(deterministic_time=1.0, rounds=16, moves=60, gap=0.0, most_choices=4000, sets=128)


def cores() -> int:
    """Cores that this process may use; the environment's AUTODEPLOY_CORES says fewer, where a quota can't be seen."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("AUTODEPLOY_CORES", "")
    return min(available, max(1, int(limit))) if limit.isdecimal() else available


SLOTS: Final = 10_000.0
"""Slots a quick plan that a search may simulate: a candidate takes pp x vpp x micro batches of them."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Deterministic limits of one search.

    quick : inner problems solved quickly; slots : that these may simulate; refined : of them, solved again in full
    with `effort`; paths : linear programmes of small problems that bound outer tuples by paths.
    proof_gap : once plans were made, bounds are raised while the gap is larger than this; never below the gap wanted.
    exact_solves : candidates solved in full where no bound raises their outer tuple any more.
    """

    quick: int
    slots: float
    refined: int
    effort: Effort
    paths: int = 700
    proof_gap: float = 0.0
    exact_solves: int = 4

    def times(self, scale: float) -> Budget:
        """So many times the work; what is more than the default's narrows the gap as far as it goes."""
        quick = round(self.quick * scale)
        return Budget(
            quick,
            SLOTS * quick,
            max(1, round(self.refined * scale)),
            self.effort,
            round(self.paths * scale),
            self.proof_gap if scale <= 1.0 else 0.0,
            max(4, round(self.exact_solves * scale)),
        )


USUAL: Final = Budget(60, SLOTS * 60, refined=2, effort=FAST, paths=2300, proof_gap=0.029, exact_solves=32)
"""Sized for 1 to 6 s on two cores."""
LEVELS: Final = {
    "fast": USUAL.times(0.25),
    "default": USUAL,
    "deep": Budget(75, SLOTS * 75, refined=3, effort=DEFAULT, paths=25_200, proof_gap=0.0, exact_solves=96),
}


def budget(search: SearchSpec, *, alone: bool = False) -> Budget:
    """The deterministic budget of a search; a number as effort is so many times the default.

    alone : half the proof, where nothing but plans is wanted.
    """
    level = LEVELS[search.effort] if isinstance(search.effort, str) else USUAL.times(float(search.effort))
    # Where most work goes into few problems they are proven as far as it goes.
    effort = level.effort if search.effort == "deep" else replace(level.effort, gap=search.gap)
    return replace(
        level,
        quick=max(2 * search.top_k, level.quick),
        refined=min(level.refined, 4 * search.top_k),
        effort=replace(effort, workers=cores()) if search.mode == "fast" else effort,
        paths=level.paths // (2 if alone else 1),
        exact_solves=0 if alone else level.exact_solves,
    )
