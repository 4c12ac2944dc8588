"""Routes /v1/plans/{id}/runs, /v1/runs and /v1/clusters: measured runs, and what follows from them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from api.http.dependencies import PlanId, RunId, ServicesDep, read_measurement, refuse_nul, run_slowly
from api.http.openapi import input_ref
from api.http.prefix import with_next
from api.http.problems import responses
from autodeploy.service.clusters.overlays import MeasuredFile
from autodeploy.service.store.base import PLAN_ID_PATTERN, RUN_ID_PATTERN
from autodeploy.specs.commissioning import LAUNCH
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.resources import ClusterList, RunDocument, RunList, RunOutcomeDocument

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
    return outcome


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
    return with_next(request, services.runs.list(plan_id=plan_id, limit=limit, after=after))


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
    return with_next(request, page)


@router.get("/runs/{run_id}", operation_id="get_run", summary="One run", responses=responses(404, 422, 503))
def get_run(services: ServicesDep, run_id: RunId) -> RunDocument:
    """The measurement with its original values, and the prediction."""
    return services.runs.get(run_id)


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
    return ClusterList(items=services.runs.clusters())
