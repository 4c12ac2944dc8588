"""`autodeploy calibrate`: fit a profile's efficiencies to measured runs."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import Annotated

import typer

app = typer.Typer()


@app.command(epilog="Example: autodeploy calibrate runs.jsonl --profile ascend-800t-a2 -o overlay.yaml")
def calibrate(
    records: Annotated[Path, typer.Argument(metavar="RECORDS.jsonl", help="measured runs, one JSON object a line")],
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="the profile whose runs are used")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OVERLAY.yaml", help="where the overlay goes")],
) -> None:
    """Fit a handful of efficiencies with physical meaning; the overlay says what to and how well."""
    from autodeploy.calibration.calibrate import calibrate as fit
    from autodeploy.calibration.calibrate import overlay_of, to_yaml
    from autodeploy.errors import SpecError
    from autodeploy.specs.record import read_records

    if not records.is_file():
        raise SpecError(f"{records} is not a file", hint="a JSON Lines file of measured runs")
    result = fit(list(read_records(records)), profile)
    output.write_text(
        to_yaml(overlay_of(result), f"Fitted by autodeploy calibrate to {records.name}."), encoding="utf-8"
    )
    typer.echo(f"{len(result.records)} runs on {profile}", err=True)
    for name, factor in result.fit.factors().items():
        typer.echo(f"  {name:<14} {factor:6.3f} of its prior", err=True)
