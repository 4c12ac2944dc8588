"""From a cluster's stored measurements to its overlay, and its stored plans under that overlay."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.analysis.trace_comparison import predicted_parts, profiled_parts
from autodeploy.calibration.benchmarks import collective_overlay, gemm_overlay
from autodeploy.calibration.cluster_fit import ClusterFit, ClusterRun, fit_cluster
from autodeploy.calibration.families import work_digest
from autodeploy.calibration.overlays import rounded
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.inputs.machine import machine_of
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.search.ranking.measured_speed import MEASURED, OwnRun, work_of
from autodeploy.search.ranking.selection import objective_value
from autodeploy.service.clusters.overlays import (
    batch_of,
    check_run,
    evidence_of,
    is_ledgers,
    measured_step_s,
    without_overlay,
)
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.planset import Plan
from autodeploy.specs.spec import Spec, canonical_json
from autodeploy.specs.strategy import Strategy
from hardware_profiles import cluster_topology, load_profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.calibration.fit import FitParameter
    from autodeploy.search.planner import Planner
    from autodeploy.service.store.runs import RunTexts, SearchTexts
    from hardware_profiles import Profile


# The newest runs of at most this many configurations: a fit predicts each some forty times.
MAX_CONFIGURATIONS = 6
MAX_BENCHMARK_POINTS = 2000
# Relative spread of a profiled step: the profiler itself costs some per cent.
PROFILED_SPREAD = 0.05


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as the fit reads it."""

    id: str
    spec: Spec
    plan: Plan
    measured: MeasuredRun

    @classmethod
    def of(cls, run: RunTexts) -> StoredRun:
        """From its documents."""
        measured = MeasuredRun.model_validate_json(run.measured)
        return cls(run.id, Spec.model_validate_json(run.spec), Plan.model_validate_json(run.plan), measured)

    @property
    def group(self) -> str:
        """Runs of one configuration have one group, whatever overlay their plan was found with."""
        parts = [self.spec.model, self.spec.training, self.plan.strategy]
        content = [part.model_dump(mode="json") for part in parts] + [self.plan.num_npus_used]
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()

    @property
    def step_s(self) -> float | None:
        """The measured step."""
        return measured_step_s(self.measured, self.spec, self.plan)


@dataclass(frozen=True, slots=True)
class Refit:
    """Result of a fit to a cluster's runs: its overlay (none where they say nothing of time) and what it changes."""

    overlay: dict[str, Any]
    report: dict[str, Any]
    estimates: list[dict[str, Any]]


def refit(
    name: str, profile: str, runs: Sequence[RunTexts], searches: Sequence[SearchTexts], planner: Planner
) -> Refit:
    """The overlay of a cluster of one profile, and the stored plans of its searches under it.

    runs : newest first.
    """
    overlay, report = calibrate_cluster(name, [StoredRun.of(run) for run in runs], planner)
    estimates: list[dict[str, Any]] = []
    for search in searches if overlay else ():
        spec = Spec.model_validate_json(search.spec)
        if takes_part(spec, profile):
            plans = [Plan.model_validate_json(plan) for plan in search.plans]
            estimates += reestimated(search.id, spec, plans, overlay, planner)
    return Refit(overlay, report, estimates)


def calibrate_cluster(name: str, runs: Sequence[StoredRun], planner: Planner) -> tuple[dict[str, Any], dict[str, Any]]:
    """Overlay and report of a cluster, from its runs, newest first; both empty where nothing says anything of time."""
    if not runs:
        return {}, {}
    newest = runs[0].spec
    shipped = profile_of(_plain(newest).cluster)
    measured = [run.measured for run in runs]
    pinned = benchmark_overlay(shipped, measured, device=newest.cluster.device, precision=newest.training.precision)
    timed = _timed(runs, planner)
    # Beside the factors: what memory runs met, how far times were from what was told of them, and of which models.
    evidence = evidence_of(runs, shipped, {run.id for run in timed})
    shown = {"evidence": evidence} if evidence else {}
    if not timed:
        return _documents(name, pinned | shown, [], None) if len(pinned | shown) > 1 else ({}, {})
    base = profile_of(_plain(newest).cluster.model_copy(update={"overlay": pinned}))
    fitted = fit_cluster(
        base, timed, pinned, f"MAP fit to {len(timed)} {'run' if len(timed) == 1 else 'runs'} on {name}"
    )
    shown["evidence"] |= {"alike": fitted.alike}
    return _documents(name, fitted.overlay | shown, timed, fitted, _measured(runs, {run.id for run in timed}))


def benchmark_overlay(
    profile: Profile, runs: Sequence[MeasuredRun], *, device: str | None = None, precision: str = "bf16"
) -> dict[str, Any]:
    """Overlay of benchmarks, over the shipped profile.

    device, precision : chip grade (None: the profile's default) and number format of the matrix multiplications.
    """
    overlay: dict[str, Any] = {"profile": profile.name}
    node = cluster_topology(profile, num_npus=profile.npus_per_node)
    machine = machine_of(profile, profile.device(device), node, precision=precision)
    if points := [p for run in runs for p in run.gemm][:MAX_BENCHMARK_POINTS]:
        overlay |= gemm_overlay(profile, machine.rates, points, "GEMM benchmark")
    if exchanged := [p for run in runs for p in run.collectives][:MAX_BENCHMARK_POINTS]:
        overlay |= collective_overlay(profile, machine, exchanged, "collective benchmark")
    return overlay


def reestimated(
    search_id: str, spec: Spec, plans: Sequence[Plan], overlay: Mapping[str, Any], planner: Planner
) -> list[dict[str, Any]]:
    """The plans of one search under the overlay, in the order of the search's objective: the columns of their rows.

    Where risk is averse, plans that fit with too little probability come after those that fit, the least probable last.
    """
    cluster = spec.cluster.model_copy(update={"overlay": dict(overlay)})
    spec = spec.model_copy(update={"cluster": cluster})
    profile_hash = planner.profile_hash(cluster)
    plans_again = [(plan.plan_id, planner.reestimate(spec, plan)) for plan in plans]
    averse = spec.search.risk_terms.rule == "averse"

    def place(item: tuple[str, Plan]) -> tuple[bool, float, str]:
        plan_id, plan = item
        doubtful = averse and plan.p_fits is not None and plan.p_fits < spec.search.risk_terms.floor
        return doubtful, -(plan.p_fits or 0.0) if doubtful else objective_value(plan, spec.search.objective), plan_id

    order = sorted(plans_again, key=place)
    return [
        {
            "search_id": search_id,
            "plan_id": plan_id,
            "profile_hash": profile_hash,
            "rank": rank,
            "step_time_s": plan.step_time_s,
            "tokens_per_s_per_npu": plan.tokens_per_s_per_npu,
        }
        for rank, (plan_id, plan) in enumerate(order, start=1)
    ]


def takes_part(spec: Spec, profile_name: str) -> bool:
    """Whether plans of this spec follow the runs of its cluster."""
    return is_ledgers(spec.cluster) and profile_of(without_overlay(spec.cluster)).name == profile_name


def _plain(spec: Spec) -> Spec:
    """The spec on its cluster as shipped, overrides left out."""
    cluster = without_overlay(spec.cluster).model_copy(update={"overrides": {}})
    return spec.model_copy(update={"cluster": cluster})


def _timed(runs: Sequence[StoredRun], planner: Planner) -> list[ClusterRun]:
    groups: dict[str, None] = {}
    timed = []
    for run in runs:
        step_s = run.step_s
        if step_s is None:
            continue
        groups.setdefault(run.group)
        if len(groups) > MAX_CONFIGURATIONS:
            break
        spread = PROFILED_SPREAD if run.measured.source == "profiler" else run.measured.step_time_spread or 0.0
        times = run.measured.profiler
        parts = {} if times is None else profiled_parts(times)
        axes = run.plan.strategy.model_dump()
        work = work_digest(run.spec.model, run.spec.training.seq_length, axes)
        timed.append(ClusterRun(run.id, run.group, step_s, spread, _predictor(run, planner), parts, work))
    return timed


def _predictor(run: StoredRun, planner: Planner) -> Any:
    """`predict` of a `ClusterRun`."""

    def predict(
        overlay: dict[str, Any], numbers: Sequence[FitParameter], worlds: Sequence[Mapping[str, float]]
    ) -> list[dict[str, float]]:
        cluster = run.spec.cluster.model_copy(update={"overlay": overlay})
        spec = run.spec.model_copy(update={"cluster": cluster})
        return [predicted_parts(parts) for parts in planner.breakdowns_in(spec, run.plan, numbers, worlds)]

    return predict


def _measured(runs: Sequence[StoredRun], timed: set[str]) -> list[dict[str, Any]]:
    """The newest run of each configuration that the fit rests on, with what it did and how long a step took."""
    newest: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run.id in timed and run.group not in newest and run.step_s is not None:
            work = work_of(run.spec, run.plan.num_npus_used, batch_of(run.plan))
            own = OwnRun(run=run.id, work=work, strategy=run.plan.strategy, step_time_s=run.step_s)
            newest[run.group] = own.model_dump(mode="json")
    return list(newest.values())


def _documents(
    name: str,
    overlay: dict[str, Any],
    timed: Sequence[ClusterRun],
    fitted: ClusterFit | None,
    measured: Sequence[dict[str, Any]] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The overlay, which names its cluster and runs, and the report of what it does to their errors."""
    report: dict[str, Any] = {"factors": {}, "runs": []}
    if fitted is not None:
        several = len({run.group for run in timed}) > 1
        errors = [np.expm1(-residuals) for residuals in (fitted.before, fitted.after, fitted.left_out)]
        rows = zip(timed, *errors, strict=True)
        report = {
            "factors": {name: rounded(factor, 4) for name, factor in fitted.fit.factors().items()},
            "runs": [
                {
                    "id": run.id,
                    "error_before": rounded(float(before)),
                    "error_after": rounded(float(after)),
                    "error_left_out": rounded(float(left_out)) if several else None,
                }
                for run, before, after, left_out in rows
            ],
            "bias_before": rounded(float(errors[0].mean())),
            "bias_after": rounded(float(errors[1].mean())),
            "mape_before": rounded(float(np.abs(errors[0]).mean())),
            "mape_after": rounded(float(np.abs(errors[1]).mean())),
            "mape_left_out": rounded(float(np.abs(errors[2]).mean())) if several else None,
        }
    origin: dict[str, Any] = {"cluster": name, "runs": [run.id for run in timed]}
    if measured:
        origin[MEASURED] = list(measured)
    return {**overlay, "report": origin}, report


# Files of measurements without a ledger.
# Columns of a file that stand outside the strategy.
ELSEWHERE = {"num_npus": "cluster", "seq_length": "training", "global_batch_size": "training"}


def calibrate_runs(
    named: Sequence[tuple[str, MeasuredRun]],
    profile_name: str,
    planner: Planner,
    *,
    spec: Spec | None = None,
    plan: Plan | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Overlay and report of measurements, each with the name of its file.

    spec : what ran; its strategy, or the files' columns, say how. Benchmarks need none.
    plan : the plan of that spec that ran.

    Raises SpecError when the profile is another, or a run can't be told how it ran.
    """
    profile = load_profile(profile_name)
    timed = [(name, run) for name, run in named if not run.is_benchmark]
    if not timed:
        return benchmark_overlay(profile, [run for _, run in named]), {}
    if spec is None:
        message = Message("services.unknown_run", file=timed[0][0])
        raise SpecError(message, hint=Message("services.give_plan_or_spec"))
    if load_profile(spec.cluster.profile).name != profile.name:
        raise SpecError(
            Message("services.other_cluster", one=spec.cluster.profile, other=profile_name), path="--profile"
        )
    stored = []
    for number, (name, run) in enumerate(named, start=1):
        ran, of = (spec, plan) if plan is not None else _as_it_ran(spec, run, planner)
        check_run(run, ran, of)
        stored.append(StoredRun(f"{name}#{number}", ran, of, run))
    return calibrate_cluster(spec.cluster.ledger_name, stored, planner)


def _as_it_ran(spec: Spec, run: MeasuredRun, planner: Planner) -> tuple[Spec, Plan]:
    """The spec with what the file's columns say of it, and the prediction of that one strategy."""
    document = spec.model_dump(mode="json")
    strategy = document["strategy"] or ({} if run.strategy else None)
    if strategy is None:
        raise SpecError(Message("services.no_strategy"), path="/strategy", hint=Message("services.give_strategy"))
    for name, value in run.strategy.items():
        if name in ELSEWHERE:
            document[ELSEWHERE[name]][name] = {"value": value} if name == "global_batch_size" else value
        else:
            strategy[name] = value
    if "dp" not in run.strategy:
        strategy.pop("dp", None)
    document["strategy"] = Strategy.model_validate(strategy).model_dump(mode="json")
    ran = Spec.model_validate(document)
    return ran, planner.estimate(ran)
