"""Questions about the document in a body: their answers are stored nowhere."""

from textwrap import fill
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from api.http.dependencies import ServicesDep, read_document, run_slowly
from api.http.openapi import document_request_body, spec_request_body
from api.http.problems import responses
from autodeploy.analysis.intake import read_network_spec
from autodeploy.service.session import Services
from autodeploy.specs.plan_details import AblationReport
from autodeploy.specs.questions import QUESTIONS, Question, read_request

router = APIRouter(prefix="/v1")


def _description(docstring: str) -> str:
    """A docstring in lines as those of a route's own function: how deep it stands in the code is not told."""
    return fill(" ".join(docstring.split()), 116, initial_indent="   ").lstrip()


def _add(name: str, question: Question[Any, Any]) -> None:
    """Makes a route of a question, whose answer takes seconds."""
    answer_to = getattr(Services, name)

    async def ask(request: Request, services: ServicesDep, document: Annotated[Any, Depends(read_document)]) -> Any:
        return await run_slowly(request, lambda: answer_to(services, read_request(question.request, document)))

    router.add_api_route(
        question.path.removeprefix(router.prefix),
        ask,
        methods=["POST"],
        operation_id=question.operation_id,
        summary=question.summary,
        description=_description(answer_to.__doc__),
        tags=[question.tag],
        response_model=question.answer,
        responses=responses(400, 415, 422, 503, *question.refusals),
        openapi_extra=document_request_body(question.request),
    )


@router.post(
    "/ablations",
    operation_id="create_ablation",
    summary="What each feature of a spec's strategy buys",
    tags=["plans"],
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
    return await run_slowly(request, lambda: services.ablate(read_network_spec(document, services.planner), names))


for each in QUESTIONS.items():
    _add(*each)
