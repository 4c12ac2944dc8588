"""How long a search will take, from its size alone: said when it is submitted, for the order of the queue.

Fitted to the processor time of 27 searches on one core of an AMD EPYC machine: 0.3 s on 8 cards to 20 s on thousands.
Most come within a factor of two; a search that finds nothing is over sooner. How much faster or slower another machine
is, the finished searches say (`queue_state.pace`).
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from autodeploy.solver.search_space import SearchSize
    from autodeploy.specs.search import SearchSpec

# Plans are made of a few hundred candidates at most; what each takes grows with the layers.
PLANS_S: Final = 3.9
REFERENCE_LAYERS: Final = 80
LAYERS_POWER: Final = 1.1
FEW_CANDIDATES: Final = 1500
# Every candidate is swept and bounded; the fewer, the better the bounds of the others.
SWEEP_S: Final = 0.014
# The part of the work that no effort changes.
FIXED_SHARE: Final = 0.37
NEUTRAL_SHARE: Final = 0.72
RECOVERIES: Final = 3  # searches, one for each way to meet failures
# The least memory is looked for in every candidate, and hardly depends on the effort.
MEMORY_PLANS_SHARE: Final = 0.6
MEMORY_SWEEP_S: Final = 0.00043
# A fast search for plans alone, for one more phase of the run.
PHASE_SHARE: Final = 0.4
# A search over its time limit still ranks and explains what it has.
AFTER_LIMIT_S: Final = 1.0


def expected_s(size: SearchSize, search: SearchSpec) -> float:
    """Seconds that a search takes on one core of the machine of the fit, at most what its time limit allows."""
    few = min(1.0, size.candidates / FEW_CANDIDATES)
    plans_s: float = PLANS_S * few * (size.layers / REFERENCE_LAYERS) ** LAYERS_POWER
    sweep_s = SWEEP_S * sqrt(size.candidates)
    time_s = (plans_s + sweep_s) * (FIXED_SHARE + (1.0 - FIXED_SHARE) * size.effort)
    time_s *= 1.0 + PHASE_SHARE * size.phases
    if search.risk == "neutral":
        time_s *= NEUTRAL_SHARE
    if search.objective == "peak_memory":
        time_s = MEMORY_PLANS_SHARE * plans_s + MEMORY_SWEEP_S * size.candidates
    if search.objective == "time_to_train":
        time_s *= RECOVERIES
    return min(time_s, search.time_limit_s + AFTER_LIMIT_S)
