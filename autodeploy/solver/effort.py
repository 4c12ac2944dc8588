"""How much work a search may do, in units that repeat on every machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Effort:
    """Budgets of one inner problem.

    deterministic_time: CP-SAT's own unit (about a second of one core); rounds: master problems solved; moves: steps
    of the local search; gap: stop when the proven gap is no larger; most_choices: no master has more columns; sets: of
    options that are on for all layers or none, each with masters of its own; workers: threads of CP-SAT, whose answer
    repeats with one only.
    """

    name: str
    deterministic_time: float
    rounds: int
    moves: int
    gap: float
    most_choices: int
    sets: int
    workers: int = 1


LOOK: Final = Effort("look", deterministic_time=0.0, rounds=0, moves=0, gap=0.02, most_choices=0, sets=0)
QUICK: Final = Effort("quick", deterministic_time=0.0, rounds=0, moves=4, gap=0.02, most_choices=0, sets=0)
FAST: Final = Effort("fast", deterministic_time=0.1, rounds=3, moves=12, gap=0.02, most_choices=600, sets=3)
DEFAULT: Final = Effort("default", deterministic_time=1.0, rounds=16, moves=60, gap=0.0, most_choices=4000, sets=128)


def cores() -> int:
    """Cores that this process may use; the environment's AUTODEPLOY_CORES says fewer, where a quota can't be seen."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("AUTODEPLOY_CORES", "")
    return min(here, max(1, int(told))) if told.isdecimal() else here
