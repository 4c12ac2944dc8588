"""compare_clusters(spec, offers, days): what the same training costs on several clusters, and which is cheapest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.analysis.what_if.recommend import DAY_S, recommend_with_plans
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message
from autodeploy.specs.answers import ClusterAnswer, ClusterComparison, ClusterPoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.search.planner import Planner
    from autodeploy.specs.answers import ClusterOffer
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.questions import CompareClustersRequest
    from autodeploy.specs.spec import Spec

CARD_MULTIPLES = (0.5, 2.0)
"""Multiples of the fewest cards that are planned for too: cheaper and later, dearer and sooner."""


def on_offer(spec: Spec, offer: ClusterOffer) -> Spec:
    """The spec on the cluster of an offer, with as many cards in whole nodes.

    What the spec says of its own cluster (overrides, its name and overlay) holds where the offer is that cluster.
    """
    own = spec.cluster
    if offer.profile == own.profile and offer.device in (None, own.device):
        return spec
    changes: dict[str, Any] = {"profile": offer.profile, "device": offer.device, "grade_is_inferred": False}
    changes |= {"overrides": {}, "name": None, "overlay": "auto"}
    before = profile_of(own).npus_per_node
    cards = own.num_npus or sum(block.nodes for block in own.blocks or ()) * before
    cluster = own.model_copy(update=changes | {"blocks": None, "spare_npus": 0, "num_npus": cards})
    node = profile_of(cluster).npus_per_node
    cluster = cluster.model_copy(update={"num_npus": -(-cards // node) * node})
    return spec.model_copy(update={"cluster": cluster})


def points_on(spec: Spec, offer: ClusterOffer, asked: CompareClustersRequest, *, planner: Planner) -> ClusterAnswer:
    """The fewest cards of an offer that meet the deadline, and the plans of all counts that were searched for.

    spec : on that cluster, as `on_offer` gives it.

    Raises SpecError as `recommend`.
    """
    recommended, plans = recommend_with_plans(spec, asked, planner=planner, beside=CARD_MULTIPLES)
    return ClusterAnswer(
        offer=offer,
        num_npus=recommended.num_npus,
        tokens=recommended.tokens,
        message=recommended.message,
        points=tuple(_point(plan, count, offer, recommended.tokens, asked.days) for count, plan in plans.items()),
    )


def _point(plan: Plan, num_npus: int, offer: ClusterOffer, tokens: float, deadline: float) -> ClusterPoint:
    days = tokens / plan.tokens_per_s / DAY_S
    npu_hours = 24.0 * days * num_npus
    return ClusterPoint(
        num_npus=num_npus,
        strategy=plan.strategy,
        step_time_s=plan.step_time_s,
        mfu=plan.mfu,
        peak_memory_gib=plan.peak_memory_gib,
        days=days,
        days_low=days * plan.uncertainty.low_s / plan.step_time_s,
        days_high=days * plan.uncertainty.high_s / plan.step_time_s,
        npu_hours=npu_hours,
        cost=npu_hours * offer.price_per_npu_hour,
        meets_deadline=days <= deadline,
    )


def side_by_side(answers: Sequence[ClusterAnswer], days: float) -> ClusterComparison:
    """The answers of all offers with the Pareto front of days and cost over their plans, and the cheapest in time."""
    points = [(index, point) for index, answer in enumerate(answers) for point in answer.points]
    front = _front([point for _, point in points])
    marked = tuple(
        answer.model_copy(
            update={
                "points": tuple(
                    point.model_copy(update={"on_front": (point.days, point.cost) in front}) for point in answer.points
                )
            }
        )
        for answer in answers
    )
    in_time = [(best.cost, best.days, index) for index, answer in enumerate(marked) if (best := answer.cheapest)]
    cheapest = min(in_time)[2] if in_time else None
    best = None if cheapest is None else marked[cheapest].cheapest
    if cheapest is None or best is None:
        message = Message("what_if.no_cluster_meets_deadline", days=days)
    else:
        message = Message(
            "what_if.cheapest",
            limit=days,
            cards=best.num_npus,
            cluster=marked[cheapest].offer.title,
            days=best.days,
            cost=best.cost,
        )
    return ClusterComparison(
        days=days,
        clusters=marked,
        cheapest=cheapest,
        num_npus=None if best is None else best.num_npus,
        message=message,
        engine_version=ENGINE_VERSION,
    )


def _front(points: Sequence[ClusterPoint]) -> set[tuple[float, float]]:
    """(days, cost) of the plans that none is sooner and as cheap as, or cheaper and as soon as."""
    front: set[tuple[float, float]] = set()
    least = float("inf")
    for days, cost in sorted((point.days, point.cost) for point in points):
        if cost < least:
            front.add((days, cost))
            least = cost
    return front
