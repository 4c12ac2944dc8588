"""Days and cost on several clusters, as lines and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import in_language
from autodeploy.reports.tables import Table
from autodeploy.reports.texts import command_text, titled
from autodeploy.reports.wording import degrees

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.clusters import ClusterComparison, ClusterPoint


def cluster_lines(comparison: ClusterComparison, lang: Language) -> list[str]:
    """Which cluster is cheapest in time, and why others are out."""
    out = [answer for answer in comparison.clusters if answer.cheapest is None]
    why = [titled(lang, answer.offer.title, in_language(answer.message, lang)) for answer in out]
    return [in_language(comparison.message, lang), *why]


def cluster_table(comparison: ClusterComparison, lang: Language) -> Table:
    """A row a plan, by cluster and cards. A star: none is sooner for as little, or cheaper and as soon."""
    names = ("cluster", "num_npus", "days", "interval_80", "cost", "versus_cheapest", "layout", "front")
    rows = [
        [
            answer.offer.title,
            f"{point.num_npus:,}",
            f"{point.days:.1f}" + ("" if point.meets_deadline else command_text(lang, "too_late")),
            f"{point.days_low:.1f}\u2013{point.days_high:.1f}",
            f"{point.cost:,.0f}",
            _dearer(point, comparison.best) if point is answer.cheapest and comparison.best is not None else "",
            degrees(point.strategy),
            "*" if point.on_front else "",
        ]
        for answer in comparison.clusters
        for point in answer.points
    ]
    return Table([command_text(lang, name) for name in names], rows, {1, 2, 3, 4, 5})


def _dearer(point: ClusterPoint, best: ClusterPoint) -> str:
    """By how much it is dearer; `\u2248` where that is within the 80 % intervals."""
    if point is best:
        return "-"
    apart = point.days_low * best.days * point.cost > best.days_high * point.days * best.cost
    dearer = f"{100.0 * (point.cost / best.cost - 1.0):+.0f} %"
    return dearer if apart else f"\u2248 {dearer}"
