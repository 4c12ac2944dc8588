"""Options that several commands share."""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.spec import Spec


class ReportFormat(StrEnum):
    """Formats of a PlanSet."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    CSV = "csv"
    HTML = "html"


class ListFormat(StrEnum):
    """Formats of everything else."""

    TABLE = "table"
    JSON = "json"


class LanguageOption(StrEnum):
    """Language of reports."""

    EN = "en"
    ZH = "zh"


_LANGUAGE: ContextVar[Language] = ContextVar("language of the command that runs", default="en")


def _remember(option: LanguageOption) -> LanguageOption:
    _LANGUAGE.set(language(option))
    return option


def current_language() -> Language:
    """The language of the command that runs: that of its `--lang`."""
    return _LANGUAGE.get()


def language(option: LanguageOption) -> Language:
    """The language for the reports room."""
    return "zh" if option is LanguageOption.ZH else "en"


SpecFile = Annotated[str, typer.Argument(metavar="SPEC", help="spec in YAML or JSON; - reads YAML from stdin")]
OptionalSpecFile = Annotated[
    str | None, typer.Argument(metavar="[SPEC]", help="spec in YAML or JSON; - reads YAML from stdin")
]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="write to FILE instead of stdout")]
Format = Annotated[ReportFormat, typer.Option("-f", "--format", help="json: the PlanSet")]
SimpleFormat = Annotated[ListFormat, typer.Option("-f", "--format", help="json: the full result")]
Lang = Annotated[
    LanguageOption,
    typer.Option("--lang", help="language of reports and messages", envvar="AUTODEPLOY_LANG", callback=_remember),
]
BenchmarkOp = Annotated[
    str | None, typer.Option("--op", help="operation of a collective benchmark, if its output does not state it")
]
BenchmarkRanks = Annotated[
    int | None, typer.Option("--ranks", min=2, help="number of ranks of the benchmark, likewise")
]
Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="use the service at this URL", envvar="AUTODEPLOY_SERVER")
]


def read_spec(name: str) -> Spec:
    """The spec in a file, or on stdin for `-`; what should be checked of its model is told."""
    from autodeploy.specs.reading import read_spec_document, read_spec_file

    if name != "-":
        return read_spec_file(Path(name), doubt)
    import sys

    from autodeploy.specs.text_files import MAX_BYTES, load_yaml, refuse_long

    text = sys.stdin.read(MAX_BYTES + 1)
    refuse_long(text, MAX_BYTES)
    return read_spec_document(load_yaml(text), base_dir=Path(), doubt=doubt)


def doubt(said: str) -> None:
    """Tells the person what should be checked of a spec."""
    from autodeploy.cli.output import notify
    from autodeploy.messages import in_language

    notify("doubt", text=in_language(said, current_language()))
