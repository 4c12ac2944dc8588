"""check(launch, limits) -> CheckReport: will it fit, how far is it from the best, is it slower than before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.checks.planning import best_of_short_search
from autodeploy.checks.remedies import remedies_of
from autodeploy.engine import ENGINE_VERSION
from autodeploy.specs.check import DEFAULT_REGRESSION, CheckLimits, CheckReport, Compared, Gate, Shortage
from autodeploy.specs.spec import spec_hash

if TYPE_CHECKING:
    from autodeploy.checks.launch import Launch
    from autodeploy.checks.planning import CheckPlanner
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

GIB = 2**30
SEARCH_LIMIT_S = 60.0
NO_LIMITS = CheckLimits()


def check(
    launch: Launch, limits: CheckLimits = NO_LIMITS, *, planner: CheckPlanner, baseline: Plan | None = None
) -> CheckReport:
    """Predict a launch, search for the best plan of the same model, cluster and batch, and hold limits against both.

    Parameters
    ----------
    planner : `autodeploy.planner`, or what stands for it.
    baseline : a plan that was good before; the launch may be slower than it by `limits.max_slowdown` (5 % if absent).

    Raises
    ------
    SpecError
        if the strategy's degrees contradict the cluster, or it can't be modelled.
    """
    spec = launch.spec
    plan = planner.estimate(spec, features=launch.features)
    rules = planner.launch_rules(spec, features=launch.features)
    best = _best(spec, plan, planner)
    before = None if baseline is None else Compared(plan=baseline, slowdown=_slowdown(plan, baseline))
    gates = _gates(plan, limits, best, before)
    fits = gates[0].passed
    return CheckReport(
        passed=all(gate.passed for gate in gates),
        source=launch.source,
        engine_version=ENGINE_VERSION,
        spec=spec.model_dump(mode="json"),
        spec_hash=spec_hash(spec),
        limits=limits,
        plan=plan,
        gates=gates,
        best=best,
        baseline=before,
        shortage=None if fits else _shortage(plan, limits),
        remedies=() if fits else remedies_of(launch, plan, limits, rules, planner),
        broken_rules=rules.broken,
        contradictions=launch.contradictions,
        unknown_flags=launch.unknown_flags,
    )


def _best(spec: Spec, plan: Plan, planner: CheckPlanner) -> Compared | None:
    """The best plan of a short search; None where no plan fits."""
    found = best_of_short_search(spec, planner, time_limit_s=SEARCH_LIMIT_S)
    if not found.plans:
        return None
    return Compared(plan=found.plans[0], slowdown=_slowdown(plan, found.plans[0]), status=found.status)


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
