"""`autodeploy export`: a stored plan as a launch script or a document."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Output, Server  # noqa: TC001 - typer reads annotations while the program runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.services.session import Services
    from autodeploy.services.views import PlanView
    from autodeploy.specs.planset import Plan, PlanSet

app = typer.Typer()
FORMATS = "mindspeed-llm, megatron, mindformers, ascendjob, chrome-trace, json, csv, markdown, html"


@app.command(epilog="Example: autodeploy export p_7kq2abcd --to mindspeed-llm -o pretrain.sh")
def export(
    plan_id: Annotated[str, typer.Argument(metavar="PLAN_ID", help="as the report names it, p_...")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"one of {FORMATS}")],
    server: Server = None,
    output: Output = None,
) -> None:
    """Write a plan as something another program reads."""
    from autodeploy.cli.output import talk, write_report

    if server is not None:
        from autodeploy.cli.remote import connect

        with connect(server) as client:
            write_report(client.export(plan_id, to), output)
        return
    with stored(plan_id) as (services, view):
        artefact = services.export(view, to)
    for note in artefact.notes:
        talk(f"note: {note}")
    write_report(artefact.text, output)


@contextmanager
def stored(plan_id: str) -> Iterator[tuple[Services, PlanView]]:
    """The services of this process and, among what they hold, the plan of that id.

    Raises
    ------
    NotFoundError
        when the database has no such plan.
    """
    from autodeploy.cli.output import talk
    from autodeploy.errors import NotFoundError
    from autodeploy.services.session import open_services
    from autodeploy.settings import load_settings

    with open_services(load_settings()) as services:
        try:
            view = services.searches.plan(plan_id)
        except NotFoundError as error:
            raise NotFoundError(str(error), hint="`autodeploy plan SPEC` stores plans and prints their ids") from error
        if view.stale:
            talk(f"note: {plan_id} was computed with an older profile; plan again for current figures")
        yield services, view


def stored_plan(plan_id: str) -> tuple[PlanSet, Plan]:
    """The plan of that id and the search that found it; as `stored`."""
    with stored(plan_id) as (_, view):
        return view.plan_set, view.plan
