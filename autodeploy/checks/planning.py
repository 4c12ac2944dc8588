"""What a check needs of the planner, and the search that a launch is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from autodeploy.specs.search import SHORT_SEARCH

if TYPE_CHECKING:
    from autodeploy.planner import LaunchRules
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


class CheckPlanner(Protocol):
    """The functions of `autodeploy.planner` that a check calls."""

    def plan(self, spec: Spec, *, alone: bool = False) -> PlanSet: ...

    def estimate(self, spec: Spec, *, features: frozenset[str] | None = None) -> Plan: ...

    def launch_rules(self, spec: Spec, *, features: frozenset[str] | None = None) -> LaunchRules: ...


def best_of_short_search(spec: Spec, planner: CheckPlanner, *, time_limit_s: float) -> PlanSet:
    """The best plan with the model, cluster and batch of a launch, without its strategy.

    Days and cost of the run are left out: they say nothing about which plan is best.
    """
    asked: dict[str, Any] = {
        "strategy": None,
        "run": None,
        "training": spec.training.model_copy(update={"tokens": None}),
        "search": spec.search.model_copy(update={**SHORT_SEARCH, "time_limit_s": time_limit_s}),
    }
    return planner.plan(spec.model_copy(update=asked), alone=True)
