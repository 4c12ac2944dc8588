"""`autodeploy stacks ls` and `show`."""

from __future__ import annotations

from typing import Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, SimpleFormat, language

app = typer.Typer(no_args_is_help=True)


@app.command("ls")
def list_all(output_format: SimpleFormat = ListFormat.TABLE, lang: Lang = LanguageOption.EN) -> None:
    """List the software stacks that come with AutoDeploy."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from autodeploy.stack.software import shipped_stacks

    stacks = shipped_stacks().values()
    if output_format is ListFormat.JSON:
        write_report(json_text([stack.summary() for stack in stacks]), None)
        return
    rows = [[s.name, s.title, ", ".join(s.vendors), s.target or "", "x" if s.default else ""] for s in stacks]
    titles = [command_text(language(lang), name) for name in ("name", "stack", "chips", "target", "default")]
    write_report(table_text(titles, rows, whole=frozenset({0})), None)


@app.command(epilog="Example: autodeploy stacks show megatron-lm")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="a stack's name, or your own YAML file")],
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Show every fact of a stack with what it depends on, its kind and source."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from autodeploy.specs.reading import read_stack

    stack = read_stack(name)
    if output_format is ListFormat.JSON:
        write_report(json_text(stack.document()), None)
        return

    def titles(*names: str) -> list[str]:
        return [command_text(language(lang), each) for each in names]

    rows = [[f"{section}.{fact}", *rest] for section, fact, *rest in stack.rows()]
    facts = table_text(titles("fact", "value", "kind", "source"), rows, whole=frozenset({0}))
    sources = table_text(titles("source", "meaning"), [[*each] for each in stack.sources.items()])
    write_report("\n".join((f"{stack.name}: {stack.title}\n", facts, sources)), None)
