"""`autodeploy runs` and `replay`: measured runs of plans, and calibration as it would have been."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, Output, Server, SimpleFormat, language
from autodeploy.cli.remote import done_by

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.service.session import Services
    from autodeploy.specs.measured_run import MeasuredRun
    from autodeploy.specs.resources import MovedDocument, RunDocument, RunOutcomeDocument


runs_app = typer.Typer(no_args_is_help=True)

COLUMNS = ("run", "plan", "cluster", "measured", "predicted", "error", "inside")
SHOWN_PLANS = 10
SHOWN_FACTORS = 4


@runs_app.command(epilog="Example: autodeploy runs add p_7kq2abcd train.log")
def add(
    plan_id: Annotated[str, typer.Argument(metavar="PLAN_ID", help="id of the plan that was run, p_...")],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="training log, step times (CSV, JSON lines), step_trace_time.csv, GEMM table, hccl_test",
        ),
    ] = None,
    oom: Annotated[bool, typer.Option("--oom", help="instead of FILE: a card ran out of memory")] = False,
    stage: Annotated[int | None, typer.Option("--stage", min=0, help="with --oom: pipeline stage, from 0")] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="with --oom: rank, from 0")] = None,
    asked: Annotated[float | None, typer.Option("--asked", min=0, help="with --oom: GiB requested")] = None,
    allocated: Annotated[
        float | None, typer.Option("--allocated", min=0, help="with --oom: GiB already allocated")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="note to keep with the run")] = "",
    op: Annotated[
        str | None, typer.Option("--op", help="operation of a collective benchmark, if its output does not state it")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=2, help="number of ranks of the benchmark, likewise")
    ] = None,
    rehearse: Annotated[
        str | None,
        typer.Option("--rehearse", metavar="NODES", help="the run is its rehearsal on 1node, 8nodes, ..."),
    ] = None,
    server: Server = None,
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Attach a measured run to its plan; refits its cluster's overlay and re-ranks stored plans."""
    from autodeploy.cli.output import json_text, write_report

    said = {"stage": stage, "rank": rank, "asked_gib": asked, "allocated_gib": allocated}
    met = {name: value for name, value in said.items() if value is not None}
    if oom == (file is not None) or (met and not oom):
        raise typer.BadParameter("give either FILE or --oom", param_hint="FILE")
    body: dict[str, Any] = {"note": note, "source": "out_of_memory", "out_of_memory": met}
    if file is not None:
        given = {"op": op, "ranks": ranks}
        body = {"note": note, "file": _text(file)} | {name: each for name, each in given.items() if each is not None}
    outcome = done_by(
        server,
        lambda here: _add_here(here, plan_id, body, file, rehearse),
        lambda there: there.add_run(plan_id, body, rehearse=rehearse),
    )
    as_json = output_format is ListFormat.JSON
    write_report(json_text(outcome.model_dump(mode="json")) if as_json else outcome_text(outcome, language(lang)), None)


@runs_app.command(epilog="Example: autodeploy runs follow p_7kq2abcd train.log --rehearse 8nodes --page launch.html")
def follow(
    plan_id: Annotated[str, typer.Argument(metavar="PLAN_ID", help="id of the plan that runs, p_...")],
    log: Annotated[Path, typer.Argument(metavar="LOG", help="its training log, which may still grow")],
    rehearse: Annotated[
        str | None,
        typer.Option("--rehearse", metavar="NODES", help="the run is its rehearsal on 1node, 8nodes, ..."),
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.1, max=3600, help="seconds between two looks")] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="look once instead of until Ctrl-C")] = False,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE.html", help="also write a page that loads itself again")
    ] = None,
    add_run: Annotated[bool, typer.Option("--add", help="report the run when it ends")] = False,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Show a growing log against its plan's prediction. Exit code 1: too slow to go on, or out of memory."""
    import time

    from autodeploy.analysis.following import following
    from autodeploy.cli.conversion import stored
    from autodeploy.cli.exits import GATE_FAILED
    from autodeploy.cli.output import replacing, talk, write_report
    from autodeploy.reports.following import followed_page, last_line

    spoken, shown, seen = language(lang), "", -1
    with stored(plan_id) as (services, view):
        plan = services.launched(view, rehearse)
    followed = following(plan, None)
    try:
        while True:
            size = log.stat().st_size if log.is_file() else 0
            if size != seen:
                seen, followed = size, following(plan, _so_far(log))
            line = last_line(followed, spoken)
            if page is not None:
                with replacing(page) as stream:
                    stream.write(followed_page(followed, every, spoken))
            if line != shown and not once:
                shown = line
                talk(line)
            if once or followed.verdict == "out_of_memory":
                break
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    write_report(last_line(followed, spoken) + "\n", None)
    if add_run and followed.verdict != "waiting":
        with stored(plan_id) as (services, _):
            outcome = _add_here(services, plan_id, {"file": _text(log)}, log, rehearse)
        write_report(outcome_text(outcome, spoken), None)
    if followed.verdict in {"stop", "out_of_memory"}:
        raise typer.Exit(GATE_FAILED)


def _so_far(log: Path) -> MeasuredRun | None:
    """The run in a log; None before its first iteration, or while a line is half written."""
    from autodeploy.formats.measurements.measured_file import read_measured_text
    from autodeploy.kit.errors import SpecError

    if not log.is_file():
        return None
    whole, _, _ = _text(log).rpartition("\n")
    try:
        (run,) = read_measured_text(whole)
    except (SpecError, ValueError):
        return None
    return run


@runs_app.command("ls", epilog="Example: autodeploy runs ls --cluster ascend-800t-a2")
def list_all(
    cluster: Annotated[str | None, typer.Option("--cluster", help="runs of this cluster only")] = None,
    plan_id: Annotated[str | None, typer.Option("--plan", metavar="PLAN_ID", help="runs of this plan only")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="number of runs to show")] = 50,
    server: Server = None,
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """List measured runs, newest first, with their predictions."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text

    page = done_by(
        server,
        lambda here: here.runs.list(cluster=cluster, plan_id=plan_id, limit=limit),
        lambda there: there.runs(limit=limit, cluster=cluster, plan_id=plan_id),
    )
    if output_format is ListFormat.JSON:
        write_report(json_text(page.model_dump(mode="json")["items"]), None)
        return
    spoken = language(lang)
    titles = command_text.each(spoken, *COLUMNS)
    write_report(table_text(titles, [_cells(run, spoken) for run in page.items], right=frozenset({3, 4, 5})), None)


@runs_app.command("rm", epilog="Example: autodeploy runs rm run_01m3xk7pq2w9a4fh")
def remove(
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="run id from `runs ls`, run_...")],
    server: Server = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Delete a run and refit its cluster's overlay to the remaining ones."""
    from autodeploy.cli.output import notify

    def delete(services: Services) -> None:
        from autodeploy.cli.administration import note_here

        services.runs.delete(run_id)
        note_here(services.database, "run.delete", run_id)

    done_by(server, delete, lambda there: there.delete_run(run_id))
    notify("deleted", what=run_id)


def _text(file: Path) -> str:
    from autodeploy.formats.measurements.benchmark_tables import MAX_TEXT_BYTES
    from autodeploy.specs.text_files import read_text

    return read_text(file, max_bytes=MAX_TEXT_BYTES)


def _add_here(
    services: Services, plan_id: str, body: dict[str, Any], file: Path | None, rehearse: str | None
) -> RunOutcomeDocument:
    """Stores the measurement of a body, as a server would; a fault of its text is told with the name of its file."""
    from autodeploy.cli.administration import note_here
    from autodeploy.service.clusters.overlays import measured_of_document
    from autodeploy.specs.text_files import in_file

    with nullcontext() if file is None else in_file(file):
        measured = measured_of_document(body)
    outcome = services.add_run(plan_id, measured, rehearse=rehearse)
    note_here(services.database, "run.create", outcome.run.id, plan_id=plan_id)
    return outcome


def _cells(run: RunDocument, lang: Language) -> list[str]:
    from autodeploy.reports.wording import command_text, signed_percent

    inside = "" if run.inside is None else command_text(lang, "yes" if run.inside else "no")
    times = (run.measured_step_time_s, run.predicted_step_time_s)
    seconds = ("" if time_s is None else f"{_seconds(time_s)} s" for time_s in times)
    return [run.id, run.plan_id, run.cluster, *seconds, signed_percent(run.error), inside]


def outcome_text(outcome: RunOutcomeDocument, lang: Language = "en") -> str:
    """The run, what the overlay does to the errors of its cluster, and plans whose place changed."""
    from autodeploy.cli.output import table_text
    from autodeploy.messages import in_language
    from autodeploy.reports.run_outcome import told
    from autodeploy.reports.wording import command_text, signed_percent, titled

    run, cluster = outcome.run, outcome.cluster
    lines = [titled(lang, run.id, f"{run.model} @ {run.cluster}")]
    if run.measured_step_time_s is not None:
        measured, predicted = _seconds(run.measured_step_time_s), _seconds(run.predicted_step_time_s)
        low, high = _seconds(run.predicted_low_s), _seconds(run.predicted_high_s)
        figures = {
            "measured": measured,
            "predicted": predicted,
            "error": signed_percent(run.error),
            "low": low,
            "high": high,
        }
        inside = command_text(lang, "yes" if run.inside else "no")
        lines.append("  " + command_text(lang, "run_measured", **figures, inside=inside))
    if run.measured.out_of_memory is not None:
        lines.append("  " + command_text(lang, "run_out_of_memory", predicted=f"{run.predicted_memory_gib:.1f}"))
    if cluster is not None:
        report = cluster.report
        counted: dict[str, Any] = {"where": cluster.cluster, "count": cluster.num_runs}
        lines.append("  " + command_text(lang, "measurements_on", **counted))
        if "bias_before" in report:
            before, after = signed_percent(report["bias_before"]), signed_percent(report["bias_after"])
            figures = {"name": command_text(lang, "bias"), "before": before, "after": after}
            lines.append("  " + command_text(lang, "before_now", **figures))
    if outcome.moved is not None:
        lines += [f"  {line}" for line in _moved_lines(outcome.moved, lang)]
    if paragraph := in_language(told(outcome), lang):
        lines.append("  " + paragraph)
    text = "\n".join(lines) + "\n"
    if outcome.reranked:
        rows = [
            [
                plan.plan_id,
                f"{plan.old_rank} -> {plan.new_rank}",
                f"{_seconds(plan.old_step_time_s)} -> {_seconds(plan.new_step_time_s)}",
            ]
            for plan in outcome.reranked[:SHOWN_PLANS]
        ]
        titles = command_text.each(lang, "plan", "rank", "s_per_step")
        text += "\n" + table_text(titles, rows, right=frozenset({1, 2}))
    return text


def _moved_lines(moved: MovedDocument, lang: Language) -> list[str]:
    """The plan's prediction before and after, and the factors that moved it most."""
    from autodeploy.reports.wording import command_text, signed_percent, titled

    names = ("step_time_s", "low_s", "high_s")
    was, now = ([_seconds(getattr(moved, when + name)) for name in names] for when in ("old_", ""))
    before_and_after = {"before": "{} s ({}-{})".format(*was), "after": "{} s ({}-{})".format(*now)}
    lines = [command_text(lang, "before_now", name=moved.plan_id, **before_and_after)]
    before, after = moved.old_p_fits, moved.p_fits
    if before is not None and after is not None and before != after:
        before_and_after = {"before": f"{100 * before:.0f} %", "after": f"{100 * after:.0f} %"}
        lines.append(command_text(lang, "before_now", name=command_text(lang, "p_fits"), **before_and_after))
    if moved.moved_by:
        most = list(moved.moved_by.items())[:SHOWN_FACTORS]
        by = ", ".join(f"{name} {signed_percent(math.expm1(change))}" for name, change in most)
        lines.append(titled(lang, command_text(lang, "moved"), by))
    return lines


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


replay_app = typer.Typer()


@replay_app.command(epilog="Example: autodeploy replay --allowed-mean 0.5 --allowed-run 5")
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
    from autodeploy.reports.wording import command_text, signed_percent
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
        titles = command_text.each(language(lang), "run", "cluster", "measured", "error", "peak_memory")
        rows = [
            [
                run.id,
                run.cluster,
                "" if run.measured_s is None else f"{run.measured_s:.4g} s",
                " -> ".join(
                    filter(None, (signed_percent(run.error_before), run.refused or signed_percent(run.error_after)))
                ),
                " -> ".join(
                    filter(None, (signed_percent(run.memory_error_before), signed_percent(run.memory_error_after)))
                ),
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
