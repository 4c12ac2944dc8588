"""`autodeploy calibrate`, `probe`, `cluster`: profiles from measurements, a probe's script, a cluster's own files."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import BenchmarkOp, BenchmarkRanks, Lang, LanguageOption, Output, SpecFile, read_spec
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.measured_run import MeasuredRun
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec


calibrate_app = typer.Typer()


@calibrate_app.command(
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
    software: Annotated[
        Path | None,
        typer.Option(
            "--software", metavar="STACK.yaml", help="also write the software's numbers, as a stack of their own"
        ),
    ] = None,
    stack: Annotated[
        str | None, typer.Option("--stack", metavar="NAME", help="stack that ran; default: that of the profile's chips")
    ] = None,
    op: BenchmarkOp = None,
    ranks: BenchmarkRanks = None,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Fit a few physical efficiencies to measurements; the overlay has their values and the goodness of fit."""
    from autodeploy.cli.output import write_report
    from autodeploy.kit.errors import SpecError

    for file in files:
        file.stat()  # one that is not there is named as such
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

    if software is not None:
        from autodeploy.calibration.overlays import software_overlay
        from autodeploy.stack.frameworks import DEFAULT
        from autodeploy.stack.releases import framework_for
        from autodeploy.stack.software import default_stack, stack_named
        from hardware_profiles import load_profile

        vendor = load_profile(profile).vendor
        ran = stack_named(stack) if stack is not None else default_stack(framework_for(DEFAULT, vendor), vendor)
        document, own = software_overlay(document, ran)
        write_report(profile_text(own, f"Fitted by autodeploy calibrate to {names}."), software)
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

    rows = [
        [each.path, f"{each.old:.4g}", f"{each.new:.4g}", each.unit, f"{each.sigmas:+.1f}", str(each.points)]
        for each in fitted.changes
    ]
    columns = command_text.each(current_language(), "number", "before", "after", "unit", "prior_sigmas", "measurements")
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
    columns = command_text.each(current_language(), "kind", "measurements", "error", "bias")
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
    from autodeploy.reports.wording import command_text, signed_percent
    from autodeploy.service.clusters.calibration import calibrate_runs
    from autodeploy.service.runner.planning import load_planner
    from autodeploy.specs.reading import read_spec_file

    spec, plan = None, None
    if plan_id is not None:
        from autodeploy.cli.conversion import stored_plan

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
        before, after = signed_percent(report["bias_before"]), signed_percent(report["bias_after"])
        notify("before_now", name=command_text(current_language(), "bias"), before=before, after=after)
    return overlay


def _traced(
    folder: Path, profile: str, spec: Spec | None, plan: Plan | None, page: Path | None
) -> tuple[list[tuple[str, MeasuredRun]], Plan | None]:
    """Measurements of a profiler's folder, compared on a page, and the plan that it ran, where one is said."""
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


probe_app = typer.Typer()


@probe_app.command(
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
    from autodeploy.cli.output import SearchTalk

    with SearchTalk() as talk:
        return planner.plan(spec, progress=talk, should_cancel=talk.should_cancel, alone=True).plans


cluster_app = typer.Typer(no_args_is_help=True)


@cluster_app.callback()
def cluster() -> None:
    """Clusters as they are."""


@cluster_app.command(
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


@cluster_app.command("export", epilog="Example: autodeploy cluster export hall-2 --author 'NPU team' -o overlay.yaml")
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
    from autodeploy.service.runs.service import exported_overlay
    from autodeploy.service.session import open_services

    with open_services(load_settings()) as services:
        document = exported_overlay(services.runs, name, author, tuple(releases or ()))
    from autodeploy.kit.yaml_text import profile_text

    write_report(profile_text(document, "Exported by autodeploy cluster export."), output)
