"""`autodeploy export`: a stored plan, or the strategy in a spec, as a launch script or a document."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, Output, Server, language, read_spec
from autodeploy.messages import Message
from autodeploy.stack.frameworks import launchers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.service.searches.views import PlanView
    from autodeploy.service.session import Services
    from autodeploy.specs.planset import Plan, PlanSet

app = typer.Typer()
FORMATS = ", ".join((*launchers(), "ascendjob", "chrome-trace", "json", "csv", "markdown", "html"))


@app.command(
    epilog="Examples: autodeploy export p_7kq2abcd --to mindspeed-llm -o pretrain.sh; "
    "autodeploy export spec.yaml --to mindspeed-llm -o pretrain.sh"
)
def export(
    subject: Annotated[
        str, typer.Argument(metavar="PLAN_ID|SPEC", help="plan id from the report, p_..., or a spec with a strategy")
    ],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=Message("common.one_of", names=FORMATS))],
    rehearse: Annotated[
        str | None,
        typer.Option("--rehearse", metavar="NODES", help="export its rehearsal on 1node, 2nodes or 4nodes instead"),
    ] = None,
    server: Server = None,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Export a plan, or the strategy in a spec, to another format. Reports are in the language of `--lang`.

    A launch that a rule of the framework stops is refused, with the rule.
    """
    from autodeploy.cli.output import notify, write_report
    from autodeploy.cli.why_not import PLAN_ID
    from autodeploy.kit.errors import SpecError
    from autodeploy.kit.settings import load_settings
    from autodeploy.messages import in_language
    from autodeploy.service.session import open_services

    is_id = PLAN_ID.fullmatch(subject) or (subject.startswith("p_") and not Path(subject).is_file())
    spec = None if is_id else read_spec(subject)
    if spec is not None and rehearse is not None:
        raise SpecError(Message("common.excludes_it", what="--rehearse"), path="SPEC", hint="autodeploy plan SPEC")

    if server is not None:
        from autodeploy.cli.remote import connect

        with connect(server) as client:
            write_report(client.export(spec or subject, to, lang=language(lang), rehearse=rehearse), output)
        return
    if spec is not None:
        with open_services(load_settings()) as services:
            artefact = services.export_strategy(spec, to, language(lang))
    else:
        with stored(subject) as (services, view):
            artefact = services.export(view, to, language(lang), rehearse=rehearse)
    for note in artefact.notes:
        notify("note", text=in_language(note, language(lang)))
    write_report(artefact.text, output)


@contextmanager
def stored(plan_id: str) -> Iterator[tuple[Services, PlanView]]:
    """The services of this process and, among what they hold, the plan of that id.

    Raises
    ------
    NotFoundError
        when the database has no such plan.
    """
    from autodeploy.cli.output import notify
    from autodeploy.kit.errors import NotFoundError
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.session import open_services

    with open_services(load_settings()) as services:
        try:
            view = services.searches.plan(plan_id)
        except NotFoundError as error:
            raise NotFoundError(str(error), hint="autodeploy plan SPEC, autodeploy export SPEC --to FORMAT") from error
        if view.stale:
            notify("stale_plan", plan=plan_id)
        yield services, view


def stored_plan(plan_id: str) -> tuple[PlanSet, Plan]:
    """The plan of that id and the search that found it; as `stored`."""
    with stored(plan_id) as (_, view):
        return view.plan_set, view.plan
