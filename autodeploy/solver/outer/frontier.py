"""What a search over outer candidates may do, and what it knows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.inputs.options import FLAT, SEQUENTIAL
from autodeploy.strategies.tree import distinct

if TYPE_CHECKING:
    import numpy.typing as npt

    from autodeploy.solver.outer.candidate import Solved
    from autodeploy.strategies.candidates import Candidates


@dataclass
class Frontier:
    """What the search knows so far."""

    best: list[Solved] = field(default_factory=list)
    solved: int = 0
    pruned: int = 0
    open_bound_s: float = math.inf  # no candidate without a plan in `best` can beat this
    whole_bound_s: float = 0.0  # no candidate at all can
    relaxation: str = ""  # what open_bound_s rests on
    cancelled: bool = False
    work: float = 0.0
    least_bytes: float | None = None  # no strategy takes less on the card; only the search for memory knows

    @property
    def incumbent_s(self) -> float | None:
        """Step time of the best plan so far."""
        return self.best[0].solution.step_s if self.best else None

    @property
    def bound_s(self) -> float | None:
        """No strategy of the space is faster than this; None as long as nothing is known, or memory is looked for."""
        if self.least_bytes is not None:
            return None
        proven = min((s.solution.bound_s for s in self.best), default=math.inf)
        bound = max(min(proven, self.open_bound_s), self.whole_bound_s)
        return bound if math.isfinite(bound) else None

    @property
    def gap(self) -> float:
        """How much faster any strategy could be than the best plan, as far as is known: 1 where nothing is."""
        if self.incumbent_s is None or self.bound_s is None:
            return 1.0
        return max(0.0, 1.0 - self.bound_s / self.incumbent_s)


Watch = Callable[[Frontier, int], None]


def outer_tuples(candidates: Candidates) -> npt.NDArray[np.int64]:
    """A number for each distinct outer strategy [n].

    All axes but how optimizer states are kept, and which of the two pairwise dispatchers a framework runs.
    """
    c = candidates
    dispatcher = np.where(c.moe_dispatcher == SEQUENTIAL, FLAT, c.moe_dispatcher)
    columns = (
        c.tp,
        c.pp,
        c.vpp,
        c.cp,
        c.cp_algo,
        c.ulysses,
        c.ep,
        c.etp,
        c.micro_batch_size,
        c.schedule,
        dispatcher,
    )
    return distinct(columns)[1]
