"""Questions about the document in a body: their answers are stored nowhere."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Annotated, Any, TypeVar, get_type_hints

from fastapi import APIRouter, Depends, Query, Request

from api.http.dependencies import ServicesDep, read_document, run_slowly
from api.http.openapi import document_request_body, spec_request_body
from api.http.problems import responses
from autodeploy.analysis.what_if.recommend import budget_in_hours
from autodeploy.service.launch_requests import (
    CheckRequest,
    CompareClustersRequest,
    ImproveRequest,
    RecommendRequest,
    WhyNotRequest,
    check_of_request,
    network_launch,
    read_offers,
    read_strategy,
)
from autodeploy.service.requests.intake import CompareRequest, read_network_spec, read_request
from autodeploy.service.session import Services
from autodeploy.specs.answers import CheckReport, ClusterComparison, ImproveReport, Recommendation, WhyNot
from autodeploy.specs.base import Document
from autodeploy.specs.plan_details import AblationReport, Comparison

router = APIRouter(prefix="/v1")
Asked = TypeVar("Asked", bound=Document)
Answer = TypeVar("Answer")
Function = Callable[[Asked, Services], Answer]


def question(
    path: str, operation_id: str, summary: str, *refusals: int, tag: str
) -> Callable[[Function[Asked, Answer]], Function[Asked, Answer]]:
    """Makes a route of a function of the request's document, which takes seconds."""

    def add(function: Function[Asked, Answer]) -> Function[Asked, Answer]:
        kind, _, answer = get_type_hints(function).values()

        async def ask(
            request: Request, services: ServicesDep, document: Annotated[Any, Depends(read_document)]
        ) -> Answer:
            return await run_slowly(request, lambda: function(read_request(kind, document), services))

        router.add_api_route(
            path,
            ask,
            methods=["POST"],
            operation_id=operation_id,
            summary=summary,
            description=cleandoc(function.__doc__ or ""),
            tags=[tag],
            response_model=answer,
            responses=responses(400, 415, 422, 503, *refusals),
            openapi_extra=document_request_body(kind),
        )
        return function

    return add


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


@question("/checks", "create_check", "Hold a launch against limits", 404, tag="plans")
def create_check(asked: CheckRequest, services: Services) -> CheckReport:
    """Can it start, will it fit, how far is it from the best plan, is it slower than a baseline. `passed: false` is a
    result, too, also where a broken rule leaves nothing to predict. Launch scripts are read, never run. Nothing is
    stored."""
    return check_of_request(asked, services)


@question("/compare", "compare_plans", "What differs between plans", 404, tag="plans")
def compare_plans(asked: CompareRequest, services: Services) -> Comparison:
    """Only the fields in which 2 to 5 plans differ."""
    return services.compare(asked.plans)


@question("/why-not", "why_not", "What speaks against a strategy", 404, tag="what-if")
def why_not(asked: WhyNotRequest, services: Services) -> WhyNot:
    """The rule it breaks and the nearest legal strategy, the memory it lacks, or what it costs against the best plan.
    With a spec instead of a plan absent axes are those of the best plan with the given ones, and the best plan of all
    is searched for, which takes seconds. Nothing is stored."""
    if asked.plan_id is not None:
        view = services.searches.plan(asked.plan_id)
        return services.why_not(view, read_strategy(asked.strategy, view.plan.strategy))
    return services.why_not_of(read_network_spec(asked.spec, services.planner), read_strategy(asked.strategy))


@question("/improve", "improve_launch", "The best single changes of a launch", tag="what-if")
def improve(asked: ImproveRequest, services: Services) -> ImproveReport:
    """Three changes by gain, and which of them keep the checkpoint's layout. Takes seconds; launch scripts are read,
    never run. Nothing is stored."""
    return services.improve(services.read(network_launch, services.planner, asked))


@question("/recommend", "recommend_cards", "Cards for a deadline, a budget or both", tag="what-if")
def recommend(asked: RecommendRequest, services: Services) -> Recommendation:
    """With the plan that meets it, and throughput by number of cards. Takes seconds to a minute. Nothing is stored."""
    spec = read_network_spec(asked.spec, services.planner)
    hours = asked.npu_hours or budget_in_hours(spec, asked.cost)
    return services.recommend(spec, days=asked.days, npu_hours=hours, tokens=asked.tokens, max_npus=asked.max_npus)


@question("/compare-clusters", "compare_clusters", "What a deadline costs on several clusters", tag="what-if")
def compare_clusters(asked: CompareClustersRequest, services: Services) -> ClusterComparison:
    """The fewest cards of each cluster that meet it, days and cost of the plans, and which of these none beats in both.
    Takes up to a minute for each cluster. Nothing is stored."""
    spec = read_network_spec(asked.spec, services.planner)
    read_offers(spec, asked.clusters, services.planner)
    return services.compare_clusters(
        spec, asked.clusters, days=asked.days, tokens=asked.tokens, max_npus=asked.max_npus
    )
