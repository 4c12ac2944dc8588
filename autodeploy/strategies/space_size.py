"""How large a space is, from the values of its axes alone: known before anything is enumerated.

Legal candidates that may fit take half a microsecond and about 160 bytes each, so that a space beyond these limits
would end in the kernel's memory killer instead of in plans.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.strategies.candidates import CP_ALGOS, HYBRID_DEGREES
from cost_models.schedule import schedules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.strategies.space import Space

MOST_CANDIDATES = 10_000_000  # of one number of cards; these are in memory at the same time
MOST_CELLS = 10_000_000  # of the grid that candidates are taken from
MOST_CANDIDATES_IN_ALL = 20_000_000

_GRID = (
    *("tp", "cp", "pp", "vpp", "schedule", "ep", "micro_batch_size", "moe_dispatcher"),
    *("keep_gathered", "dp_replicate"),
)


def grid_cells(space: Space) -> int:
    """Combinations of the grid's axes, before those that cannot exist are left out."""
    return prod(len(getattr(space, axis)) for axis in _GRID)


def most_candidates(space: Space, world: int) -> int:
    """An upper bound on the candidates of `world` ranks: their degrees divide it, their schedules have their chunks."""
    schedules = sum(_goes_with(schedule, vpp) for schedule in space.schedule for vpp in space.vpp)
    experts = sum(1 if ep == 1 else len(space.moe_dispatcher) for ep in space.ep)
    others = schedules * len(space.micro_batch_size) * len(space.memory_modes)
    others *= len(space.keep_gathered) * len(space.dp_replicate)
    # In the other rank order a cut's experts lie on as many ranks as its attention: on one number of them.
    experts += len(space.moe_dispatcher) * (True in space.tp_pp_dp_mapping)
    pp = np.asarray(space.pp, dtype=np.int64)
    layouts = 0
    for tp in _dividing(space.tp, world):
        modes = len(space.etp_modes) if tp > 1 else 1
        for cp in _dividing(space.cp, world // tp):
            stages = int(np.count_nonzero((world // (tp * cp)) % np.maximum(pp, 1) == 0))
            layouts += modes * stages * _context_choices(space.cp_algo, cp)
    return layouts * others * experts


def _dividing(values: Sequence[int], whole: int) -> list[int]:
    return [value for value in values if value > 0 and whole % value == 0]


def _goes_with(schedule: int, vpp: int) -> bool:
    """Whether the schedule can have so many virtual stages on one stage or on several, as enumeration has it."""
    return any(schedules()[schedule].exists_for(pp, vpp) for pp in (1, 2))


def _context_choices(algorithms: Sequence[int], cp: int) -> int:
    if cp == 1:
        return 1
    return sum(
        sum(cp > degree for degree in HYBRID_DEGREES) if CP_ALGOS[algorithm] == "hybrid" else 1
        for algorithm in algorithms
    )
