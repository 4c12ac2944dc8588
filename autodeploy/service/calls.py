"""Functions that a process of the call pool runs: of the module, so that another process finds them by name."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from autodeploy.kit.errors import SpecError
from autodeploy.service.runner.planning import load_planner
from autodeploy.specs.resources import MovedDocument
from autodeploy.specs.spec import parse_spec, spec_of
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.analysis.launch_checks.baseline import Baseline
    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.analysis.rehearsal.rehearse import Rehearsal
    from autodeploy.search.planner import LaunchRules, Planner
    from autodeploy.service.clusters.calibration import Refit
    from autodeploy.service.store.runs import RunTexts, SearchTexts
    from autodeploy.specs.answers import (
        CheckLimits,
        CheckReport,
        ClusterAnswer,
        ClusterOffer,
        ImproveReport,
        Recommendation,
        ScalingReport,
        StrategyBounds,
        WhyNot,
    )
    from autodeploy.specs.commissioning import Commissioning
    from autodeploy.specs.plan_details import AblationReport, OperatorReport, PipelineTimeline
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.resources import ClusterDocument
    from autodeploy.specs.spec import Spec


# How a cluster's overlay moves one stored plan, and which of its factors do it.
MIN_TOLD_LOG_CHANGE = 5e-4  # of the logarithm of the step time: less is not told


def moved_plan(plan_set: PlanSet, plan: Plan, cluster: ClusterDocument, planner: Planner) -> MovedDocument:
    """The plan predicted anew under the overlay, beside how it was found.

    What a factor alone moves is its slope under the overlay times its logarithm; slopes of large factors differ between
    both ends, so that these add up to the whole only roughly.
    """
    spec = spec_of(plan_set.search)
    spec = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"overlay": dict(cluster.overlay)})})
    after = planner.reestimate(spec, plan)
    slopes, factors = after.uncertainty.sensitivity, cluster.report.get("factors", {})
    parts = {name: slopes.get(name, 0.0) * math.log(factor) for name, factor in factors.items()}
    changed = (name for name in parts if abs(parts[name]) >= MIN_TOLD_LOG_CHANGE)
    largest = sorted(changed, key=lambda name: (-abs(parts[name]), name))
    return MovedDocument(
        plan_id=plan.plan_id,
        old_step_time_s=plan.step_time_s,
        old_low_s=plan.uncertainty.low_s,
        old_high_s=plan.uncertainty.high_s,
        step_time_s=after.step_time_s,
        low_s=after.uncertainty.low_s,
        high_s=after.uncertainty.high_s,
        moved_by={name: round(parts[name], 6) for name in largest},
        old_p_fits=plan.p_fits,
        p_fits=after.p_fits,
    )


SMALL_SPEC = {
    "model": "qwen3-0.6b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 16},
}
WARM_UP_CANDIDATES = 10
WARM_UP_DEGREES: Final[dict[str, Any]] = {"pp": 2, "vpp": 1, "cp": 1, "micro_batch_size": 1, "schedule": "1f1b"}


def make_ready(planner: str) -> None:
    """Answers what is asked most for a small model: rules and profiles are read, compiled loops are loaded."""
    spec, asked = parse_spec(SMALL_SPEC), load_planner(planner)
    spec = spec.model_copy(update={"strategy": Strategy(pp=2)})
    asked.operators(spec, asked.estimate(spec))
    asked.timeline(spec, Strategy(pp=2))
    free = spec.model_copy(update={"strategy": None})
    asked.strategy_bounds(free, WARM_UP_CANDIDATES)
    for tp in (2, 3):  # a plan, and why there is none
        with suppress(SpecError):
            asked.complete(free, Strategy(**WARM_UP_DEGREES, tp=tp))


def make_ready_to_read() -> None:
    """Imports the readers of every kind of document."""
    from autodeploy.service import launch_requests as check_intake  # noqa: F401 - that is all


def estimate(planner: str, spec: Spec) -> Plan:
    """The planner's prediction of the spec's strategy."""
    return load_planner(planner).estimate(spec)


def launch_rules(planner: str, spec: Spec) -> LaunchRules:
    """Faults of a spec's strategy for its target, by the planner."""
    return load_planner(planner).launch_rules(spec)


def timeline(planner: str, spec: Spec, strategy: Strategy, *, slots: bool = True) -> PipelineTimeline:
    """The planner's simulation of a plan's pipeline, with or without its slots."""
    return load_planner(planner).timeline(spec, strategy, slots=slots)


def operators(planner: str, spec: Spec, plan: Plan) -> OperatorReport:
    """The operators of a plan."""
    return load_planner(planner).operators(spec, plan)


def strategy_bounds(planner: str, spec: Spec, most: int) -> StrategyBounds:
    """A sample of the spec's strategies at their bounds."""
    return load_planner(planner).strategy_bounds(spec, most)


def rules_broken(planner: str, spec: Spec, strategies: Sequence[Strategy]) -> list[tuple[str, ...]]:
    """Rules that each strategy breaks, in words; one that can't be judged breaks what its refusal says."""
    asked, broken = load_planner(planner), []
    for strategy in strategies:
        try:
            rules = asked.launch_rules(spec.model_copy(update={"strategy": strategy}))
            broken.append(tuple(rule.text for rule in rules.broken))
        except SpecError as error:
            broken.append(tuple(each.message for each in error.errors))
    return broken


def rehearse(planner: str, plan_set: PlanSet, plan: Plan, nodes: str) -> Rehearsal:
    """The rehearsal of a plan on so many nodes."""
    from autodeploy.analysis.rehearsal.rehearse import rehearse as rehearsal_on

    return rehearsal_on(plan_set, plan, nodes, load_planner(planner))


def commission(planner: str, plan_set: PlanSet, plan: Plan, known: Sequence[RunTexts]) -> Commissioning:
    """The launches before a plan's own, as the runs of its cluster leave them."""
    from autodeploy.service.clusters.calibration import StoredRun
    from autodeploy.service.clusters.commissioning import commission as commissioning_of

    return commissioning_of(plan_set, plan, [StoredRun.of(run) for run in known], load_planner(planner))


def moved(planner: str, plan_set: PlanSet, plan: Plan, cluster: ClusterDocument) -> MovedDocument:
    """A plan before and under its cluster's overlay."""

    return moved_plan(plan_set, plan, cluster, load_planner(planner))


def check(planner: str, launch: Launch, limits: CheckLimits, baseline: Baseline | None) -> CheckReport:
    """A launch held against limits, the best plan and perhaps a baseline."""
    from autodeploy.analysis.launch_checks.launch_check import check as check_with

    return check_with(launch, limits, planner=load_planner(planner), baseline=baseline)


def complete(planner: str, spec: Spec, strategy: Strategy, best: PlanSet | None) -> Plan:
    """The plan of a strategy with what it leaves open."""
    return load_planner(planner).complete(spec, strategy, best=best)


def why_not(planner: str, spec: Spec, strategy: Strategy, best: PlanSet | None) -> WhyNot:
    """Reasons for which a strategy is not the plan."""
    return load_planner(planner).why_not(spec, strategy, best=best)


def improve(planner: str, launch: Launch) -> ImproveReport:
    """The best single changes of a launch."""
    from autodeploy.analysis.what_if.improve import improve as improvements_of

    return improvements_of(launch, planner=load_planner(planner))


def recommend(
    planner: str,
    spec: Spec,
    days: float | None,
    npu_hours: float | None,
    tokens: float | None,
    max_npus: int | None,
) -> Recommendation:
    """The fewest cards for a deadline."""
    from autodeploy.analysis.what_if.recommend import recommend as recommendation_of

    asked = {"days": days, "npu_hours": npu_hours, "tokens": tokens}
    return recommendation_of(spec, planner=load_planner(planner), max_npus=max_npus, **asked)


def points_on(
    planner: str, spec: Spec, offer: ClusterOffer, days: float, tokens: float | None, max_npus: int | None
) -> ClusterAnswer:
    """Days and cost of plans on one cluster of a comparison."""
    from autodeploy.analysis.what_if.clusters import points_on as plans_on

    return plans_on(spec, offer, planner=load_planner(planner), days=days, tokens=tokens, max_npus=max_npus)


def refit(planner: str, cluster: str, profile: str, runs: Sequence[RunTexts], searches: Sequence[SearchTexts]) -> Refit:
    """Fit of a cluster's runs, by the planner."""
    from autodeploy.service.clusters.calibration import refit as refit_with

    return refit_with(cluster, profile, runs, searches, load_planner(planner))


def ablate(spec: Spec, order: Sequence[str]) -> AblationReport:
    """Gain of each feature of the spec's strategy."""
    from autodeploy.analysis.ablation.feature_ablation import ablate as ablation_of

    return ablation_of(spec, order=order)


def scale(planner: str, spec: Spec, best: Plan) -> ScalingReport:
    """The best steps on fewer and on more cards."""
    from autodeploy.analysis.what_if.scaling import scaling

    return scaling(spec, best, planner=load_planner(planner))
