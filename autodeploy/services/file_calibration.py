"""Files of measurements without a ledger: the overlay that `autodeploy calibrate` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.errors import SpecError
from autodeploy.messages import Message
from autodeploy.services.cluster_calibration import StoredRun, benchmark_overlay, calibrate_cluster
from autodeploy.services.measured_intake import check_run
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Strategy
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.jobs.planning import Planner
    from autodeploy.specs.measured_run import MeasuredRun
    from autodeploy.specs.planset import Plan

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

    Parameters
    ----------
    spec : what ran; its strategy, or the files' columns, say how. Benchmarks need none.
    plan : the plan of that spec that ran.

    Raises
    ------
    SpecError
        when the profile is another, or a run can't be told how it ran.
    """
    profile = load_profile(profile_name)
    timed = [(name, run) for name, run in named if not run.is_benchmark]
    if not timed:
        return benchmark_overlay(profile, [run for _, run in named]), {}
    if spec is None:
        message = Message("services.does_not_say_what_ran", file=timed[0][0])
        raise SpecError(message, hint=Message("services.plan_plan_id_or_spec_spec_with_strategy"))
    if load_profile(spec.cluster.profile).name != profile.name:
        raise SpecError(
            Message("services.run_was_on_not_on", one=spec.cluster.profile, other=profile_name), path="--profile"
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
        raise SpecError(
            Message("services.how_it_ran_is_not_said"),
            path="/strategy",
            hint=Message("services.strategy_in_spec_or_columns_tp_pp"),
        )
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
