"""`autodeploy replay`: all stored runs under this release, as a gate for an upgrade."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, Output, SimpleFormat, language

app = typer.Typer()


@app.command(epilog="Example: autodeploy replay --allowed-mean 0.5 --allowed-run 5")
def replay(
    cluster: Annotated[str | None, typer.Option("--cluster", help="runs of this cluster only")] = None,
    allowed_mean: Annotated[
        float, typer.Option("--allowed-mean", min=0.0, max=1000.0, help="growth of the mean error, percentage points")
    ] = 0.5,
    allowed_run: Annotated[
        float, typer.Option("--allowed-run", min=0.0, max=1000.0, help="growth of one run's error, percentage points")
    ] = 5.0,
    output: Output = None,
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Predict all stored runs with this release. Exit code 1: errors grew by more than allowed."""
    from autodeploy.cli.exits import GATE_FAILED
    from autodeploy.cli.output import json_text, notify, table_text, write_report
    from autodeploy.kit.settings import load_settings
    from autodeploy.reports.wording import command_text
    from autodeploy.service.runner.planning import load_planner
    from autodeploy.service.runs.replay import replay as replay_runs
    from autodeploy.service.session import open_services

    with open_services(load_settings()) as services:
        replayed = replay_runs(services.database, load_planner(), cluster=cluster)
    passes = replayed.passes(allowed_mean / 100.0, allowed_run / 100.0)
    if output_format is ListFormat.JSON:
        runs = [asdict(run) for run in replayed.runs]
        figures = {"mean_before": replayed.mean_before, "mean_after": replayed.mean_after, "passes": passes}
        write_report(json_text({**figures, "runs": runs}), output)
    else:
        names = ("run", "cluster", "measured", "error", "peak_memory")
        titles = [command_text(language(lang), name) for name in names]
        rows = [
            [
                run.id,
                run.cluster,
                "" if run.measured_s is None else f"{run.measured_s:.4g} s",
                " -> ".join(filter(None, (_share(run.error_before), run.refused or _share(run.error_after)))),
                " -> ".join(filter(None, (_share(run.memory_error_before), _share(run.memory_error_after)))),
            ]
            for run in replayed.runs
        ]
        write_report(table_text(titles, rows, right=frozenset({2, 3})), output)
    if not replayed.runs:
        notify("replay_nothing")
    if replayed.mean_before is not None and replayed.mean_after is not None:
        before, after = (f"{100 * mean:.1f} %" for mean in (replayed.mean_before, replayed.mean_after))
        notify("before_now", name="MAPE", before=before, after=after)
    if not passes:
        notify("replay_fails", runs=", ".join(run.id for run in replayed.worse(allowed_run / 100.0)[:20]) or "-")
        raise typer.Exit(GATE_FAILED)


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"
