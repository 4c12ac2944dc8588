"""`autodeploy import`: a foreign file as (part of) a spec."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Output  # noqa: TC001 - typer reads annotations while the program runs

if TYPE_CHECKING:
    from autodeploy.importers.diagnostics import Diagnostics

app = typer.Typer()


@app.command("import", epilog="Example: autodeploy import config.json --show")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a Hugging Face config.json")],
    show: Annotated[
        bool, typer.Option("--show", help="show what was taken, defaulted, ignored and contradicted")
    ] = False,
    name: Annotated[str | None, typer.Option("--name", help="the model's name in the spec")] = None,
    output: Output = None,
) -> None:
    """Turn a model's config.json into the `model` of a spec."""
    from autodeploy.cli.output import talk, write_report, yaml_text
    from autodeploy.importers.documents import read_document
    from autodeploy.importers.hf_config import read_hf_config

    model, diagnostics = read_hf_config(read_document(file), name or _model_name(file))
    for note in diagnostics.contradicted:
        talk(f"contradiction: {note.source} = {note.value}: {note.reason}")
    if show:
        write_report(diagnostics_text(diagnostics), output)
        return
    write_report(yaml_text({"model": model.model_dump(mode="json", exclude_unset=True)}), output)


def _model_name(file: Path) -> str | None:
    """The directory's name, which is how checkpoints are told apart; None where it says nothing."""
    directory = file.resolve().parent.name
    return directory if file.name == "config.json" and directory else None


def diagnostics_text(diagnostics: Diagnostics) -> str:
    """All notes of an import as a table."""
    from autodeploy.cli.output import table_text

    rows = [
        [fate, note.source, note.field, note.value, note.reason]
        for fate in ("taken", "defaulted", "ignored", "contradicted")
        for note in getattr(diagnostics, fate)
    ]
    return table_text(["fate", "in the file", "in the spec", "value", "why"], rows)
