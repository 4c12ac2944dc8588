"""`autodeploy probe`: one script that measures what a spec's plans compute and send."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, SpecFile, read_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

app = typer.Typer()


@app.command(
    epilog="Examples: autodeploy probe spec.yaml -o probe.py; autodeploy probe spec.yaml --nodes 2 -o probe.py; "
    "torchrun --nproc-per-node 8 probe.py; "
    "autodeploy calibrate autodeploy_probe.json --profile ascend-800t-a2 -o overlay.yaml"
)
def probe(
    spec_file: SpecFile,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="PROBE.py", help="file to write the script to")],
    plans: Annotated[
        Path | None, typer.Option("--plans", metavar="PLANSET.json", help="plans of this spec; default: plan it now")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=2, help="whole nodes that will run it")] = 1,
    ranks: Annotated[int | None, typer.Option("--ranks", min=1, help="ranks that will run it, if fewer")] = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Write a self-contained script that benchmarks the operators and messages of this spec's best plans."""
    from autodeploy.analysis.probe.script import request_of, script_of
    from autodeploy.cli.output import notify, write_report

    spec = read_spec(spec_file)
    request = request_of(spec, _plans(spec, plans), nodes=nodes, ranks=ranks)
    write_report(script_of(request), output)
    for group, instead in request["cut_groups"].items():
        notify("probe_group_cut", group=group, instead=instead)
    notify("probe_written", count=len(request["measurements"]), plans=len(request["plans"]))


def _plans(spec: Spec, file: Path | None) -> Sequence[Plan]:
    """Of the file, or the spec's own strategy, or the best of a search."""
    from pydantic import ValidationError

    from autodeploy.kit.errors import SpecError
    from autodeploy.search import planner
    from autodeploy.specs.field_errors import field_errors
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.text_files import load_json, read_text

    if file is not None:
        try:
            return PlanSet.model_validate(load_json(read_text(file))).plans
        except ValidationError as error:
            raise SpecError(errors=field_errors(error, prefix="/plans")) from None
    if spec.strategy is not None:
        return (planner.estimate(spec),)
    from autodeploy.cli.progress import SearchTalk

    with SearchTalk() as talk:
        return planner.plan(spec, progress=talk, should_cancel=talk.should_cancel, alone=True).plans
