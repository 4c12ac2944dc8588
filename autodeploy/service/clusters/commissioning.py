"""commission(plan): the launches before a plan's own, and how far each narrows what is predicted of the whole."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, get_args

import numpy as np

from autodeploy.analysis.rehearsal.doubts import doubts_of, work_of
from autodeploy.analysis.rehearsal.rehearse import launches_before, rehearse
from autodeploy.analysis.trace_comparison import predicted_parts
from autodeploy.calibration.fit import STEP, FitParameter
from autodeploy.calibration.overlays import covariance_of, rounded
from autodeploy.calibration.uncertain_numbers import cause_of
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.prediction_spread import Z80
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message, joined
from autodeploy.search.ranking.uncertainty import memory_spread_of
from autodeploy.service.clusters.calibration import StoredRun, calibrate_cluster
from autodeploy.specs.commissioning import STOP, Cause, Commissioning, CommissioningLaunch, Doubt, PredictedPart
from autodeploy.specs.measured_run import MeasuredRun, ProfilerTimes
from autodeploy.specs.spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.analysis.rehearsal.rehearse import Rehearsal
    from autodeploy.search.planner import Planner
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


def commission(plan_set: PlanSet, plan: Plan, known: Sequence[StoredRun], planner: Planner) -> Commissioning:
    """The launches before a plan's own, smallest first, each under the assumption that those before it passed.

    known : runs of the plan's cluster that count, newest first; a launch among them is told with what it measured.

    Raises UnsupportedError where no launch before the plan's own can be made.

    Notes
    -----
    What a launch will narrow is found by the fit that follows a real one: a log and a trace that say exactly what is
    predicted are added to the cluster's runs, and the whole plan is predicted under the overlay that comes of them.
    """
    spec = spec_of(plan_set.search)
    runs = list(known)
    names = launches_before(plan_set, plan)
    if not names:
        raise _none_before(plan)
    now = _under(spec, runs, planner)
    whole = current = planner.reestimate(now, plan)
    left = _left_by_causes(now, plan, planner)
    launches: list[CommissioningLaunch] = []
    skipped: list[str] = []
    for name in names:
        search = plan_set.search.model_copy(update={"spec": now.model_dump(mode="json")})
        try:
            launch = rehearse(plan_set.model_copy(update={"search": search}), plan, name, planner)
        except UnsupportedError as error:
            skipped.append(Message("common.place", place=name, message=error.errors[0].message))
            continue
        measured = [each for each in known if _is_of(each, launch)]
        timed = any(each.step_s is not None for each in measured)
        before = left
        if not timed:
            runs = [*_runs_of(launch), *runs]
            now = _under(spec, runs, planner)
            whole, left = planner.reestimate(now, plan), _left_by_causes(now, plan, planner)
        launches.append(_launch(name, launch, (before, left), whole, measured, planner))
    if not launches:
        raise _none_before(plan, skipped)
    return Commissioning(
        plan_id=plan.plan_id,
        num_npus=plan.num_npus_used,
        step_time_s=current.step_time_s,
        low_s=current.uncertainty.low_s,
        high_s=current.uncertainty.high_s,
        launches=tuple(launches),
        skipped=tuple(skipped),
    )


def _none_before(plan: Plan, skipped: Sequence[str] = ()) -> UnsupportedError:
    message = Message("rehearsal.no_launch_before", cards=plan.num_npus_used)
    return UnsupportedError(message, path="/plan", hint=joined(skipped, "semicolon") if skipped else "")


def _is_of(run: StoredRun, launch: Rehearsal) -> bool:
    """True of a run of a launch: so many cards, the same work of a rank, whatever had to be dropped to fit."""
    same = run.plan.num_npus_used == launch.plan.num_npus_used
    return same and work_of(run.spec, run.plan) == work_of(launch.spec, launch.plan)


def _under(spec: Spec, runs: Sequence[StoredRun], planner: Planner) -> Spec:
    """The spec on its cluster as these runs calibrate it; as it is without any."""
    overlay, _ = calibrate_cluster(spec.cluster.ledger_name, runs, planner)
    if not overlay:
        return spec
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"overlay": overlay})})


def _runs_of(launch: Rehearsal) -> list[StoredRun]:
    """Runs that a launch brings back where all comes out as predicted: its log, and the trace of one step."""
    plan = launch.plan
    log = MeasuredRun(step_time_s=plan.step_time_s, peak_memory_gib=plan.allocator_peak_gib)
    parts = {f"{name}_s": seconds for name, seconds in predicted_parts(plan.breakdown).items()}
    trace = MeasuredRun(source="profiler", step_time_s=plan.step_time_s, profiler=ProfilerTimes.model_validate(parts))
    return [StoredRun(f"{plan.plan_id} {each.source}", launch.spec, plan, each) for each in (trace, log)]


def _launch(
    name: str,
    launch: Rehearsal,
    left: tuple[dict[Cause, float], dict[Cause, float]],
    whole: Plan,
    measured: Sequence[StoredRun],
    planner: Planner,
) -> CommissioningLaunch:
    """left : of the whole plan by causes, before and after the launch. whole : the whole plan after it."""
    plan, interval, memory = launch.plan, launch.plan.uncertainty, launch.plan.memory_interval
    sigma = math.log(interval.high_s / interval.low_s) / (2.0 * Z80)
    times = [run.step_s for run in measured if run.step_s is not None]
    before, after = left
    return CommissioningLaunch(
        name=name,
        num_npus=plan.num_npus_used,
        strategy=plan.strategy,
        changed=launch.changed,
        step_time_s=plan.step_time_s,
        low_s=interval.low_s,
        high_s=interval.high_s,
        stop_above_s=interval.quantile_s(STOP),
        peak_memory_gib=plan.peak_memory_gib,
        memory_low_gib=plan.peak_memory_gib if memory is None else memory.low_gib,
        memory_high_gib=plan.peak_memory_gib if memory is None else memory.high_gib,
        memory_limit_gib=plan.memory_limit_gib,
        p_fits=plan.p_fits,
        parts=_parts(launch, sigma, planner),
        doubts=tuple(Doubt(cause=cause, before=before[cause], after=after.get(cause, 0.0)) for cause in before),
        whole_low_s=whole.uncertainty.low_s,
        whole_high_s=whole.uncertainty.high_s,
        measured_s=times[0] if times else None,
        out_of_memory=any(run.measured.out_of_memory is not None for run in measured),
    )


def _left_by_causes(spec: Spec, plan: Plan, planner: Planner) -> dict[Cause, float]:
    """Standard deviation of the plan's log step time from the numbers of each cause, of `memory` of its log peak.

    Before any run the cluster's numbers are as uncertain as a fit to its runs takes them; afterwards as that leaves
    them, where it saw the plan's own work of a rank as such runs do.
    """
    profile = profile_of(spec.cluster)
    doubts = doubts_of(spec, plan, planner)
    sigmas = {number.name: float(sigma) for number, sigma in zip(doubts.numbers, doubts.sigmas, strict=True)}
    evidence = profile.document.evidence
    fitted = None if evidence is None or not evidence.timed else covariance_of(profile)
    if evidence is not None:
        fitted = next((each.covariance for each in evidence.alike if each.work == doubts.work), fitted)
    names = [number.name for number in doubts.numbers]
    matrix = np.diag([sigmas[name] ** 2 for name in names])
    if fitted is not None:
        known = [factor.name for factor in fitted.factors]
        shared = [name for name in names if name in known]
        places, theirs = [names.index(name) for name in shared], [known.index(name) for name in shared]
        matrix[np.ix_(places, places)] = fitted.matrix()[np.ix_(theirs, theirs)]
    causes = np.array([cause_of(number.multiplies, profile) for number in doubts.numbers])
    left: dict[Cause, float] = {}
    for cause in get_args(Cause):
        at = np.flatnonzero(causes == cause)
        if cause == "memory":
            context, candidate = planner.lowered(spec, plan)
            peak = memory_spread_of(candidate, context).interval(1.0)
            left[cause] = rounded(math.log(peak.high_gib / peak.low_gib) / (2.0 * Z80), 4)
        elif len(at):
            of_cause = float(doubts.slopes[at] @ matrix[np.ix_(at, at)] @ doubts.slopes[at])
            left[cause] = rounded(math.sqrt(max(0.0, of_cause)), 4)
    return left


def _parts(launch: Rehearsal, sigma: float, planner: Planner) -> tuple[PredictedPart, ...]:
    """The parts of a launch's step, each with its interval.

    sigma : standard deviation of the log step time. The part of it that the fitted numbers make is divided by what they
    do to each part, the rest by the parts' lengths.
    """
    plan = launch.plan
    covariance = covariance_of(profile_of(launch.spec.cluster))
    factors = [FitParameter(f.name, f.multiplies, 0.0, f.name) for f in covariance.factors]
    worlds: list[dict[str, float]] = [{}, *({factor.name: STEP} for factor in factors)]
    split = [predicted_parts(each) for each in planner.breakdowns_in(launch.spec, plan, factors, worlds)]
    values, matrix = predicted_parts(plan.breakdown), covariance.matrix()
    of_numbers = plan.uncertainty.parameter_log_sigma**2
    share = min(1.0, sigma**2 / of_numbers) if of_numbers else 1.0
    rest = max(0.0, sigma**2 - of_numbers)
    parts = []
    for name, seconds in values.items():
        slopes = np.array([(world[name] - split[0][name]) / STEP for world in split[1:]])
        half = Z80 * math.sqrt(share * float(slopes @ matrix @ slopes) + rest * seconds**2)
        parts.append(PredictedPart(name=name, seconds=seconds, low_s=max(0.0, seconds - half), high_s=seconds + half))
    return tuple(parts)
