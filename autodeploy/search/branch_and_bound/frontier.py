"""Limits and knowledge of a search over outer candidates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.inputs.context import FLAT, SEQUENTIAL
from autodeploy.costs.stages.inner_problem import stage_bytes
from autodeploy.space.tree import distinct

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.unit_costs import CutCosts
    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.costs.sweep.sweep import Sweep
    from autodeploy.search.branch_and_bound.candidate import CandidateSolver, Solved
    from autodeploy.search.choices.effort import Budget
    from autodeploy.search.placement.evaluate import InnerPlan
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Ints


# What a solved candidate takes of the card.
def card_bytes(solved: Solved) -> float:
    """Bytes on the card of the fullest stage of a plan."""
    return bytes_on_card(solved.problem, solved.context, held_bytes(solved.problem, solved.plan))


def bytes_on_card(problem: InnerProblem, context: Context, held_bytes: float) -> float:
    """Bytes on the card when the allocator holds so many: what the limit leaves out is the same for any limit."""
    return context.limit_bytes - (problem.limit_bytes - held_bytes) * (1.0 + context.machine.fragmentation)


def held_bytes(problem: InnerProblem, plan: InnerPlan) -> float:
    """Bytes that the allocator holds on the fullest stage."""
    return float(stage_bytes(problem, plan.layout[None], plan.applied[None]).max())


@dataclass(frozen=True)
class SolvedCandidate:
    """A solved candidate in numbers: seconds of a step, and bytes on the card of its fullest stage."""

    index: int
    step_s: float
    card_bytes: float


@dataclass
class SearchState:
    """Knowledge of the search so far.

    found : once it has ended, the best of each outer tuple that has a plan, in the order of `best`. solver : knows the
    problems of candidates that were planned.
    """

    best: list[Solved] = field(default_factory=list)
    found: tuple[SolvedCandidate, ...] = ()
    solved: int = 0
    pruned: int = 0
    open_bound_s: float = math.inf  # no candidate without a plan in `best` can beat this
    whole_bound_s: float = 0.0  # no candidate at all can
    relaxation: str = ""  # what open_bound_s rests on
    cancelled: bool = False
    work: float = 0.0
    solver: CandidateSolver | None = None
    least_bytes: float | None = None  # no strategy takes less on the card; only the search for memory knows

    def cut(self, keep: int) -> None:
        """Keep so many of the best; of all there stays what `found` tells."""
        self.found = tuple(SolvedCandidate(one.index, one.solution.step_s, card_bytes(one)) for one in self.best)
        del self.best[keep:]

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
        return bound if 0.0 < bound < math.inf else None

    @property
    def gap(self) -> float:
        """Share by which any strategy could be faster than the best plan, as far as is known: 1 where nothing is."""
        if self.incumbent_s is None or self.bound_s is None:
            return 1.0
        return max(0.0, 1.0 - self.bound_s / self.incumbent_s)


Watch = Callable[[SearchState, int], None]


OUTER_AXES: Final = (
    *("tp", "pp", "vpp", "cp", "cp_algo", "ulysses", "ep", "etp", "micro_batch_size", "schedule"),
    "tp_pp_dp_mapping",
)


def outer_tuples(candidates: Candidates) -> npt.NDArray[np.int64]:
    """A number for each distinct outer strategy [n].

    All axes but how optimizer states are kept, how sharded parameters are gathered and over how many ranks replicated,
    and which of the two pairwise dispatchers a framework runs; what follows from other axes is left out too.
    """
    dispatcher = np.where(candidates.moe_dispatcher == SEQUENTIAL, FLAT, candidates.moe_dispatcher)
    return distinct((*(getattr(candidates, axis) for axis in OUTER_AXES), dispatcher))[1]


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """Candidates with their sweep, how many plans of them are wanted, and how much work that may be.

    contexts : the context of a candidate index (all the same unless batch or cards vary).
    gap : the search may end when nothing can beat the best plan by more.
    costs : of the candidates' cuts of tensors.
    watch : told of what is known, at every candidate.
    """

    candidates: Candidates
    swept: Sweep
    contexts: Callable[[int], Context]
    top_k: int
    gap: float
    budget: Budget
    costs: CutCosts
    watch: Watch | None = None
    should_cancel: Callable[[], bool] | None = None

    @cached_property
    def outer(self) -> Ints:
        """`outer_tuples` of the candidates [n]."""
        return outer_tuples(self.candidates)

    def by_context(self, rows: Ints) -> Iterator[tuple[Context, Ints]]:
        """Of the candidates at some rows those of each context."""
        contexts = [self.contexts(int(row)) for row in rows]
        numbers = np.array([id(context) for context in contexts], dtype=np.int64)
        for number, context in {id(context): context for context in contexts}.items():
            yield context, rows[numbers == number]

    def cancelled(self) -> bool:
        """Whether the caller wants the search to end."""
        return self.should_cancel is not None and self.should_cancel()
