"""/v1/why-not, /v1/improve, /v1/recommend and /v1/compare-clusters."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from api.http.dependencies import ServicesDep, read_document, run_slowly
from api.http.openapi import document_request_body
from api.http.problems import responses
from autodeploy.analysis.what_if.recommend import budget_in_hours
from autodeploy.service.launch_requests import (
    CompareClustersRequest,
    ImproveRequest,
    RecommendRequest,
    WhyNotRequest,
    network_launch,
    read_offers,
    read_strategy,
)
from autodeploy.service.requests.intake import read_network_spec, read_request
from autodeploy.specs.answers import ClusterComparison, ImproveReport, Recommendation, WhyNot

router = APIRouter(prefix="/v1", tags=["what-if"])


@router.post(
    "/why-not",
    operation_id="why_not",
    summary="What speaks against a strategy",
    responses=responses(400, 404, 413, 415, 422, 503),
    openapi_extra=document_request_body(WhyNotRequest),
)
async def why_not(request: Request, services: ServicesDep, document: Annotated[Any, Depends(read_document)]) -> WhyNot:
    """The rule it breaks and the nearest legal strategy, the memory it lacks, or what it costs against the best plan.
    With a spec instead of a plan absent axes are those of the best plan with the given ones, and the best plan of all
    is searched for, which takes seconds. Nothing is stored."""

    def answer() -> WhyNot:
        asked = read_request(WhyNotRequest, document)
        if asked.plan_id is not None:
            view = services.searches.plan(asked.plan_id)
            return services.why_not(view, read_strategy(asked.strategy, view.plan.strategy))
        spec = read_network_spec(asked.spec, services.planner)
        return services.why_not_of(spec, read_strategy(asked.strategy))

    return await run_slowly(request, answer)


@router.post(
    "/improve",
    operation_id="improve_launch",
    summary="The best single changes of a launch",
    responses=responses(400, 413, 415, 422, 503),
    openapi_extra=document_request_body(ImproveRequest),
)
async def improve(
    request: Request, services: ServicesDep, document: Annotated[Any, Depends(read_document)]
) -> ImproveReport:
    """Three changes by gain, and which of them keep the checkpoint's layout. Takes seconds; launch scripts are read,
    never run. Nothing is stored."""

    def answer() -> ImproveReport:
        asked = read_request(ImproveRequest, document)
        return services.improve(services.read(network_launch, services.planner, asked))

    return await run_slowly(request, answer)


@router.post(
    "/recommend",
    operation_id="recommend_cards",
    summary="Cards for a deadline, a budget or both",
    responses=responses(400, 413, 415, 422, 503),
    openapi_extra=document_request_body(RecommendRequest),
)
async def recommend(
    request: Request, services: ServicesDep, document: Annotated[Any, Depends(read_document)]
) -> Recommendation:
    """With the plan that meets it, and throughput by number of cards. Takes seconds to a minute. Nothing is stored."""

    def answer() -> Recommendation:
        asked = read_request(RecommendRequest, document)
        spec = read_network_spec(asked.spec, services.planner)
        hours = asked.npu_hours or budget_in_hours(spec, asked.cost)
        return services.recommend(spec, days=asked.days, npu_hours=hours, tokens=asked.tokens, max_npus=asked.max_npus)

    return await run_slowly(request, answer)


@router.post(
    "/compare-clusters",
    operation_id="compare_clusters",
    summary="What a deadline costs on several clusters",
    responses=responses(400, 413, 415, 422, 503),
    openapi_extra=document_request_body(CompareClustersRequest),
)
async def compare_clusters(
    request: Request, services: ServicesDep, document: Annotated[Any, Depends(read_document)]
) -> ClusterComparison:
    """The fewest cards of each cluster that meet it, days and cost of the plans, and which of these none beats in both.
    Takes up to a minute for each cluster. Nothing is stored."""

    def answer() -> ClusterComparison:
        asked = read_request(CompareClustersRequest, document)
        spec = read_network_spec(asked.spec, services.planner)
        read_offers(spec, asked.clusters, services.planner)
        return services.compare_clusters(
            spec, asked.clusters, days=asked.days, tokens=asked.tokens, max_npus=asked.max_npus
        )

    return await run_slowly(request, answer)
