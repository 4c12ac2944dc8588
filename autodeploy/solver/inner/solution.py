"""The answer to an inner problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from autodeploy.evaluation.stages.inner_problem import Ints
    from autodeploy.solver.inner.evaluate import Incumbent

Status = Literal["optimal", "feasible", "infeasible", "cancelled", "pruned"]
OPTIMAL_GAP = 1e-6
"""A relative gap below this counts as none: the master problem rounds seconds to integers."""


@dataclass(frozen=True, eq=False)
class InnerSolution:
    """Layout, options and how good they are proven to be.

    Attributes
    ----------
    status : optimal (gap <= OPTIMAL_GAP), feasible, infeasible, cancelled (then the layout is the best so far), or
        pruned
        (no plan found before the budget ended or the bound reached the caller's upper bound).
    layout, applied : [pp, vpp, classes] layers, [pp, options] counts; None when there is no plan.
    makespan_s, step_s : simulated schedule, and with what follows the pipeline; inf when there is no plan.
    bound_s : no layout and no choice of options of this problem has a smaller step_s.
    relaxation : what the bound rests on.
    binding_stage, missing_bytes : infeasible only: the stage that lacks most memory in the best case, and how much.
    deterministic_work : budget used, in CP-SAT's deterministic seconds.
    """

    status: Status
    layout: Ints | None
    applied: Ints | None
    makespan_s: float
    step_s: float
    bound_s: float
    relaxation: str
    deterministic_work: float = 0.0
    binding_stage: int | None = None
    missing_bytes: float = 0.0

    @classmethod
    def of(
        cls, status: Status, plan: Incumbent | None, bound_s: float = 0.0, relaxation: str = "", work: float = 0.0
    ) -> InnerSolution:
        """A plan, or none, and what is proven; nothing where nothing is said."""
        if plan is None:
            return cls(status, None, None, float("inf"), float("inf"), bound_s, relaxation, work)
        return cls(status, plan.layout, plan.applied, plan.makespan_s, plan.step_s, bound_s, relaxation, work)

    @property
    def gap(self) -> float:
        """(step_s - bound_s) / step_s; 1 without a plan."""
        if self.layout is None or self.step_s <= 0.0:
            return 1.0
        return max(0.0, (self.step_s - self.bound_s) / self.step_s)
