"""What a process of the call pool runs: functions of the module, so that another process finds them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.jobs.planning import load_planner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.ablation import AblationReport
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.scaling import ScalingReport
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from autodeploy.specs.timeline import PipelineTimeline


def estimate(planner: str, spec: Spec) -> Plan:
    """The planner's prediction of the spec's strategy."""
    return load_planner(planner).estimate(spec)


def timeline(planner: str, spec: Spec, strategy: Strategy) -> PipelineTimeline:
    """The planner's simulation of a plan's pipeline."""
    return load_planner(planner).timeline(spec, strategy)


def ablate(spec: Spec, order: Sequence[str]) -> AblationReport:
    """What each feature of the spec's strategy buys."""
    from autodeploy.ablation.ablate import ablate as ablation_of

    return ablation_of(spec, order=order)


def scale(planner: str, spec: Spec, best: Plan) -> ScalingReport:
    """The best steps on fewer and on more cards."""
    from autodeploy.scaling import scaling

    return scaling(spec, best, planner=load_planner(planner))
