"""`autodeploy cluster import` and `export`: its own files as the cluster of a spec, and its overlay for others."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import Annotated

import typer

from autodeploy.cli.options import BenchmarkOp, BenchmarkRanks, Lang, LanguageOption, Output

app = typer.Typer(no_args_is_help=True)


@app.callback()
def cluster() -> None:
    """Clusters as they are."""


@app.command(
    "import", epilog="Example: autodeploy cluster import hccl.json topo.txt hccn.txt hccl_test.txt -o cluster.yaml"
)
def import_files(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="rank table (hccl.json); map of switches (basic-tor-node-cm); what npu-smi info -t topo, hccn_tool "
            "-speed -g and hccl_test print",
        ),
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="NAME", help="profile to compare with; default: the one that matches the rank table"
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="name of the cluster in the spec")] = None,
    op: BenchmarkOp = None,
    ranks: BenchmarkRanks = None,
    leaf_nodes: Annotated[
        int | None, typer.Option("--leaf-nodes", min=1, max=25_000, help="nodes per leaf switch")
    ] = None,
    leaf_oversubscription: Annotated[
        float | None,
        typer.Option(
            "--leaf-oversubscription", min=1.0, max=1000.0, help="bandwidth to nodes over bandwidth of uplinks"
        ),
    ] = None,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Write a spec's cluster with the measurements as its overlay; report where files and profile disagree."""
    from autodeploy.analysis.cluster_import import import_cluster
    from autodeploy.cli.output import notify, write_report
    from autodeploy.formats.cluster_files import read_cluster_file
    from autodeploy.kit.yaml_text import yaml_text

    read = [(file.name, read_cluster_file(file, op=op, ranks=ranks)) for file in files]
    imported = import_cluster(read, profile, leaf_nodes=leaf_nodes, leaf_oversubscription=leaf_oversubscription)
    for said in imported.disagreements:
        notify(said.key, **said.values)
    if not imported.disagreements:
        notify("cluster_agrees", profile=imported.profile)
    if not {"num_npus", "blocks"} & imported.document.keys():
        notify("no_cluster_size")
    named = {"name": name} if name is not None else {}
    write_report(yaml_text({"cluster": imported.document | named}), output)


@app.command("export", epilog="Example: autodeploy cluster export hall-2 --author 'NPU team' -o overlay.yaml")
def export_overlay(
    name: Annotated[str, typer.Argument(metavar="CLUSTER", help="name from `runs ls`")],
    author: Annotated[str, typer.Option("--author", help="who vouches for the numbers")],
    releases: Annotated[
        list[str] | None,
        typer.Option("--release", help="software of the runs, e.g. 'CANN 8.3.RC1'; repeatable"),
    ] = None,
    output: Output = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Write a cluster's overlay for sharing: numbers, author and releases, without models and runs."""
    from autodeploy.cli.output import write_report
    from autodeploy.kit.settings import load_settings
    from autodeploy.service.clusters.overlays import exported_overlay
    from autodeploy.service.session import open_services

    with open_services(load_settings()) as services:
        document = exported_overlay(services.runs, name, author, tuple(releases or ()))
    from autodeploy.kit.yaml_text import profile_text

    write_report(profile_text(document, "Exported by autodeploy cluster export."), output)
