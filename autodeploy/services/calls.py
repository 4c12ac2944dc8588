"""What a process of the call pool runs: functions of the module, so that another process finds them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.jobs.planning import load_planner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.services.cluster_calibration import Refit
    from autodeploy.specs.ablation import AblationReport
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from autodeploy.specs.timeline import PipelineTimeline
    from autodeploy.store.runs import RunTexts, SearchTexts


def estimate(planner: str, spec: Spec) -> Plan:
    """The planner's prediction of the spec's strategy."""
    return load_planner(planner).estimate(spec)


def timeline(planner: str, spec: Spec, strategy: Strategy) -> PipelineTimeline:
    """The planner's simulation of a plan's pipeline."""
    return load_planner(planner).timeline(spec, strategy)


def refit(planner: str, cluster: str, profile: str, runs: Sequence[RunTexts], searches: Sequence[SearchTexts]) -> Refit:
    """What the runs of a cluster come to, by the planner."""
    from autodeploy.services.cluster_calibration import refit as refit_with

    return refit_with(cluster, profile, runs, searches, load_planner(planner))


def ablate(spec: Spec, order: Sequence[str]) -> AblationReport:
    """What each feature of the spec's strategy buys."""
    from autodeploy.ablation.ablate import ablate as ablation_of

    return ablation_of(spec, order=order)
