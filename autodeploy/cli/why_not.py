"""`autodeploy why-not`: what speaks against a strategy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, Server, SimpleFormat, language, read_spec
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.answers import WhyNot
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

app = typer.Typer()
PLAN_ID = re.compile(r"p_[a-z2-7]{8}")


@app.command("why-not", epilog="Example: autodeploy why-not spec.yaml --strategy tp=8,pp=4,ep=32")
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
    from autodeploy.cli.output import write_report

    answer = _here(subject, strategy) if server is None else _there(server, subject, strategy)
    if output_format is ListFormat.TABLE:
        write_report(answer_text(answer, language(lang)), None)
        return
    write_report(answer.model_dump_json(indent=2), None)


def _here(subject: str, changes: str) -> WhyNot:
    from autodeploy.search.planner import why_not as explain

    spec, strategy, best = _question(subject, changes)
    return explain(spec, strategy, best=best)


def _there(server: str, subject: str, changes: str) -> WhyNot:
    """A plan of that server, or a spec that is read here and searched there."""
    from autodeploy.cli.remote import connect

    about: dict[str, Any] = {"plan_id": subject}
    if not PLAN_ID.fullmatch(subject):
        about = {"spec": read_spec(subject).model_dump(mode="json")}
    request = {**about, "strategy": parse_changes(changes)}
    with connect(server) as client:
        return client.why_not(request)


def answer_text(answer: Any, lang: Language = "en") -> str:
    """The rule, what it would cost and the nearest strategies that pass; what was completed."""
    from autodeploy.messages import Message, in_language
    from autodeploy.reports.comparison import answer_lines
    from autodeploy.reports.wording import report_text

    first, *rest = answer_lines(answer, lang)
    lines = [first, *("  " + text for text in rest)]
    if answer.nearest:
        lines.append("  " + report_text(lang, "nearest_changes"))
        changes = (Message("common.place", place=n.change, message=n.effect) for n in answer.nearest)
        lines += [f"    - {in_language(change, lang)}" for change in changes]
    return "\n".join(lines)


def _question(subject: str, changes: str) -> tuple[Spec, Strategy, PlanSet | None]:
    """The spec and the strategy; of a plan, its own strategy with the changes, and what was found with it."""
    from autodeploy.service.launch_requests import read_strategy

    wanted = parse_changes(changes)
    if not PLAN_ID.fullmatch(subject):
        return read_spec(subject), read_strategy(wanted), None
    from autodeploy.cli.export import stored_plan

    plan_set, plan = stored_plan(subject)
    from autodeploy.specs.spec import spec_of

    return spec_of(plan_set.search), read_strategy(wanted, plan.strategy), plan_set


def parse_changes(text: str) -> dict[str, Any]:
    """`tp=8,pp=4,rl.placement=async` as a mapping; numbers are numbers, and true and false truth values.

    Raises
    ------
    SpecError
        when a part is not AXIS=VALUE.
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
            wanted[name.lower()] = _value(value)
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


def _value(text: str) -> int | float | bool | str:
    """A number, a truth value, or the word that it is."""
    if text in ("true", "false"):
        return text == "true"
    if text.isdecimal():
        return int(text)
    return float(text) if re.fullmatch(r"\d*\.\d+", text) else text
