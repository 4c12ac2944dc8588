"""/v1/checks and /v1/compare."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from api.http.dependencies import ServicesDep, read_document, run_slowly
from api.http.openapi import document_request_body
from api.http.problems import responses
from autodeploy.service.launch_requests import CheckRequest, check_of_request
from autodeploy.service.requests.intake import CompareRequest, read_request
from autodeploy.specs.answers import CheckReport
from autodeploy.specs.plan_details import Comparison

router = APIRouter(prefix="/v1", tags=["plans"])


@router.post(
    "/checks",
    operation_id="create_check",
    summary="Hold a launch against limits",
    responses=responses(400, 404, 415, 422, 503),
    openapi_extra=document_request_body(CheckRequest),
)
async def create_check(
    request: Request, services: ServicesDep, document: Annotated[Any, Depends(read_document)]
) -> CheckReport:
    """Can it start, will it fit, how far is it from the best plan, is it slower than a baseline. `passed: false` is a
    result, too, also where a broken rule leaves nothing to predict. Launch scripts are read, never run. Nothing is
    stored."""

    def check() -> CheckReport:
        return check_of_request(read_request(CheckRequest, document), services)

    return await run_slowly(request, check)


@router.post(
    "/compare",
    operation_id="compare_plans",
    summary="What differs between plans",
    responses=responses(400, 404, 415, 422, 503),
    openapi_extra=document_request_body(CompareRequest),
)
async def compare_plans(
    request: Request, services: ServicesDep, document: Annotated[Any, Depends(read_document)]
) -> Comparison:
    """Only the fields in which 2 to 5 plans differ."""

    def compare() -> Comparison:
        return services.compare(read_request(CompareRequest, document).plans)

    return await run_slowly(request, compare)
