"""The answer to an inner problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from autodeploy.evaluation.stages.inner_problem import Ints

Status = Literal["optimal", "feasible", "infeasible", "cancelled", "pruned"]
OPTIMAL_GAP = 1e-6
"""A relative gap below this counts as none: the master problem rounds seconds to integers."""


@dataclass(frozen=True, eq=False)
class InnerPlan:
    """Layers [pp, vpp, classes], option counts [pp, options], and the step time that the simulated schedule gives."""

    layout: Ints
    applied: Ints
    step_s: float


@dataclass(frozen=True, eq=False)
class InnerSolution:
    """A plan and how good it is proven to be.

    Attributes
    ----------
    status : optimal (gap <= OPTIMAL_GAP), feasible, infeasible, cancelled (then the plan is the best so far), or pruned
        (no plan found before the budget ended or the bound reached the caller's upper bound).
    bound_s : no layout and no choice of options of this problem has a smaller step_s.
    relaxation : what the bound rests on.
    deterministic_work : budget used, in CP-SAT's deterministic seconds.
    binding_stage, missing_bytes : infeasible only: the stage that lacks most memory in the best case, and how much.
    """

    status: Status
    plan: InnerPlan | None
    bound_s: float = 0.0
    relaxation: str = ""
    deterministic_work: float = 0.0
    binding_stage: int | None = None
    missing_bytes: float = 0.0

    @property
    def step_s(self) -> float:
        """Of the plan; inf when there is none."""
        return float("inf") if self.plan is None else self.plan.step_s

    @property
    def gap(self) -> float:
        """(step_s - bound_s) / step_s; 1 without a plan."""
        if self.plan is None or self.step_s <= 0.0:
            return 1.0
        return max(0.0, (self.step_s - self.bound_s) / self.step_s)
