"""`autodeploy export` and `import`."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import Lang, LanguageOption, Output, Server, language, read_spec
from autodeploy.formats.registry import FORMATS
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.formats.common.import_result import ImportResult
    from autodeploy.messages import Language
    from autodeploy.service.searches.views import PlanView
    from autodeploy.service.session import Services
    from autodeploy.specs.diagnostics import Diagnostics
    from autodeploy.specs.planset import Plan, PlanSet


export_app = typer.Typer()


@export_app.command(
    epilog="Examples: autodeploy export p_7kq2abcd --to mindspeed-llm -o pretrain.sh; "
    "autodeploy export spec.yaml --to mindspeed-llm -o pretrain.sh"
)
def export(
    subject: Annotated[
        str, typer.Argument(metavar="PLAN_ID|SPEC", help="plan id from the report, p_..., or a spec with a strategy")
    ],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help=Message("common.one_of", names=", ".join(FORMATS)))],
    rehearse: Annotated[
        str | None,
        typer.Option("--rehearse", metavar="NODES", help="export its rehearsal on 1node, 8nodes, ... instead"),
    ] = None,
    server: Server = None,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Export a plan, or the strategy in a spec, to another format. Reports are in the language of `--lang`.

    A launch that a rule of the framework stops is refused, with the rule.
    """
    from autodeploy.cli.output import notify, write_report
    from autodeploy.cli.what_if import PLAN_ID
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

    Raises NotFoundError when the database has no such plan.
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


import_file_app = typer.Typer()
EXAMPLE = "Example: autodeploy import pretrain.sh --cluster cloudmatrix-384 -o spec.yaml"

Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="PROFILE", help="hardware profile; required if the file does not name one"),
]
Device = Annotated[str | None, typer.Option("--device", metavar="GRADE", help="chip grade, e.g. 910B3")]
NumNpus = Annotated[int | None, typer.Option("--num-npus", min=1, help="number of cards, if the file does not give it")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="variable that the launch script expects; repeatable"),
]


TargetRelease = Annotated[
    str | None,
    typer.Option(
        "--target-release", metavar="RELEASE", help="release of the framework; default: of the checkout around the file"
    ),
]


@import_file_app.command("import", epilog=EXAMPLE)
def import_file(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="config.json, launch script, YAML or TOML of a framework, or spec"),
    ],
    show: Annotated[
        bool,
        typer.Option(
            "--show", help="show parameters, what was taken, defaulted, ignored, contradicted, and is not modelled"
        ),
    ] = False,
    name: Annotated[str | None, typer.Option("--name", help="name of the model in the spec")] = None,
    cluster: Cluster = None,
    device: Device = None,
    num_npus: NumNpus = None,
    settings: Settings = None,
    target_release: TargetRelease = None,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Turn a model's config.json, a launch script or a framework's YAML into a spec. Scripts are never run."""
    from autodeploy.cli.output import notify, talk, write_report
    from autodeploy.kit.yaml_text import yaml_text
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import command_text, titled

    imported = read_foreign(file, settings, name, target_release, cluster)
    for doubt in imported.diagnostics.doubts:
        talk(titled(language(lang), command_text(language(lang), "unmodelled"), in_language(doubt, language(lang))))
    for said in imported.assumptions:
        notify("doubt", text=in_language(said, language(lang)))
    if show:
        size = model_text(imported.document.get("model"), language(lang))
        write_report("\n\n".join(filter(None, (size, diagnostics_text(imported.diagnostics, language(lang))))), output)
        return
    write_report(yaml_text(_document(imported, cluster, device, num_npus)), output)


def read_foreign(
    file: Path,
    settings: list[str] | None = None,
    name: str | None = None,
    release: str | None = None,
    cluster: str | None = None,
) -> ImportResult:
    """The file as `import_file` reads it, with variables given as NAME=VALUE, for a release and a profile's chips.

    Raises SpecError when the file can't be read, or a setting isn't NAME=VALUE.
    """
    from autodeploy.formats import import_document
    from autodeploy.specs.spec import vendor_of

    vendor = vendor_of(cluster)
    return import_document.import_file(
        file, variables=variables_of(settings), name=name, release=release, vendor=vendor
    )


def variables_of(settings: list[str] | None) -> dict[str, str]:
    """Variables given as NAME=VALUE.

    Raises SpecError when a setting isn't NAME=VALUE.
    """
    from autodeploy.kit.errors import SpecError

    variables = {}
    for setting in settings or ():
        variable, equals, value = setting.partition("=")
        if not equals or not (variable.isidentifier() or variable.isdecimal()):
            raise SpecError(
                Message("common.is_not_of_form", value=repr(setting[:100]), form="NAME=VALUE"),
                path="--set",
                hint="--set TP=8",
            )
        variables[variable] = value
    return variables


def _document(imported: ImportResult, cluster: str | None, device: str | None, num_npus: int | None) -> dict[str, Any]:
    """A whole spec, checked; of a model alone its part, and of a script without chips what it says."""
    from autodeploy.cli.output import notify

    named = cluster is not None or "cluster" in imported.document
    if imported.kind == "hf-config" and not named:
        return dict(imported.document)
    if not named:
        notify("no_cluster")
        return dict(imported.document)
    document = imported.spec_document(cluster, device, num_npus)
    if "training" in document:
        imported.spec(cluster, device, num_npus)
    return document


def model_text(model: Any, lang: Language = "en") -> str:
    """Total and activated parameters of a model that was read; nothing where it isn't whole."""
    from pydantic import ValidationError

    from autodeploy.reports.wording import command_text
    from autodeploy.specs.model import ModelSpec

    try:
        spec = ModelSpec.model_validate(model)
    except ValidationError:
        return ""
    total, active = (f"{count / 1e9:,.1f}" for count in (spec.total_params(), spec.active_params()))
    return command_text(lang, "model_title", title=spec.name, total=total, active=active)


def diagnostics_text(diagnostics: Diagnostics, lang: Language = "en") -> str:
    """All notes of an import: a table for each fate, without the columns that say nothing there."""
    from autodeploy.cli.output import table_text
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import command_text

    titles = command_text.each(lang, "line", "in_the_file", "in_the_spec", "value", "why")
    blocks = []
    for fate in ("unmodelled", "taken", "defaulted", "ignored", "contradicted"):
        notes = getattr(diagnostics, fate)
        beside = fate == "taken"  # few of these have a reason, and a column for it would fold all others
        rows = []
        for note in notes:
            reason = in_language(note.reason, lang)
            cells = (_both(note.value, reason), "") if beside else (note.value, reason)
            rows.append((*_place(note.source), note.field, *cells))
        used = [column for column in range(len(titles)) if any(row[column] for row in rows)]
        if rows:
            unfolded = frozenset(range(2 if len(titles) - 1 in used else 3))
            table = table_text([titles[i] for i in used], [[row[i] for i in used] for row in rows], whole=unfolded)
            blocks.append(f"{command_text(lang, fate)} ({len(rows)})\n{table}")
    return "\n".join(blocks)


def _place(source: str) -> tuple[str, str]:
    """`line 60: --flag` as its number and its name."""
    place, colon, name = source.partition(": ")
    return (place.removeprefix("line "), name) if colon and place.startswith("line ") else ("", source)


def _both(value: str, reason: str) -> str:
    return f"{value} ({reason})" if reason else value
