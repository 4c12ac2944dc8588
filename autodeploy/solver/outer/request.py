"""What is asked of a search over outer candidates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from autodeploy.evaluation.layers.cut_costs import CutCosts, cut_costs
from autodeploy.solver.outer.frontier import outer_tuples

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.sweep.sweep import Sweep
    from autodeploy.solver.effort import Budget
    from autodeploy.solver.outer.frontier import Watch
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Ints


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """Candidates with their sweep, how many plans of them are wanted, and how much work that may be.

    contexts : the context of a candidate index (all the same unless batch or cards vary).
    gap : the search may end when nothing can beat the best plan by more.
    known_costs : of the candidates, where they are known.
    watch : told of what is known, at every candidate.
    """

    candidates: Candidates
    swept: Sweep
    contexts: Callable[[int], Context]
    top_k: int
    gap: float
    budget: Budget
    known_costs: CutCosts | None = None
    watch: Watch | None = None
    should_cancel: Callable[[], bool] | None = None

    @cached_property
    def costs(self) -> CutCosts:
        """Costs of the candidates' cuts of tensors."""
        return cut_costs(self.candidates, self.contexts) if self.known_costs is None else self.known_costs

    @cached_property
    def outer(self) -> Ints:
        """`outer_tuples` of the candidates [n]."""
        return outer_tuples(self.candidates)

    def cancelled(self) -> bool:
        """Whether the caller wants the search to end."""
        return self.should_cancel is not None and self.should_cancel()
