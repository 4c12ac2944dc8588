"""Routes /v1/plans/{id}/runs, /v1/runs and /v1/clusters: measured runs, and what follows from them."""

from dataclasses import asdict
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from api.http.dependencies import PlanId, RunId, ServicesDep, read_measurement, refuse_nul, run_slowly
from api.http.openapi import input_ref
from api.http.prefix import next_page
from api.http.problems import responses
from autodeploy.analysis.trace_comparison import compared_parts
from autodeploy.service.clusters.overlays import MeasuredFile
from autodeploy.service.runs.service import ClusterView, ReestimatedPlan, RunOutcome, RunPage, RunView
from autodeploy.service.store.base import PLAN_ID_PATTERN, RUN_ID_PATTERN, iso
from autodeploy.specs.commissioning import LAUNCH
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.planset import Breakdown
from autodeploy.specs.strategy import Strategy


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
    def of(cls, view: RunView) -> Self:
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
    def of(cls, page: RunPage, next_url: str | None) -> Self:
        return cls(items=[RunDocument.of(item) for item in page.items], has_more=page.has_more, next=next_url)


class ClusterDocument(BaseModel):
    """The overlay of a cluster, fitted to its runs, and what it does to their errors."""

    cluster: str
    profile: str
    updated_at: str
    num_runs: int
    team: Annotated[str, Field(description="whose runs it is fitted to, and whose searches start from it")]
    changed_by: Annotated[str, Field(description="name of the key that changed it last; empty without a key")]
    overlay: dict[str, Any]
    report: Annotated[dict[str, Any], Field(description="factors, and errors of the runs before and after")]

    @classmethod
    def of(cls, view: ClusterView) -> Self:
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
    def of(cls, view: ReestimatedPlan) -> Self:
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
    def of(cls, outcome: RunOutcome) -> Self:
        return cls(
            run=RunDocument.of(outcome.run),
            cluster=None if outcome.cluster is None else ClusterDocument.of(outcome.cluster),
            reranked=[ReestimatedDocument.of(plan) for plan in outcome.reranked],
            moved=None if outcome.moved is None else MovedDocument(**asdict(outcome.moved)),
        )


class ClusterList(BaseModel):
    """Clusters that have an overlay."""

    items: list[ClusterDocument]


router = APIRouter(prefix="/v1", tags=["runs"])

Limit = Annotated[int, Query(ge=1, le=100)]
After = Annotated[str | None, Query(pattern=RUN_ID_PATTERN, description="the last id of the page before")]

EXAMPLE_LOG = "step,step_time_s\n1,14.2\n2,12.9\n3,12.8\n4,12.8\n"
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        input_ref(MeasuredRun.__name__),
                        input_ref(MeasuredFile.__name__),
                    ]
                },
                "examples": {"stated": {"summary": "figures", "value": {"step_time_s": 12.8, "peak_memory_gib": 51.2}}},
            },
            "text/plain": {
                "schema": {"type": "string", "minLength": 1},
                "examples": {"steps": {"summary": "a table of step times", "value": EXAMPLE_LOG}},
            },
        },
    }
}


@router.post(
    "/plans/{plan_id}/runs",
    operation_id="create_run",
    summary="Say what was measured when a plan ran",
    status_code=201,
    response_model=RunOutcomeDocument,
    responses={
        200: {"model": RunOutcomeDocument, "description": "The same measurement was stored before"},
        **responses(400, 404, 409, 415, 422, 503, 507),
    },
    openapi_extra=BODY,
)
async def create_run(
    request: Request,
    services: ServicesDep,
    response: Response,
    plan_id: PlanId,
    measured: Annotated[MeasuredRun, Depends(read_measurement)],
    rehearse: Annotated[
        str | None, Query(pattern=LAUNCH, description="not the plan ran but its rehearsal there", examples=["8nodes"])
    ] = None,
) -> RunOutcomeDocument:
    """Figures as JSON; or as text a training log, a table of step times, the profiler's step_trace_time.csv, a GEMM
    table or the output of hccl_test. With scope calibrate the team's overlay of the cluster is fitted again and its
    stored plans are re-ranked; with scope write the run is stored and judged only.
    """
    outcome = await run_slowly(request, lambda: services.add_run(plan_id, measured, rehearse=rehearse))
    response.headers["Location"] = f"/v1/runs/{outcome.run.id}"
    response.status_code = 201 if outcome.created else 200
    return RunOutcomeDocument.of(outcome)


@router.get(
    "/plans/{plan_id}/runs",
    operation_id="list_runs_of_plan",
    summary="What was measured of a plan",
    responses=responses(422, 503),
)
def list_runs_of_plan(
    request: Request, services: ServicesDep, plan_id: PlanId, limit: Limit = 20, after: After = None
) -> RunList:
    """Newest first; runs stay when the search that found the plan is deleted."""
    return _listed(request, services.runs.list(plan_id=plan_id, limit=limit, after=after))


@router.get("/runs", operation_id="list_runs", summary="The ledger of measurements", responses=responses(422, 503))
def list_runs(
    request: Request,
    services: ServicesDep,
    cluster: Annotated[
        str | None, Query(max_length=200, description="the cluster's name; by default its profile's")
    ] = (None),
    plan_id: Annotated[str | None, Query(pattern=PLAN_ID_PATTERN)] = None,
    author: Annotated[str | None, Query(max_length=100, description="name of the key that stored it")] = None,
    team: Annotated[str | None, Query(max_length=64, description="other teams' take a key with scope admin")] = None,
    limit: Limit = 20,
    after: After = None,
) -> RunList:
    """Newest first, each beside what had been predicted. A key sees its team's runs, one with scope admin all."""
    refuse_nul(cluster=cluster, author=author, team=team)
    page = services.runs.list(plan_id=plan_id, cluster=cluster, author=author, team=team, limit=limit, after=after)
    return _listed(request, page)


@router.get("/runs/{run_id}", operation_id="get_run", summary="One run", responses=responses(404, 422, 503))
def get_run(services: ServicesDep, run_id: RunId) -> RunDocument:
    """The measurement with its original values, and the prediction."""
    return RunDocument.of(services.runs.get(run_id))


@router.delete(
    "/runs/{run_id}",
    operation_id="delete_run",
    summary="Delete a run",
    status_code=204,
    responses=responses(404, 409, 422, 503, 507),
)
async def delete_run(request: Request, services: ServicesDep, run_id: RunId) -> None:
    """One that counts, or that another key stored, takes scope calibrate: the cluster's overlay is fitted to the runs
    that are left; with the last one it goes."""
    await run_slowly(request, services.runs.delete, run_id)


@router.get("/clusters", operation_id="list_clusters", summary="Clusters with an overlay", responses=responses(503))
def list_clusters(services: ServicesDep) -> ClusterList:
    """Overlays that searches on each cluster start from unless a spec says `overlay: none`."""
    return ClusterList(items=[ClusterDocument.of(view) for view in services.runs.clusters()])


def _listed(request: Request, page: RunPage) -> RunList:
    return RunList.of(page, next_page(request, page.next_after))
