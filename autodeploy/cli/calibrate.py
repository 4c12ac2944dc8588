"""`autodeploy calibrate`: fit a profile's efficiencies to measured runs and benchmarks."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import BenchmarkOp, BenchmarkRanks, Lang, LanguageOption
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.measured_run import MeasuredRun
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

app = typer.Typer()


@app.command(
    epilog="Examples: autodeploy calibrate runs.jsonl --profile ascend-800t-a2 -o overlay.yaml; "
    "autodeploy calibrate train.log hccl.txt gemm.csv --plan p_7kq2abcd --profile ascend-800t-a2 -o overlay.yaml; "
    "autodeploy calibrate ASCEND_PROFILER_OUTPUT/ --plan p_7kq2abcd --profile ascend-800t-a2 --page run.md "
    "-o overlay.yaml; "
    "autodeploy calibrate autodeploy_probe.json --profile cloudmatrix-384 -o overlay.yaml"
)
def calibrate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="records (JSON Lines), or a cluster's own: training log, step times, step_trace_time.csv, "
            "GEMM table, hccl_test output, a folder ASCEND_PROFILER_OUTPUT; or the file of a probe",
        ),
    ],
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="hardware profile to calibrate")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OVERLAY.yaml", help="file to write the overlay to")
    ],
    plan: Annotated[str | None, typer.Option("--plan", metavar="PLAN_ID", help="stored plan that was run")] = None,
    spec: Annotated[
        Path | None, typer.Option("--spec", metavar="SPEC", help="spec with the strategy that was run")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page", metavar="PAGE.md", help="also write a page on where the profiled run differs from the plan"
        ),
    ] = None,
    op: BenchmarkOp = None,
    ranks: BenchmarkRanks = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Fit a few physical efficiencies to measurements; the overlay has their values and the goodness of fit."""
    from autodeploy.cli.output import write_report
    from autodeploy.kit.errors import SpecError

    folders = [file for file in files if file.is_dir()]
    if len(folders) > 1 or (page is not None and not folders):
        raise SpecError(Message("cli.one_folder"), path="FILE")
    records = [file for file in files if not file.is_dir() and _is_record_file(file)]
    if records and len(records) < len(files):
        raise SpecError(Message("cli.records_beside_own_runs", file=records[0].name), path="FILE")
    names = ", ".join(file.name for file in files)
    if len(files) == 1 and not folders and _is_probe(files[0]):
        document = _from_probe(files[0], profile)
    elif records:
        document = _from_records(records, profile)
    else:
        runs = _runs([file for file in files if not file.is_dir()], op, ranks)
        document = _from_runs(runs, profile, plan, spec, folders[0] if folders else None, page)
    from autodeploy.kit.yaml_text import profile_text

    write_report(profile_text(document, f"Fitted by autodeploy calibrate to {names}."), output)


def _is_record_file(file: Path) -> bool:
    """Whether the first line is a record: a run with its whole model, cluster and strategy."""
    with file.open(encoding="utf-8", errors="replace") as stream:
        first = stream.readline(1_000_000).strip()
    return not first or (first.startswith("{") and '"measured"' in first and '"model"' in first)


def _is_probe(file: Path) -> bool:
    from autodeploy.analysis.probe.document import is_probe_text

    with file.open(encoding="utf-8", errors="replace") as stream:
        return is_probe_text(stream.read(200))


def _from_probe(file: Path, profile_name: str) -> dict[str, Any]:
    """The overlay, with a table of what changed on stderr: old, new, by how much of its prior, from how much."""
    from autodeploy.analysis.probe.document import read_probe_file
    from autodeploy.analysis.probe.fit import fit_probe
    from autodeploy.cli.options import current_language
    from autodeploy.cli.output import notify, table_text, talk
    from autodeploy.reports.wording import command_text
    from hardware_profiles import load_profile

    probe = read_probe_file(file)
    fitted = fit_probe(load_profile(profile_name), probe)
    read, skipped = len(probe.measurements), len(probe.skipped)
    notify("measurements_on", where=f"{probe.device.name} x {probe.ranks}", count=f"{read}/{read + skipped}")

    def titles(*names: str) -> list[str]:
        return [command_text(current_language(), name) for name in names]

    rows = [
        [each.path, f"{each.old:.4g}", f"{each.new:.4g}", each.unit, f"{each.sigmas:+.1f}", str(each.points)]
        for each in fitted.changes
    ]
    columns = titles("number", "before", "after", "unit", "prior_sigmas", "measurements")
    talk(table_text(columns, rows, right=frozenset({1, 2, 4, 5}), whole=frozenset({0})))
    rows = [
        [
            each.kind,
            str(each.points),
            f"{100 * each.before:.0f} % -> {100 * each.after:.0f} %",
            f"{100 * each.bias:.0f} %",
        ]
        for each in fitted.agreements
    ]
    columns = titles("kind", "measurements", "error", "bias")
    talk(table_text(columns, rows, right=frozenset({1, 2, 3})))
    for each in fitted.changes:
        if each.limited:
            notify("at_its_limit", path=each.path)
    return fitted.overlay


def _from_records(files: Sequence[Path], profile: str) -> dict[str, Any]:
    from autodeploy.calibration.profile_fit import calibrate as fit
    from autodeploy.calibration.profile_fit import overlay_of
    from autodeploy.cli.output import notify
    from autodeploy.specs.record import read_records

    result = fit([record for file in files for record in read_records(file)], profile)
    notify("measurements_on", count=len(result.records), where=profile)
    _tell_factors(result.fit.factors())
    return overlay_of(result)


def _runs(files: Sequence[Path], op: str | None, ranks: int | None) -> list[tuple[str, MeasuredRun]]:
    from autodeploy.formats.measurements.measured_file import read_measured_file

    return [(file.name, run) for file in files for run in read_measured_file(file, op=op, ranks=ranks)]


def _from_runs(
    runs: list[tuple[str, MeasuredRun]],
    profile: str,
    plan_id: str | None,
    spec_file: Path | None,
    folder: Path | None = None,
    page: Path | None = None,
) -> dict[str, Any]:
    from autodeploy.cli.options import current_language
    from autodeploy.cli.output import notify
    from autodeploy.reports.wording import command_text
    from autodeploy.service.clusters.calibration import calibrate_runs
    from autodeploy.service.runner.planning import load_planner
    from autodeploy.specs.reading import read_spec_file

    spec, plan = None, None
    if plan_id is not None:
        from autodeploy.cli.export import stored_plan

        plan_set, plan = stored_plan(plan_id)
        from autodeploy.specs.spec import spec_of

        spec = spec_of(plan_set.search)
    elif spec_file is not None:
        spec = read_spec_file(spec_file)
    if folder is not None:
        traced, plan = _traced(folder, profile, spec, plan, page)
        runs = runs + traced
    overlay, report = calibrate_runs(runs, profile, load_planner(), spec=spec, plan=plan)
    notify("measurements_on", count=len(runs), where=profile)
    _tell_factors(report.get("factors", {}))
    if "bias_before" in report:
        before, after = (f"{100 * report[name]:+.1f} %" for name in ("bias_before", "bias_after"))
        notify("before_now", name=command_text(current_language(), "bias"), before=before, after=after)
    return overlay


def _traced(
    folder: Path, profile: str, spec: Spec | None, plan: Plan | None, page: Path | None
) -> tuple[list[tuple[str, MeasuredRun]], Plan | None]:
    """What a profiler's folder measured, compared on a page, and the plan that it ran, where one is said."""
    from autodeploy.analysis.trace_comparison import compare_trace, trace_page
    from autodeploy.cli.options import current_language
    from autodeploy.cli.output import write_report
    from autodeploy.formats.measurements.profiler_tables import read_profiler_output
    from autodeploy.service.runner.planning import load_planner

    output = read_profiler_output(folder)
    if plan is None and spec is not None and spec.strategy is not None:
        plan = load_planner().estimate(spec)
    text = trace_page(compare_trace(output, profile, spec, plan), current_language())
    write_report(text, page)
    # Without what ran, the step says nothing; the products do.
    step = [(folder.name, output.step)] if output.step is not None and spec is not None else []
    products = [(folder.name, output.products)] if output.products is not None else []
    return step + products, plan


def _tell_factors(factors: dict[str, float]) -> None:
    from autodeploy.cli.output import talk

    for name, factor in factors.items():
        talk(f"  {name:<14} x {factor:6.3f}")
