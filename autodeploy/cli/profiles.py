"""`autodeploy profiles ls` and `show`."""

from __future__ import annotations

from typing import Annotated

import typer

from autodeploy.cli.options import ListFormat, SimpleFormat

app = typer.Typer(no_args_is_help=True)


@app.command("ls")
def list_all(output_format: SimpleFormat = ListFormat.TABLE) -> None:
    """List the hardware profiles that come with AutoDeploy."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from hardware_profiles import list_profiles, load_profile

    found = [load_profile(name) for name in list_profiles()]
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
            for p in found
        ]
        write_report(json_text(documents), None)
        return
    rows = [
        [p.name, p.title, ", ".join(p.devices), p.default_device, str(p.devices_per_npu), str(p.npus_per_node)]
        for p in found
    ]
    columns = ["name", "system", "devices", "default", "dies/card", "cards/node"]
    write_report(table_text(columns, rows, right=frozenset({4, 5})), None)


@app.command(epilog="Example: autodeploy profiles show cloudmatrix-384")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="a profile's name, or an own YAML file")],
    output_format: SimpleFormat = ListFormat.TABLE,
) -> None:
    """Show every number of a profile with its unit, kind and source."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from hardware_profiles import load_profile

    profile = load_profile(name)
    if output_format is ListFormat.JSON:
        write_report(json_text(profile.document.model_dump(mode="json")), None)
        return
    rows = [[path, f"{q.value:g}", q.unit, q.kind, ", ".join(q.source)] for path, q in profile.quantities.items()]
    head = f"{profile.title} ({profile.name}), devices {', '.join(profile.devices)}, default {profile.default_device}\n"
    dies = "1 die" if profile.devices_per_npu == 1 else f"{profile.devices_per_npu} dies"
    head += f"{dies} a card, {profile.npus_per_node} cards a node\n\n"
    table = table_text(["number", "value", "unit", "kind", "source"], rows, right=frozenset({1}), whole=frozenset({0}))
    sources = [[key, source.title] for key, source in profile.document.sources.items()]
    write_report(head + table + ("\n" + table_text(["source", "what it is"], sources) if sources else ""), None)
