"""Contents of the accuracy page: published runs, this installation's ledger, its clusters and profiles of steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from api.http.languages import texts
from autodeploy.analysis.trace_comparison import GROUPS
from autodeploy.reports.figures.charts import PAGE, Point, groups_of, predicted_against_measured_svg
from autodeploy.reports.wording import degrees, part_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.messages import Language
    from autodeploy.specs.resources import ClusterDocument, ReestimatedDocument, RunDocument, RunList

SMALL_ERROR = 0.10
SHOWN_FACTORS = 3
SHOWN_SEARCHES = 5


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Published runs of one kind on one device."""

    name: str
    runs: int
    mean_error: float
    within: float


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster, its errors before and after its overlay, and what the overlay changes most."""

    view: ClusterDocument
    factors: tuple[tuple[str, float], ...]
    reranked: tuple[ReestimatedDocument, ...]


def accuracy_context(
    shipped: Sequence[Point],
    peaks: Sequence[Point],
    ledger: RunList,
    clusters: Sequence[ClusterDocument],
    reranked: Mapping[str, tuple[ReestimatedDocument, ...]],
    lang: Language,
) -> dict[str, Any]:
    """Everything that the template reads."""
    words = texts(lang)
    shipped = [replace(point, group=group_name(point.group, words)) for point in shipped]
    points = [*shipped, *own_points(ledger.items, words["accuracy.ledger"])]
    plot = predicted_against_measured_svg(points, words["command.predicted_against_measured"], lang=lang, theme=PAGE)
    return {
        "plot": Markup(plot),
        "groups": [group_row(name, members) for name, members in groups_of(shipped).items()],
        "memory_groups": [
            group_row(group_name(name, words), members) for name, members in groups_of(list(peaks)).items()
        ],
        "ledger": ledger.items,
        "next": ledger.after,
        "clusters": [cluster_row(view, reranked.get(view.cluster, ())) for view in clusters],
        "profiled": [(view, degrees(view.strategy)) for view in ledger.items if view.profiler_parts],
        "part_names": {name: ", ".join(part_names(lang)[part] for part in parts) for name, parts in GROUPS.items()},
    }


def group_name(name: str, words: Mapping[str, str]) -> str:
    """A group such as `800T A2, dense` in the language of the texts."""
    device, _, kind = name.rpartition(", ")
    device = device.replace(" and ", words["list.and"])
    return words[f"accuracy.{kind}"].format(device=device) if device else name


def own_points(runs: Sequence[RunDocument], group: str) -> list[Point]:
    """Runs as points of the plot: tokens per second and card."""
    return [
        Point(
            f"{view.model} ({view.id})",
            group,
            view.tokens_per_step / view.measured_step_time_s / view.num_npus,
            view.tokens_per_step / view.predicted_step_time_s / view.num_npus,
        )
        for view in runs
        if view.measured_step_time_s is not None
    ]


def group_row(name: str, points: Sequence[Point]) -> GroupRow:
    """Mean absolute error of predicted throughput or memory, and the share of runs that are near."""
    errors = [abs(point.predicted / point.measured - 1.0) for point in points]
    near = sum(error <= SMALL_ERROR for error in errors)
    return GroupRow(name, len(errors), sum(errors) / len(errors), near / len(errors))


def cluster_row(view: ClusterDocument, reranked: tuple[ReestimatedDocument, ...]) -> ClusterRow:
    """A cluster with the factors farthest from one, and the plans of its newest searches."""
    factors = sorted(view.report["factors"].items(), key=lambda item: (-abs(item[1] - 1.0), item[0]))[:SHOWN_FACTORS]
    newest = list(dict.fromkeys(plan.search_id for plan in reranked))[:SHOWN_SEARCHES]
    shown = tuple(plan for plan in reranked if plan.search_id in newest)
    return ClusterRow(view, tuple((n.replace("_", " "), v) for n, v in factors), shown)
