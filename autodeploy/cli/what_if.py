"""`autodeploy recommend`, `improve`, `why-not` and `compare-clusters`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.check import LaunchFile, LaunchOptions
from autodeploy.cli.conversion import Cluster, Device, NumNpus, Settings, TargetRelease  # noqa: TC001 - typer reads annotations
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
from autodeploy.cli.remote import answer_of
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autodeploy.messages import Language
    from autodeploy.specs.answers import ClusterComparison, ClusterOffer, Improvement, ImproveReport, Recommendation
    from autodeploy.specs.spec import Spec


recommend_app = typer.Typer()


@recommend_app.command(
    epilog="Examples: autodeploy recommend spec.yaml --tokens 13T --days 30; "
    "autodeploy recommend spec.yaml --budget 200k-card-hours; "
    "autodeploy recommend spec.yaml --days 30 --cluster ascend-800t-a2=1.2 --cluster cloudmatrix-384=2.6"
)
def recommend(
    spec_file: SpecFile,
    days: Annotated[float | None, typer.Option("--days", metavar="D", help="deadline in days")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="B",
            help="most to spend: 200k card-hours, or money at run.price_per_npu_hour",
        ),
    ] = None,
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
    """Find the fewest cards that meet a deadline, or the most that a budget pays for. Exit code 3: none does."""
    from autodeploy.cli.output import write_answer
    from autodeploy.kit.errors import SpecError
    from autodeploy.specs.questions import RecommendRequest

    if days is None and budget is None:
        raise SpecError(
            Message("common.is_required", name="--days"),
            path="--days",
            hint=Message("common.at_least_one_of", names="--days, --budget"),
        )
    if days is not None and not 0.0 < days <= 36_500.0:
        raise SpecError(Message("common.is_outside", value=f"{days:g}", range="(0, 36500]"), path="--days")
    spec, amount = read_spec(spec_file), None if tokens is None else token_count(tokens)
    hours = None if budget is None else _budget_hours(spec, budget)
    asked = {"days": days, "tokens": amount, "max_npus": max_npus, "npu_hours": hours}
    asked = {name: value for name, value in asked.items() if value is not None}
    if cluster and days is None:
        raise SpecError(Message("common.is_required", name="--days"), path="--days")
    if cluster:
        compare_clusters(spec, [offer_of(text) for text in cluster], asked, server, output_format, output, lang)
        return
    request = RecommendRequest.about(spec, **asked)
    found = answer_of(server, lambda of: of.recommend(request))
    write_answer(found, output_format, output, lambda: recommendation_text(found, language(lang)))
    if found.num_npus is None:
        raise typer.Exit(INFEASIBLE)


def _budget_hours(spec: Spec, text: str) -> float:
    """`200k card-hours` as card-hours; a bare amount is money at the spec's price of a card-hour.

    Raises SpecError when it is no amount, or money and the spec has no price.
    """
    from autodeploy.analysis.what_if.recommend import budget_in_hours
    from autodeploy.kit.errors import SpecError
    from autodeploy.specs.reading import token_amount

    hours = re.fullmatch(r"(.+?)[\s-]*(?:card|npu)[\s-]*hours?", text.strip(), re.IGNORECASE)
    amount = token_amount(hours[1] if hours else text)
    if not amount:
        raise SpecError(
            Message("common.is_not_of_form", value=repr(text[:40]), form="N | N card-hours"),
            path="--budget",
            hint=Message("common.such_as", example="200k card-hours"),
        )
    return amount if hours else budget_in_hours(spec, amount) or amount


def offer_of(text: str) -> ClusterOffer:
    """`cloudmatrix-384=2.6` or `ascend-800t-a2:910B3=1.2`: a profile, perhaps a chip grade, and its price.

    Raises SpecError when the price is missing or is none.
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
    from autodeploy.cli.output import write_answer
    from autodeploy.kit.errors import SpecError
    from autodeploy.specs.answers import MAX_CLUSTERS
    from autodeploy.specs.questions import CompareClustersRequest

    if len(offers) > MAX_CLUSTERS:
        raise SpecError(
            Message("field_fault.has_entries", count=len(offers)),
            path="--cluster",
            hint=Message("field_fault.at_most", bound=MAX_CLUSTERS),
        )
    request = CompareClustersRequest.about(spec, clusters=[each.model_dump(mode="json") for each in offers], **asked)
    comparison = answer_of(server, lambda of: of.compare_clusters(request))
    write_answer(comparison, output_format, output, lambda: clusters_text(comparison, language(lang)))
    if comparison.cheapest is None:
        raise typer.Exit(INFEASIBLE)


def clusters_text(comparison: ClusterComparison, lang: Language = "en") -> str:
    """The cheapest cluster, and a row for each number of cards that was planned for."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.comparison import cluster_lines, cluster_table

    table = cluster_table(comparison, lang)
    return "\n".join(
        [*cluster_lines(comparison, lang), "", table_text(table.titles, table.rows, right=frozenset(table.right))]
    )


def token_count(text: str) -> float:
    """`13T`, `500B` or `1.5e12` as a number.

    Raises SpecError when it is none.
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
    from autodeploy.reports.wording import command_text, degrees, quantity

    lines = [in_language(recommendation.message, lang)]
    if recommendation.plan is not None:
        lines.append(f"  {degrees(recommendation.plan.strategy)}")
    rows = [
        [
            f"{row.num_npus:,}",
            f"{row.tokens_per_s:,.0f}",
            "" if row.days is None else f"{row.days:.1f}",
            f"{100.0 * row.efficiency:.0f} %",
            "" if row.npu_hours is None else quantity(row.npu_hours),
            "; ".join(
                [
                    command_text(lang, "estimated" if row.estimated else "planned"),
                    *([in_language(row.note, lang)] if row.note else []),
                ]
            ),
        ]
        for row in recommendation.scaling
    ]
    names = ("num_npus", "days", "efficiency", "npu_hours", "basis")
    cards, days, efficiency, hours, basis = command_text.each(lang, *names)
    columns = [cards, "tokens/s", days, efficiency, hours, basis]
    return "\n".join([*lines, "", table_text(columns, rows, right=frozenset({0, 1, 2, 3, 4}))])


improve_app = typer.Typer()


@improve_app.command(
    epilog="Examples: autodeploy improve pretrain.sh --cluster cloudmatrix-384; autodeploy improve spec.yaml -f json"
)
def improve(
    file: LaunchFile,
    cluster: Cluster = None,
    device: Device = None,
    num_npus: NumNpus = None,
    settings: Settings = None,
    target_release: TargetRelease = None,
    server: Server = None,
    output_format: SimpleFormat = ListFormat.TABLE,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Find the three changes of a launch that gain most, and the best that keep its checkpoints loadable."""
    from autodeploy.cli.output import write_answer
    from autodeploy.specs.questions import ImproveRequest

    request = LaunchOptions(file, settings, cluster, device, num_npus, target_release).request(ImproveRequest)
    report = answer_of(server, lambda of: of.improve(request))
    write_answer(report, output_format, output, lambda: improve_text(report, language(lang)))


def improve_text(report: ImproveReport, lang: Language = "en") -> str:
    """The launch, then its improvements as a table, then those that keep the layout where they are others."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.recommendation import rescaled_line
    from autodeploy.reports.wording import command_text, excess_words, seconds, wrap

    plan = report.plan
    lines = [command_text(lang, "as_it_is", step=seconds(plan.step_time_s), peak=f"{plan.peak_memory_gib:.1f}")]
    if not plan.fits:
        lines.append("  " + excess_words(plan, lang))
    if (rescaled := rescaled_line(plan, lang)) is not None:
        lines += wrap(rescaled, hanging="  ")
    columns = command_text.each(lang, "change", "gain", "s_per_step")
    columns += ["GiB", *command_text.each(lang, "checkpoint", "in_the_spec")]
    shown = list(report.improvements)
    shown += [other for other in report.keeping_layout if other.name not in {i.name for i in shown}]
    if shown:
        lines.append(table_text(columns, [_improve_cells(i, lang) for i in shown], right=frozenset({1, 2, 3})))
        if any(abs(each.memory_gain_pct) >= 0.1 for each in shown):
            lines.append(command_text(lang, "memory_beside") + "\n")
        lines += _flag_lines(shown, lang)
    else:
        lines.append(command_text(lang, "nothing_gains", count=report.tried) + "\n")
    for key, other in (("larger_batch", report.batch), ("fewer_cards", report.fewer_cards)):
        if other is not None:
            lines += wrap(command_text(lang, key, value=f"{other.value:,}", gain=f"{other.gain_pct:.1f}"))
    if report.best_gain_pct is not None:
        gains = report.best_gain_pct > 0.0
        gain = {"gain": f"{report.best_gain_pct:.1f}"} if gains else {}
        lines.append(command_text(lang, "best_gains" if gains else "no_faster_plan", **gain) + "\n")
    return "\n".join(lines)


def _improve_cells(improvement: Improvement, lang: Language) -> list[str]:
    from autodeploy.reports.wording import change_name, check_text, command_text, seconds

    beside = improvement.memory_gain_pct
    return [
        change_name(lang, improvement.name),
        f"{improvement.gain_pct:+z.1f} %" + (f" ({beside:+.1f} %)" if abs(beside) >= 0.1 else ""),
        seconds(improvement.step_time_s),
        f"{improvement.peak_memory_gib:.1f}",
        check_text(lang, "checkpoint_loaded") if improvement.keeps_checkpoint_layout else command_text(lang, "convert"),
        ", ".join(f"{name} {_value(value)}" for name, value in improvement.changes.items()),
    ]


def _flag_lines(shown: Sequence[Improvement], lang: Language) -> list[str]:
    """Below the table, for the author of a script: the flags that each change adds and drops."""
    from autodeploy.reports.wording import change_name, command_text, report_text, titled, wrap

    lines = []
    for improvement in shown:
        flags_by_key = [("add_flags", improvement.add_flags), ("drop_flags", improvement.drop_flags)]
        flags = report_text(lang, "semicolon").join(
            command_text(lang, key, flags=" ".join(f)) for key, f in flags_by_key if f
        )
        if flags:
            of_change = titled(lang, change_name(lang, improvement.name), flags)
            lines += wrap(of_change, hanging="  ")
    return [*lines, ""] if lines else []


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(_value(item) for name, item in value.items() if name != "per_stage")
    if isinstance(value, list | tuple):
        return "/".join(_value(item) for item in value)
    return str(value)


why_not_app = typer.Typer()
PLAN_ID = re.compile(r"p_[a-z2-7]{8}")


@why_not_app.command("why-not", epilog="Example: autodeploy why-not spec.yaml --strategy tp=8,pp=4,ep=32")
def why_not(
    subject: Annotated[str, typer.Argument(metavar="SPEC|PLAN_ID", help="a spec, or the id of a plan to change")],
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy", metavar="AXIS=VALUE,...", help="axes to fix, e.g. tp=8,pp=4; the others are optimised"
        ),
    ],
    server: Server = None,
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Explain why a strategy was not chosen: the rule it violates, the memory it lacks, or what it costs."""
    from autodeploy.cli.output import write_answer
    from autodeploy.specs.questions import WhyNotRequest

    wanted = parse_changes(strategy)
    if PLAN_ID.fullmatch(subject):
        request = WhyNotRequest(plan_id=subject, strategy=wanted)
    else:
        request = WhyNotRequest.about(read_spec(subject), strategy=wanted)
    answer = answer_of(server, lambda of: of.why_not(request))
    write_answer(answer, output_format, None, lambda: answer_text(answer, language(lang)))


def answer_text(answer: Any, lang: Language = "en") -> str:
    """The rule, what it would cost and the nearest strategies that pass; what was completed."""
    from autodeploy.reports.comparison import answer_lines
    from autodeploy.reports.wording import change_lines, report_text

    first, *rest = answer_lines(answer, lang)
    lines = [first, *("  " + text for text in rest)]
    if answer.nearest:
        lines.append("  " + report_text(lang, "nearest_changes"))
        lines += [f"    - {change}" for change in change_lines(answer.nearest, lang)]
    return "\n".join(lines)


def parse_changes(text: str) -> dict[str, Any]:
    """`tp=8,pp=4,rl.placement=async` as a mapping; numbers are numbers, and true and false truth values.

    Raises SpecError when a part is not AXIS=VALUE.
    """
    from autodeploy.kit.errors import FieldError, SpecError

    wanted: dict[str, Any] = {}
    bad = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not (name and sign and value):
            bad.append(
                FieldError(
                    "--strategy",
                    Message("common.is_not_of_form", value=repr(part), form="AXIS=VALUE"),
                    Message("common.such_as", example="tp=8,pp=4,schedule=1f1b"),
                )
            )
        else:
            wanted[name.lower()] = _changed_value(value)
    if bad or not wanted:
        raise SpecError(
            errors=tuple(bad)
            or (
                FieldError(
                    "--strategy", Message("field_fault.is_empty"), Message("common.such_as", example="tp=8,pp=4")
                ),
            )
        )
    return wanted


def _changed_value(text: str) -> int | float | bool | str:
    """A number, a truth value, or the word that it is."""
    if text in ("true", "false"):
        return text == "true"
    if text.isdecimal():
        return int(text)
    return float(text) if re.fullmatch(r"\d*\.\d+", text) else text
