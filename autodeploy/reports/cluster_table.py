"""Days and cost on several clusters, as lines and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import in_language
from autodeploy.reports.texts import command_text, titled
from autodeploy.reports.wording import degrees, system_title

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.clusters import ClusterComparison, ClusterOffer

RIGHT = frozenset({1, 2, 3, 4})


def offer_title(offer: ClusterOffer) -> str:
    """What a person calls the cluster: `CloudMatrix 384`, with its grade where one was asked for."""
    title = system_title(offer.profile)
    return title if offer.device is None else f"{title} {offer.device}"


def cluster_lines(found: ClusterComparison, lang: Language) -> list[str]:
    """Which cluster is cheapest in time, and what each other one costs against it or why it is out."""
    if found.cheapest is None:
        return [
            in_language(found.message, lang),
            *(_of(answer.offer, answer.message, lang) for answer in found.clusters),
        ]
    best = found.best
    assert best is not None
    lines = [
        command_text(
            lang,
            "cluster_cheapest",
            cluster=offer_title(found.clusters[found.cheapest].offer),
            cards=f"{best.num_npus:,}",
            days=f"{best.days:.1f}",
            limit=f"{found.days:g}",
            cost=f"{best.cost:,.0f}",
        )
    ]
    for index, answer in enumerate(found.clusters):
        if index == found.cheapest:
            continue
        other = answer.cheapest
        if other is None:
            lines.append(_of(answer.offer, answer.message, lang))
            continue
        apart = other.days_low * best.days * other.cost > best.days_high * other.days * best.cost
        lines.append(
            command_text(
                lang,
                "cluster_dearer" if apart else "cluster_maybe_dearer",
                cluster=offer_title(answer.offer),
                cards=f"{other.num_npus:,}",
                days=f"{other.days:.1f}",
                pct=f"{100.0 * (other.cost / best.cost - 1.0):.0f}",
            )
        )
    return lines


def _of(offer: ClusterOffer, message: str, lang: Language) -> str:
    return titled(lang, offer_title(offer), in_language(message, lang))


def cluster_titles(lang: Language) -> list[str]:
    """The heads of the columns; RIGHT says which of them hold numbers."""
    names = ("cluster", "num_npus", "days", "interval_80", "cost", "layout", "front")
    return [command_text(lang, name) for name in names]


def cluster_rows(found: ClusterComparison, lang: Language) -> list[list[str]]:
    """A row a plan, by cluster and cards. A star: none is sooner for as little, or cheaper and as soon."""
    return [
        [
            offer_title(answer.offer),
            f"{point.num_npus:,}",
            f"{point.days:.1f}" + ("" if point.meets_deadline else command_text(lang, "too_late")),
            f"{point.days_low:.1f}\u2013{point.days_high:.1f}",
            f"{point.cost:,.0f}",
            degrees(point.strategy, with_dp=True),
            "*" if point.on_front else "",
        ]
        for answer in found.clusters
        for point in answer.points
    ]
