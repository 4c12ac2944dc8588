"""/v1/ablations."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from api.http.dependencies import ServicesDep, read_document, run_slowly
from api.http.openapi import spec_request_body
from api.http.problems import responses
from autodeploy.service.requests.intake import read_network_spec
from autodeploy.specs.plan_details import AblationReport

router = APIRouter(prefix="/v1", tags=["plans"])


@router.post(
    "/ablations",
    operation_id="create_ablation",
    summary="What each feature of a spec's strategy buys",
    responses=responses(400, 415, 422, 503),
    openapi_extra=spec_request_body(with_strategy=True),
)
async def create_ablation(
    request: Request,
    services: ServicesDep,
    document: Annotated[Any, Depends(read_document)],
    order: Annotated[
        str, Query(max_length=1000, description="features of the cumulative rows", examples=["adaptive_pipe,edpb"])
    ] = "",
) -> AblationReport:
    """Each feature alone on the strategy without any, one after the other, and left out. Without a strategy the spec
    is searched first, which takes seconds. Nothing is stored."""
    names = [name.strip() for name in order.split(",") if name.strip()]

    def ablation() -> AblationReport:
        return services.ablate(read_network_spec(document, services.planner), names)

    return await run_slowly(request, ablation)
