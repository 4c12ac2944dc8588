"""Bodies of the ledger of measurements."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from autodeploy.analysis.trace_comparison import compared_parts
from autodeploy.service.store.base import iso
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.planset import Breakdown
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from autodeploy.service.runs.views import ClusterView, ReestimatedPlan, RunOutcome, RunPage, RunView


class ComparedPartDocument(BaseModel):
    """One part of the step as the profiler names it: seconds predicted and measured."""

    name: Annotated[str, Field(examples=["computing"])]
    predicted_s: float
    measured_s: float


class RunDocument(BaseModel):
    """A measurement beside what its plan had predicted. Errors are predicted / measured - 1, of throughput for time."""

    id: str
    created_at: str
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
    error: Annotated[float | None, Field(description="positive: predicted too fast")]
    memory_error: float | None
    inside: Annotated[bool | None, Field(description="the measured step lies in the predicted 80 % interval")]
    strategy: Strategy
    breakdown: Breakdown
    profiler_parts: Annotated[
        list[ComparedPartDocument], Field(description="of a profiler trace: its parts beside ours, summed alike")
    ] = []
    profile_hash: str
    engine_version: str
    note: str
    author: Annotated[str, Field(description="name of the key that stored it; empty without a key")]
    team: str
    counts: Annotated[bool, Field(description="predictions follow it: a key with scope calibrate stored it")]

    @classmethod
    def of(cls, view: RunView) -> RunDocument:
        own = {"created_at", "strategy", "breakdown", "profiler_parts"}
        values: dict[str, Any] = {name: getattr(view, name) for name in cls.model_fields if name not in own}
        values |= {"created_at": iso(view.created_at), "strategy": view.plan.strategy}
        times = view.measured.profiler
        parts = () if times is None else compared_parts(view.plan.breakdown, times)
        compared = [ComparedPartDocument(**asdict(part)) for part in parts]
        return cls(**values, breakdown=view.plan.breakdown, profiler_parts=compared)


class RunList(BaseModel):
    """A piece of the ledger, newest first; `next` is the address of what follows."""

    items: list[RunDocument]
    has_more: bool
    next: str | None

    @classmethod
    def of(cls, page: RunPage, next_url: str | None) -> RunList:
        return cls(items=[RunDocument.of(item) for item in page.items], has_more=page.has_more, next=next_url)


class ClusterDocument(BaseModel):
    """The overlay of a cluster, fitted to its runs, and what it does to their errors."""

    cluster: str
    profile: str
    updated_at: str
    num_runs: int
    changed_by: Annotated[str, Field(description="name of the key that changed it last; empty without a key")]
    overlay: dict[str, Any]
    report: Annotated[dict[str, Any], Field(description="factors, and errors of the runs before and after")]

    @classmethod
    def of(cls, view: ClusterView) -> ClusterDocument:
        values = {name: getattr(view, name) for name in cls.model_fields}
        return cls(**values | {"updated_at": iso(view.updated_at)})


class ReestimatedDocument(BaseModel):
    """A stored plan as it was ranked, and as it is under its cluster's overlay."""

    search_id: str
    plan_id: str
    old_rank: int
    new_rank: int
    old_step_time_s: float
    new_step_time_s: float

    @classmethod
    def of(cls, view: ReestimatedPlan) -> ReestimatedDocument:
        return cls(**{name: getattr(view, name) for name in cls.model_fields})


class MovedDocument(BaseModel):
    """The plan's step time and 80 % interval before, and under its cluster's overlay."""

    plan_id: str
    old_step_time_s: float
    old_low_s: float
    old_high_s: float
    step_time_s: float
    low_s: float
    high_s: float
    moved_by: Annotated[
        dict[str, float], Field(description="what each factor alone changes log(step time) by, the largest first")
    ]
    old_p_fits: Annotated[float | None, Field(description="probability that it fits, before")] = None
    p_fits: Annotated[float | None, Field(description="and after")] = None


class RunOutcomeDocument(BaseModel):
    """A stored run, its cluster's overlay, and the cluster's stored plans in their new order."""

    run: RunDocument
    cluster: ClusterDocument | None
    reranked: list[ReestimatedDocument]
    moved: Annotated[MovedDocument | None, Field(description="absent where there is no overlay")] = None

    @classmethod
    def of(cls, outcome: RunOutcome) -> RunOutcomeDocument:
        return cls(
            run=RunDocument.of(outcome.run),
            cluster=None if outcome.cluster is None else ClusterDocument.of(outcome.cluster),
            reranked=[ReestimatedDocument.of(plan) for plan in outcome.reranked],
            moved=None if outcome.moved is None else MovedDocument(**asdict(outcome.moved)),
        )


class ClusterList(BaseModel):
    """Clusters that have an overlay."""

    items: list[ClusterDocument]
