"""The part of the page of comparisons about clusters: what a plan's training takes and costs on each of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.reports import figures
from autodeploy.reports.comparison import cluster_lines, cluster_table
from autodeploy.specs.questions import CompareClustersRequest
from autodeploy.specs.reading import token_amount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.messages import Language
    from autodeploy.specs.answers import ClusterComparison
    from autodeploy.specs.spec import Spec
    from hardware_profiles import Profile

OFFERS = 3
FILLED = 2  # rows that name a cluster before anything was sent; prices are for people to say


@dataclass(frozen=True, slots=True)
class OfferRow:
    """One row of the form."""

    chosen: str
    price: str


def choices(profiles: Sequence[Profile]) -> list[tuple[str, str]]:
    """Value and title of each cluster that can be chosen: `PROFILE`, or `PROFILE:GRADE` of another grade."""
    options = []
    for profile in profiles:
        options.append((profile.name, f"{profile.title} {profile.default_device}"))
        others = [device for device in profile.devices if device != profile.default_device]
        options += [(f"{profile.name}:{device}", f"{profile.title} {device}") for device in others]
    return options


def form_rows(values: Mapping[str, str], profiles: Sequence[Profile] = ()) -> list[OfferRow]:
    """The rows of the form as they were sent, by default the first profiles without prices."""
    if not values:
        names = [profile.name for profile in profiles[:FILLED]]
        return [OfferRow(name, "") for name in [*names, *([""] * (OFFERS - len(names)))]]
    return [OfferRow(values.get(f"cluster-{n}", ""), values.get(f"price-{n}", "")) for n in range(OFFERS)]


def request_of(spec: Spec, values: Mapping[str, str]) -> CompareClustersRequest:
    """The request of a sent form.

    Raises SpecError with every bad field.
    """
    clusters = []
    for row in form_rows(values):
        if row.chosen:
            profile, _, device = row.chosen.partition(":")
            price = _number(row.price)
            clusters.append({"profile": profile, "device": device or None, "price_per_npu_hour": price})
    asked: dict[str, Any] = {"days": _number(values.get("days", "")), "clusters": clusters}
    tokens = values.get("tokens", "").strip()
    if tokens:
        asked["tokens"] = token_amount(tokens) or tokens
    if cards := values.get("max_npus", "").strip():
        asked["max_npus"] = int(cards) if cards.isdecimal() and len(cards) < 10 else cards
    return CompareClustersRequest.about(spec, **asked)


def _number(text: str) -> float | str:
    try:
        return float(text.strip().replace(",", "."))
    except ValueError:
        return text.strip()


def clusters_context(comparison: ClusterComparison | None, lang: Language) -> dict[str, Any]:
    """Context of an answer's page: its sentences, its table and its picture."""
    if comparison is None:
        return {"cluster_lines": [], "cluster_table": None, "charts": {}}
    titles = [answer.offer.title for answer in comparison.clusters]
    return {
        "cluster_lines": cluster_lines(comparison, lang),
        "cluster_table": cluster_table(comparison, lang),
        "charts": {"chart-clusters": figures.figure_json(figures.days_and_cost(comparison, titles, lang))},
    }
