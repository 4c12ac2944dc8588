"""`autodeploy recommend`: the fewest cards that meet a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.exits import INFEASIBLE
from autodeploy.cli.options import (
    Lang,
    LanguageOption,
    ListFormat,
    Output,
    Server,
    SimpleFormat,
    SpecFile,
    language,
    read_spec,
)
from autodeploy.messages import Message

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.messages import Language
    from autodeploy.specs.answers import ClusterComparison, ClusterOffer, Recommendation
    from autodeploy.specs.spec import Spec

app = typer.Typer()


@app.command(
    epilog="Examples: autodeploy recommend spec.yaml --tokens 13T --days 30; "
    "autodeploy recommend spec.yaml --days 30 --cluster ascend-800t-a2=1.2 --cluster cloudmatrix-384=2.6"
)
def recommend(
    spec_file: SpecFile,
    days: Annotated[float, typer.Option("--days", metavar="D", help="deadline in days")],
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="N", help="tokens to train, e.g. 13T or 500B; default: the spec's")
    ] = None,
    max_npus: Annotated[
        int | None,
        typer.Option("--max-npus", min=1, metavar="N", help="most cards to consider; default: 16 times the spec's"),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            metavar="PROFILE[:GRADE]=PRICE",
            help="price per card-hour; repeat to compare days and cost of clusters",
        ),
    ] = None,
    server: Server = None,
    output_format: SimpleFormat = ListFormat.TABLE,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Find the smallest number of cards that meets a deadline. Exit code 3: none does."""
    from autodeploy.cli.output import write_report
    from autodeploy.kit.errors import SpecError

    if not 0.0 < days <= 36_500.0:
        raise SpecError(Message("common.is_outside", value=f"{days:g}", range="(0, 36500]"), path="--days")
    spec, amount = read_spec(spec_file), None if tokens is None else token_count(tokens)
    request = {"spec": spec.model_dump(mode="json"), "days": days, "tokens": amount, "max_npus": max_npus}
    asked = {name: value for name, value in request.items() if value is not None}
    if cluster:
        compare_clusters(spec, [offer_of(text) for text in cluster], asked, server, output_format, output, lang)
        return
    if server is None:
        recommendation = _here(spec, days, amount, max_npus)
    else:
        from autodeploy.cli.remote import connect

        with connect(server) as client:
            recommendation = client.recommend(asked)
    as_json = output_format is ListFormat.JSON
    write_report(
        recommendation.model_dump_json(indent=2) if as_json else recommendation_text(recommendation, language(lang)),
        output,
    )
    if recommendation.num_npus is None:
        raise typer.Exit(INFEASIBLE)


def offer_of(text: str) -> ClusterOffer:
    """`cloudmatrix-384=2.6` or `ascend-800t-a2:910B3=1.2`: a profile, perhaps a chip grade, and its price.

    Raises
    ------
    SpecError
        when the price is missing or is none.
    """
    from autodeploy.kit.errors import SpecError
    from autodeploy.specs.answers import ClusterOffer

    named, _, price = text.rpartition("=")
    profile, _, grade = named.rpartition(":")
    if not profile or "/" in grade:
        profile, grade = named, ""
    try:
        value = float(price)
    except ValueError:
        value = 0.0
    if not named or not 0.0 < value <= 1e6:
        raise SpecError(
            Message("common.is_not_of_form", value=repr(text[:80]), form="PROFILE[:GRADE]=PRICE"),
            path="--cluster",
            hint=Message("common.such_as", example="ascend-800t-a2:910B3=1.2"),
        )
    return ClusterOffer(profile=profile, device=grade or None, price_per_npu_hour=value)


def compare_clusters(
    spec: Spec,
    offers: list[ClusterOffer],
    asked: dict[str, Any],
    server: str | None,
    output_format: ListFormat,
    output: Path | None,
    lang: LanguageOption,
) -> None:
    """Days and cost on each cluster, and which is the cheapest in time; exit code 3 where none is."""
    from autodeploy.cli.output import write_report
    from autodeploy.kit.errors import SpecError
    from autodeploy.specs.answers import MAX_CLUSTERS

    if len(offers) > MAX_CLUSTERS:
        raise SpecError(
            Message("field_fault.has_entries", count=len(offers)),
            path="--cluster",
            hint=Message("field_fault.at_most", bound=MAX_CLUSTERS),
        )
    if server is None:
        comparison = _clusters_here(spec, offers, asked)
    else:
        from autodeploy.cli.remote import connect

        with connect(server) as client:
            comparison = client.compare_clusters(
                asked | {"clusters": [each.model_dump(mode="json") for each in offers]}
            )
    as_json = output_format is ListFormat.JSON
    write_report(comparison.model_dump_json(indent=2) if as_json else clusters_text(comparison, language(lang)), output)
    if comparison.cheapest is None:
        raise typer.Exit(INFEASIBLE)


def clusters_text(comparison: ClusterComparison, lang: Language = "en") -> str:
    """Which is cheapest, and a row for each number of cards that was planned for."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.comparison import cluster_lines, cluster_table

    table = cluster_table(comparison, lang)
    return "\n".join(
        [*cluster_lines(comparison, lang), "", table_text(table.titles, table.rows, right=frozenset(table.right))]
    )


def _clusters_here(spec: Spec, offers: list[ClusterOffer], asked: dict[str, Any]) -> ClusterComparison:
    """One cluster after the other, each with its overlay where the database of the settings has been used before."""
    from autodeploy.analysis.what_if.clusters import on_offer, points_on, side_by_side
    from autodeploy.kit.settings import load_settings
    from autodeploy.search import planner

    how = {"days": asked["days"], "tokens": asked.get("tokens"), "max_npus": asked.get("max_npus")}
    settings = load_settings()
    if spec.cluster.overlay == "auto" and settings.has_database():
        from autodeploy.service.session import open_services

        with open_services(settings) as services:
            return services.compare_clusters(spec, offers, **how)
    answers = [points_on(on_offer(spec, offer), offer, planner=planner, **how) for offer in offers]
    return side_by_side(answers, how["days"])


def token_count(text: str) -> float:
    """`13T`, `500B` or `1.5e12` as a number.

    Raises
    ------
    SpecError
        when it is none.
    """
    from autodeploy.kit.errors import SpecError
    from autodeploy.specs.reading import token_amount

    value = token_amount(text)
    if value is None or not 0.0 < value <= 1e18:
        raise SpecError(
            Message("field_fault.is_no_number", value=repr(text[:40])),
            path="--tokens",
            hint=Message("common.such_as", example="13T"),
        )
    return value


def recommendation_text(recommendation: Recommendation, lang: Language = "en") -> str:
    """The answer, the plan's degrees, and throughput by number of cards."""
    from autodeploy.cli.output import table_text
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import command_text, degrees

    lines = [in_language(recommendation.message, lang)]
    if recommendation.plan is not None:
        lines.append(f"  {degrees(recommendation.plan.strategy)}")
    rows = [
        [
            f"{row.num_npus:,}",
            f"{row.tokens_per_s:,.0f}",
            "" if row.days is None else f"{row.days:.1f}",
            f"{100.0 * row.efficiency:.0f} %",
            command_text(lang, "estimated" if row.estimated else "planned"),
        ]
        for row in recommendation.scaling
    ]
    names = ("num_npus", "days", "efficiency", "basis")
    cards, days, efficiency, basis = (command_text(lang, name) for name in names)
    columns = [cards, "tokens/s", days, efficiency, basis]
    return "\n".join([*lines, "", table_text(columns, rows, right=frozenset({0, 1, 2, 3}))])


def _here(spec: Spec, days: float, tokens: float | None, max_npus: int | None) -> Recommendation:
    """With the overlay of its cluster, where the database of the settings has been used before."""
    from autodeploy.analysis.what_if.recommend import recommend as recommendation_of
    from autodeploy.kit.settings import load_settings
    from autodeploy.search import planner

    settings = load_settings()
    if spec.cluster.overlay == "auto" and settings.has_database():
        from autodeploy.service.session import open_services

        with open_services(settings) as services:
            return services.recommend(spec, days=days, tokens=tokens, max_npus=max_npus)
    return recommendation_of(spec, planner=planner, days=days, tokens=tokens, max_npus=max_npus)
