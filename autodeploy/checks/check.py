"""check(launch, limits) -> CheckReport: can it start, will it fit, how far from the best, is it slower than before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.checks.baseline import Baseline, changes_between, predicted
from autodeploy.checks.legality import judge_script, refuse_unknown_rules, with_allowed
from autodeploy.checks.planning import best_of_short_search
from autodeploy.checks.remedies import remedies_of
from autodeploy.checks.unread import legality_gate
from autodeploy.engine import ENGINE_VERSION
from autodeploy.errors import SpecError
from autodeploy.specs.check import DEFAULT_REGRESSION, CheckLimits, CheckReport, Compared, Gate, Shortage
from autodeploy.specs.spec import spec_hash
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from autodeploy.checks.launch import Launch
    from autodeploy.checks.legality import FlagVerdict
    from autodeploy.checks.planning import CheckPlanner
    from autodeploy.planner import LaunchRules
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

GIB = 2**30
SEARCH_LIMIT_S = 60.0
NO_LIMITS = CheckLimits()


def check(
    launch: Launch,
    limits: CheckLimits = NO_LIMITS,
    *,
    planner: CheckPlanner,
    baseline: Baseline | Plan | None = None,
) -> CheckReport:
    """Hold a launch against the rules of its framework, predict it, and hold limits against the prediction.

    A launch that breaks a rule so that nothing can be predicted has a report without a plan.

    Parameters
    ----------
    planner : `autodeploy.planner`, or what stands for it.
    baseline : what was good before; the launch may be slower than it by `limits.max_slowdown` (5 % if absent).

    Raises
    ------
    SpecError
        if the strategy can't be modelled, or its degrees contradict the cluster in a way that no rule names.
    """
    refuse_unknown_rules(limits.allow_rules)
    before = baseline if isinstance(baseline, Baseline | None) else Baseline(plan=baseline)
    verdict = _judged(launch, limits)
    spec = launch.spec
    rules = planner.launch_rules(spec, features=launch.features)
    broken = with_allowed([*(verdict.broken if verdict is not None else ()), *rules.broken], limits)
    report = CheckReport(
        passed=False,
        source=launch.source,
        engine_version=ENGINE_VERSION,
        spec=spec.model_dump(mode="json"),
        spec_hash=spec_hash(spec),
        limits=limits,
        release="" if verdict is None else verdict.release.title,
        gates=(legality_gate(broken),),
        broken_rules=broken,
        unmodelled=launch.unmodelled,
        assumptions=launch.assumptions,
        contradictions=launch.contradictions,
        unknown_flags=launch.unknown_flags,
        flags=None if launch.flags is None else dict(launch.flags),
    )
    then = None if before is None else predicted(before, planner)
    try:
        plan = planner.estimate(spec, features=launch.features)
    except SpecError as error:
        if report.gates[0].passed:
            raise
        changes = None if before is None else changes_between(before, then, launch, None)
        return report.model_copy(update={"unpredicted": str(error), "changes": changes})
    return _with_plan(report, launch, plan, rules, planner, before, then)


def _with_plan(
    report: CheckReport,
    launch: Launch,
    plan: Plan,
    rules: LaunchRules,
    planner: CheckPlanner,
    baseline: Baseline | None,
    then: Plan | None,
) -> CheckReport:
    """The report with a prediction, and every gate that needs one."""
    limits = report.limits
    best = _best(launch.spec, plan, planner)
    before = None if then is None else Compared(plan=then, slowdown=_slowdown(plan, then))
    gates = (*report.gates, *_gates(plan, limits, best, before))
    fits = gates[1].passed
    return report.model_copy(
        update={
            "passed": all(gate.passed for gate in gates),
            "plan": plan,
            "gates": gates,
            "best": best,
            "baseline": before,
            "changes": None if baseline is None else changes_between(baseline, then, launch, plan),
            "shortage": None if fits else _shortage(plan, limits),
            "remedies": () if fits or plan.rl is not None else remedies_of(launch, plan, limits, rules, planner),
        }
    )


def _judged(launch: Launch, limits: CheckLimits) -> FlagVerdict | None:
    """The command line against its release; None where there is none."""
    if launch.script is None:
        return None
    search, profile = launch.spec.search, load_profile(launch.spec.cluster.profile)
    return judge_script(launch.script, search.target, profile, launch.ranks, limits, search.target_release)


def _best(spec: Spec, plan: Plan, planner: CheckPlanner) -> Compared | None:
    """The best plan of a short search; None where no plan fits."""
    result = best_of_short_search(spec, planner, time_limit_s=SEARCH_LIMIT_S)
    if not result.plans:
        return None
    return Compared(plan=result.plans[0], slowdown=_slowdown(plan, result.plans[0]), status=result.status)


def _slowdown(plan: Plan, other: Plan) -> float:
    """By what share of the other's time a token takes longer on a card."""
    return other.tokens_per_s_per_npu / plan.tokens_per_s_per_npu - 1.0


def _gates(plan: Plan, limits: CheckLimits, best: Compared | None, before: Compared | None) -> tuple[Gate, ...]:
    used = plan.peak_memory_gib / plan.memory_limit_gib
    gates = [Gate(name="memory", passed=used <= limits.max_memory, value=used, limit=limits.max_memory)]
    if best is not None:
        limit = limits.max_slowdown if before is None else None
        gates.append(Gate(name="slowdown", passed=_within(best, limit), value=best.slowdown, limit=limit))
    if before is not None:
        limit = DEFAULT_REGRESSION if limits.max_slowdown is None else limits.max_slowdown
        gates.append(Gate(name="baseline", passed=_within(before, limit), value=before.slowdown, limit=limit))
    passed = limits.min_mfu is None or plan.mfu >= limits.min_mfu
    gates.append(Gate(name="mfu", passed=passed, value=plan.mfu, limit=limits.min_mfu))
    return tuple(gates)


def _within(compared: Compared, limit: float | None) -> bool:
    return limit is None or compared.slowdown <= limit


def _shortage(plan: Plan, limits: CheckLimits) -> Shortage:
    """The fullest stage against what the limit allows."""
    stage = max(range(len(plan.stages)), key=lambda index: plan.stages[index].total_gib)
    parts = plan.stages[stage].memory_gib.model_dump()
    largest = max(parts, key=lambda name: parts[name])
    needed = round(plan.stages[stage].total_gib * GIB)
    allowed = round(limits.max_memory * plan.memory_limit_gib * GIB)
    return Shortage(
        stage=stage,
        needed_bytes=needed,
        limit_bytes=allowed,
        excess_bytes=needed - allowed,
        largest_part=largest,
        largest_part_bytes=round(parts[largest] * GIB),
    )
