"""/v1/plans and /v1/estimates."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from api.http.dependencies import PlanId, SearchesDep, ServicesDep, read_document, run_slowly
from api.http.openapi import spec_request_body
from api.http.problems import responses
from autodeploy.analysis.intake import read_network_spec
from autodeploy.formats.registry import written
from autodeploy.specs.artefact import MEDIA_TYPES, Artefact
from autodeploy.specs.commissioning import LAUNCH, Commissioning
from autodeploy.specs.plan_details import OperatorReport
from autodeploy.specs.planset import Plan
from autodeploy.specs.resources import PlanDocument

router = APIRouter(prefix="/v1", tags=["plans"])
Format = Annotated[
    str,
    Query(
        max_length=40,
        description="the format",
        examples=["mindspeed-llm"],
        json_schema_extra={"enum": sorted(written())},
    ),
]
Lang = Annotated[Literal["en", "zh"], Query(description="the language of html and markdown")]
FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file, in the media type of its format",
        "content": {media_type: {} for media_type in MEDIA_TYPES},
    }
}


@router.get(
    "/plans/{plan_id}",
    operation_id="get_plan",
    summary="One plan",
    response_model=PlanDocument,
    responses=responses(404, 422, 503),
)
def get_plan(searches: SearchesDep, plan_id: PlanId) -> Response:
    """Equal searches find plans of equal ids; this is the newest one."""
    return Response(searches.plan_text(plan_id).text(), media_type="application/json")


@router.get(
    "/plans/{plan_id}/export",
    operation_id="export_plan",
    summary="A plan as a launch-ready file",
    response_class=Response,
    responses={**FILE, **responses(404, 422, 503)},
)
async def export_plan(
    request: Request,
    services: ServicesDep,
    plan_id: PlanId,
    to: Format,
    lang: Lang = "en",
    rehearse: Annotated[
        str | None,
        Query(pattern=LAUNCH, description="the plan's rehearsal there, instead of the plan", examples=["8nodes"]),
    ] = None,
) -> Response:
    """Review a generated file before you launch it."""

    def exported() -> Artefact:
        return services.export(services.searches.plan(plan_id), to, lang, rehearse=rehearse)

    return _file(await run_slowly(request, exported))


@router.get(
    "/plans/{plan_id}/commissioning",
    operation_id="get_plan_commissioning",
    summary="The launches before a plan's own, and what each decides",
    response_model=Commissioning,
    responses=responses(404, 422, 503),
)
async def get_plan_commissioning(request: Request, services: ServicesDep, plan_id: PlanId) -> Commissioning:
    """On a node, on eight and on an eighth of the cards; their scripts are the plan's export with `rehearse`."""
    return await run_slowly(request, lambda: services.commission(services.searches.plan(plan_id)))


@router.post(
    "/exports",
    operation_id="export_strategy",
    summary="The one strategy in a spec as a launch-ready file",
    response_class=Response,
    responses={**FILE, **responses(400, 415, 422, 503)},
    openapi_extra=spec_request_body(with_strategy=True),
)
async def export_strategy(
    request: Request,
    services: ServicesDep,
    document: Annotated[Any, Depends(read_document)],
    to: Format,
    lang: Lang = "en",
) -> Response:
    """The strategy as it is given; refused where a rule of the framework stops it. Nothing is stored."""

    def exported() -> Artefact:
        return services.export_strategy(read_network_spec(document, services.planner), to, lang)

    return _file(await run_slowly(request, exported))


def _file(artefact: Artefact) -> Response:
    disposition = f'attachment; filename="{artefact.filename}"'
    return Response(artefact.text, media_type=artefact.media_type, headers={"Content-Disposition": disposition})


@router.get(
    "/plans/{plan_id}/operators",
    operation_id="get_plan_operators",
    summary="Where the time of a plan goes, down to operators",
    response_model=OperatorReport,
    responses=responses(404, 422, 503),
)
async def get_plan_operators(request: Request, services: ServicesDep, plan_id: PlanId) -> OperatorReport:
    """Each kind of layer: its operators with their times and the roofline, its exchanges with group and tier."""

    def operators() -> OperatorReport:
        return services.operators(services.searches.plan(plan_id))

    return await run_slowly(request, operators)


@router.post(
    "/estimates",
    operation_id="create_estimate",
    summary="Predict the one strategy in a spec",
    response_model=Plan,
    responses=responses(400, 415, 422, 503),
    openapi_extra=spec_request_body(with_strategy=True),
)
async def create_estimate(
    request: Request, services: ServicesDep, document: Annotated[Any, Depends(read_document)]
) -> Plan:
    """Time, memory and their parts; rules that the strategy breaks are in `broken_rules`. Nothing is stored."""

    def estimate() -> Plan:
        return services.estimate(read_network_spec(document, services.planner))

    return await run_slowly(request, estimate)
