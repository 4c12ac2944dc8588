"""`autodeploy profiles ls`, `show` and `this-machine`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, SimpleFormat, language

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.messages import Language
    from hardware_profiles import Profile

app = typer.Typer(no_args_is_help=True)


@app.command("ls")
def list_all(output_format: SimpleFormat = ListFormat.TABLE, lang: Lang = LanguageOption.EN) -> None:
    """List the hardware profiles that come with AutoDeploy."""
    from autodeploy.cli.output import json_text, write_report
    from hardware_profiles import list_profiles, load_profile

    profiles = [load_profile(name) for name in list_profiles()]
    if output_format is ListFormat.JSON:
        documents = [
            {
                "name": p.name,
                "title": p.title,
                "devices": list(p.devices),
                "default_device": p.default_device,
                "devices_per_npu": p.devices_per_npu,
                "npus_per_node": p.npus_per_node,
                "content_hash": p.content_hash,
            }
            for p in profiles
        ]
        write_report(json_text(documents), None)
        return
    write_report(_systems(profiles, language(lang)), None)


def _systems(profiles: Sequence[Profile], lang: Language) -> str:
    """A row a profile: its chips and the size of its nodes."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.wording import command_text

    rows = [
        [p.name, p.title, ", ".join(p.devices), p.default_device, str(p.devices_per_npu), str(p.npus_per_node)]
        for p in profiles
    ]
    names = ("name", "system", "devices", "default", "dies_a_card", "cards_a_node")
    return table_text([command_text(lang, name) for name in names], rows, right=frozenset({4, 5}))


@app.command("this-machine", epilog="Example: autodeploy profiles this-machine --processes 2 -o cpu.yaml")
def this_machine(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="PROFILE.yaml", help="file to write the profile to")
    ],
    processes: Annotated[int, typer.Option("--processes", min=1, max=4096, help="ranks that share the cores")] = 1,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Write a profile of this machine's processors; its rates are upper bounds until a probe calibrates them."""
    from autodeploy.analysis.probe.own_cpu import facts, profile_yaml
    from autodeploy.cli.output import write_report

    write_report(profile_yaml(facts(), processes), output)


@app.command(epilog="Example: autodeploy profiles show cloudmatrix-384")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="a profile's name, or your own YAML file")],
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Show every number of a profile with its unit, kind and source."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from hardware_profiles import load_profile
    from hardware_profiles.schema import INFORMATIVE

    profile = load_profile(name)
    if output_format is ListFormat.JSON:
        write_report(json_text(profile.document.model_dump(mode="json")), None)
        return
    spoken = language(lang)
    unread = command_text(spoken, "read_by_no_formula")
    rows = [
        [path, f"{q.value:g}", q.unit, q.kind + unread * (path.rpartition(".")[2] in INFORMATIVE), ", ".join(q.source)]
        for path, q in profile.quantities.items()
    ]

    def titles(*names: str) -> list[str]:
        return [command_text(spoken, name) for name in names]

    head = _systems([profile], spoken) + "\n"
    columns = titles("number", "value", "unit", "kind", "source")
    table = table_text(columns, rows, right=frozenset({1}), whole=frozenset({0}))
    sources = [[key, source.title] for key, source in profile.document.sources.items()]
    write_report(head + table + ("\n" + table_text(titles("source", "meaning"), sources) if sources else ""), None)
