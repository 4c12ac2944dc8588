"""What a process of the call pool runs: functions of the module, so that another process finds them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.jobs.planning import load_planner
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.checks import Baseline, Launch
    from autodeploy.planner import LaunchRules
    from autodeploy.rehearsal import Rehearsal
    from autodeploy.services.cluster_calibration import Refit
    from autodeploy.services.run_views import ClusterView, MovedPlan
    from autodeploy.specs.ablation import AblationReport
    from autodeploy.specs.check import CheckLimits, CheckReport
    from autodeploy.specs.clusters import ClusterAnswer, ClusterOffer
    from autodeploy.specs.operators import OperatorReport
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.scaling import ScalingReport
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy_bounds import StrategyBounds
    from autodeploy.specs.timeline import PipelineTimeline
    from autodeploy.specs.what_if import ImproveReport, Recommendation, WhyNot
    from autodeploy.store.runs import RunTexts, SearchTexts


SMALL_SPEC = {
    "model": "qwen3-0.6b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 16},
}
WARM_UP_CANDIDATES = 10


def make_ready(planner: str) -> None:
    """Answers what is asked most for a small model: rules and profiles are read, compiled loops are loaded."""
    spec, asked = parse_spec(SMALL_SPEC), load_planner(planner)
    spec = spec.model_copy(update={"strategy": Strategy(pp=2)})
    asked.operators(spec, asked.estimate(spec))
    asked.timeline(spec, Strategy(pp=2))
    asked.strategy_bounds(spec.model_copy(update={"strategy": None}), WARM_UP_CANDIDATES)


def make_ready_to_read() -> None:
    """Imports the readers of every kind of document."""
    from autodeploy.services import check_intake, measured_intake, pasted  # noqa: F401 - that is all


def estimate(planner: str, spec: Spec) -> Plan:
    """The planner's prediction of the spec's strategy."""
    return load_planner(planner).estimate(spec)


def launch_rules(planner: str, spec: Spec) -> LaunchRules:
    """What the planner says the target of a spec has against its strategy."""
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
    """What each strategy breaks, in words; one that can't be judged breaks what its refusal says."""
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
    from autodeploy.rehearsal import rehearse as rehearsal_on

    return rehearsal_on(plan_set, plan, nodes, load_planner(planner))


def moved(planner: str, plan_set: PlanSet, plan: Plan, cluster: ClusterView) -> MovedPlan:
    """A plan before and under its cluster's overlay."""
    from autodeploy.services.moved_plan import moved_plan

    return moved_plan(plan_set, plan, cluster, load_planner(planner))


def check(planner: str, launch: Launch, limits: CheckLimits, baseline: Baseline | None) -> CheckReport:
    """A launch held against limits, the best plan and perhaps a baseline."""
    from autodeploy.checks import check as check_with

    return check_with(launch, limits, planner=load_planner(planner), baseline=baseline)


def complete(planner: str, spec: Spec, strategy: Strategy, best: PlanSet | None) -> Plan:
    """The plan of a strategy with what it leaves open."""
    return load_planner(planner).complete(spec, strategy, best=best)


def why_not(planner: str, spec: Spec, strategy: Strategy, best: PlanSet | None) -> WhyNot:
    """Why a strategy is not the plan."""
    return load_planner(planner).why_not(spec, strategy, best=best)


def improve(planner: str, launch: Launch) -> ImproveReport:
    """The best single changes of a launch."""
    from autodeploy.what_if import improve as improvements_of

    return improvements_of(launch, planner=load_planner(planner))


def recommend(planner: str, spec: Spec, days: float, tokens: float | None, max_npus: int | None) -> Recommendation:
    """The fewest cards for a deadline."""
    from autodeploy.what_if import recommend as recommendation_of

    return recommendation_of(spec, planner=load_planner(planner), days=days, tokens=tokens, max_npus=max_npus)


def points_on(
    planner: str, spec: Spec, offer: ClusterOffer, days: float, tokens: float | None, max_npus: int | None
) -> ClusterAnswer:
    """Days and cost of plans on one cluster of a comparison."""
    from autodeploy.what_if import points_on as plans_on

    return plans_on(spec, offer, planner=load_planner(planner), days=days, tokens=tokens, max_npus=max_npus)


def refit(planner: str, cluster: str, profile: str, runs: Sequence[RunTexts], searches: Sequence[SearchTexts]) -> Refit:
    """What the runs of a cluster come to, by the planner."""
    from autodeploy.services.cluster_calibration import refit as refit_with

    return refit_with(cluster, profile, runs, searches, load_planner(planner))


def ablate(spec: Spec, order: Sequence[str]) -> AblationReport:
    """What each feature of the spec's strategy buys."""
    from autodeploy.ablation.ablate import ablate as ablation_of

    return ablation_of(spec, order=order)


def scale(planner: str, spec: Spec, best: Plan) -> ScalingReport:
    """The best steps on fewer and on more cards."""
    from autodeploy.scaling import scaling

    return scaling(spec, best, planner=load_planner(planner))
