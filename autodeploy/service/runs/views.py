"""What the service of runs answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.service.store.tables import DEFAULT_TEAM

if TYPE_CHECKING:
    from datetime import datetime

    from autodeploy.specs.measured_run import MeasuredRun
    from autodeploy.specs.planset import Plan


@dataclass(frozen=True, slots=True)
class RunView:
    """A measurement beside what the plan had predicted.

    Errors are predicted / measured - 1: of throughput for time, so that positive is predicted too fast; of the
    allocator's peak for memory. `inside`: the measured step lies in the plan's 80 % interval. `counts`: the cluster's
    overlay is fitted to it.
    """

    id: str
    created_at: datetime
    plan_id: str
    cluster: str
    profile: str
    model: str
    num_npus: int
    measured: MeasuredRun
    measured_step_time_s: float | None
    predicted_step_time_s: float
    predicted_low_s: float
    predicted_high_s: float
    predicted_memory_gib: float
    profile_hash: str
    engine_version: str
    plan: Plan
    tokens_per_step: float
    note: str = ""
    author: str = ""
    team: str = DEFAULT_TEAM
    counts: bool = True

    @property
    def error(self) -> float | None:
        """Relative error of the predicted throughput."""
        measured_s = self.measured_step_time_s
        return None if measured_s is None else measured_s / self.predicted_step_time_s - 1.0

    @property
    def memory_error(self) -> float | None:
        """Relative error of the predicted allocator peak."""
        peak = self.measured.peak_memory_gib
        return None if peak is None else self.predicted_memory_gib / peak - 1.0

    @property
    def inside(self) -> bool | None:
        """Whether the measured step lies in the predicted interval."""
        measured_s = self.measured_step_time_s
        return None if measured_s is None else self.predicted_low_s <= measured_s <= self.predicted_high_s


@dataclass(frozen=True, slots=True)
class RunPage:
    """A piece of the ledger, newest first. `next_after` continues it."""

    items: tuple[RunView, ...]
    has_more: bool

    @property
    def next_after(self) -> str | None:
        return self.items[-1].id if self.has_more else None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster's overlay and what it does to the errors of the runs it was fitted to.

    `changed_by`: name of the key whose run, or whose deletion of one, came last; empty without a key.
    `report`: factors (on the shipped values), runs (id, error_before, error_after, error_left_out), and their means
    bias_before, bias_after, mape_before, mape_after, mape_left_out (None for one configuration).
    """

    cluster: str
    profile: str
    updated_at: datetime
    num_runs: int
    overlay: dict[str, Any]
    report: dict[str, Any]
    changed_by: str = ""


@dataclass(frozen=True, slots=True)
class ReestimatedPlan:
    """A stored plan as it was ranked, and as it is under its cluster's overlay."""

    search_id: str
    plan_id: str
    old_rank: int
    new_rank: int
    old_step_time_s: float
    new_step_time_s: float


@dataclass(frozen=True, slots=True)
class MovedPlan:
    """A plan's step time and 80 % interval as found and under its cluster's overlay, seconds, and what moved it.

    old_p_fits, p_fits : probability that it fits, before and after.

    moved_by : parameter of the fit -> d log(step time) / d log(factor) x log(factor), the largest first: what it alone
        changes, in logarithms.
    """

    plan_id: str
    old_step_time_s: float
    old_low_s: float
    old_high_s: float
    step_time_s: float
    low_s: float
    high_s: float
    moved_by: dict[str, float]
    old_p_fits: float | None = None
    p_fits: float | None = None


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What came of a measurement: the run (new, or stored before), the cluster's overlay and its plans' new order.

    moved : the plan that the run, or its rehearsal, was of; None where there is no overlay.
    """

    run: RunView
    created: bool
    cluster: ClusterView | None
    reranked: tuple[ReestimatedPlan, ...]
    moved: MovedPlan | None = None
