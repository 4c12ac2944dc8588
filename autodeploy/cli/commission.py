"""`autodeploy commission`: the launches before a plan's own."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, Output, Server, SimpleFormat, language

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.commissioning import Commissioning

commission_app = typer.Typer()


@commission_app.command(epilog="Example: autodeploy commission p_7kq2abcd --to mindspeed-llm --scripts launches")
def commission(
    plan_id: Annotated[str, typer.Argument(metavar="PLAN_ID", help="id of the plan, p_...")],
    scripts: Annotated[
        Path | None, typer.Option("--scripts", metavar="FOLDER", help="also write the script of every launch there")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="FORMAT", help="with --scripts: their format; default: the search's")
    ] = None,
    server: Server = None,
    output_format: SimpleFormat = ListFormat.TABLE,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Show launches on a node, eight nodes and an eighth of the cards: prediction, doubts and stop rule of each."""
    from autodeploy.cli.output import write_answer, write_report
    from autodeploy.reports.commissioning import commissioning_blocks
    from autodeploy.reports.tables import in_columns

    spoken = language(lang)
    commissioning, texts = (
        _here(plan_id, to, spoken, written=scripts is not None)
        if server is None
        else _there(server, plan_id, to, spoken, written=scripts is not None)
    )
    for name, text in texts.items():
        assert scripts is not None
        scripts.mkdir(parents=True, exist_ok=True)
        write_report(text, scripts / name)
    write_answer(commissioning, output_format, output, lambda: in_columns(*commissioning_blocks(commissioning, spoken)))


def _here(plan_id: str, to: str | None, lang: Language, *, written: bool) -> tuple[Commissioning, dict[str, str]]:
    """The commissioning, and the text of each script by the name of its file."""
    from autodeploy.cli.conversion import stored

    with stored(plan_id) as (services, view):
        commissioning = services.commission(view)
        target = to or str(view.plan_set.search.spec["search"]["target"])
        names = [launch.name for launch in commissioning.launches] if written else []
        artefacts = [services.export(view, target, lang, rehearse=name) for name in names]
        return commissioning, {artefact.filename: artefact.text for artefact in artefacts}


def _there(
    server: str, plan_id: str, to: str | None, lang: Language, *, written: bool
) -> tuple[Commissioning, dict[str, str]]:
    from autodeploy.cli.remote import connect
    from autodeploy.stack.frameworks import DEFAULT

    with connect(server) as client:
        commissioning = client.commissioning(plan_id)
        names = [launch.name for launch in commissioning.launches] if written else []
        texts = {name: client.export(plan_id, to or DEFAULT, lang=lang, rehearse=name) for name in names}
        ends = {name: ".sh" if text.startswith("#!") else "" for name, text in texts.items()}
        return commissioning, {f"{plan_id}_rehearsal_{name}{ends[name]}": text for name, text in texts.items()}
