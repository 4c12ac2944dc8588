"""`autodeploy export`: a stored plan as a launch script or a document."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, Output, Server, language
from autodeploy.messages import Message
from autodeploy.stack.frameworks import launchers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.services.session import Services
    from autodeploy.services.views import PlanView
    from autodeploy.specs.planset import Plan, PlanSet

app = typer.Typer()
FORMATS = ", ".join((*launchers(), "ascendjob", "chrome-trace", "json", "csv", "markdown", "html"))


@app.command(epilog="Example: autodeploy export p_7kq2abcd --to mindspeed-llm -o pretrain.sh")
def export(
    plan_id: Annotated[str, typer.Argument(metavar="PLAN_ID", help="plan id from the report, p_...")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=Message("common.one_of", names=FORMATS))],
    rehearse: Annotated[
        str | None,
        typer.Option("--rehearse", metavar="NODES", help="export its rehearsal on 1node, 2nodes or 4nodes instead"),
    ] = None,
    server: Server = None,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Export a plan to another format. Reports are in the language of `--lang`."""
    from autodeploy.cli.output import notify, write_report
    from autodeploy.messages import in_language

    if server is not None:
        from autodeploy.cli.remote import connect

        with connect(server) as client:
            write_report(client.export(plan_id, to, lang=language(lang), rehearse=rehearse), output)
        return
    with stored(plan_id) as (services, view):
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
    from autodeploy.errors import NotFoundError
    from autodeploy.services.session import open_services
    from autodeploy.settings import load_settings

    with open_services(load_settings()) as services:
        try:
            view = services.searches.plan(plan_id)
        except NotFoundError as error:
            raise NotFoundError(str(error), hint="autodeploy plan SPEC") from error
        if view.stale:
            notify("stale_plan", plan=plan_id)
        yield services, view


def stored_plan(plan_id: str) -> tuple[PlanSet, Plan]:
    """The plan of that id and the search that found it; as `stored`."""
    with stored(plan_id) as (_, view):
        return view.plan_set, view.plan
