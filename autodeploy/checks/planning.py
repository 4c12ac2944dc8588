"""What a check needs of the planner, and the search that a launch is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from autodeploy.planner import LaunchRules
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec

GAP = 0.15


class CheckPlanner(Protocol):
    """The functions of `autodeploy.planner` that a check calls."""

    def plan(self, spec: Spec) -> PlanSet: ...

    def estimate(self, spec: Spec, *, features: frozenset[str] | None = None) -> Plan: ...

    def launch_rules(self, spec: Spec, *, features: frozenset[str] | None = None) -> LaunchRules: ...


def best_of_short_search(spec: Spec, planner: CheckPlanner, *, time_limit_s: float) -> PlanSet:
    """The best plan with the model, cluster and batch of a launch, without its strategy.

    It ends as soon as nothing can be faster by more than `GAP`: who compares a launch wants a good plan, no proof, and
    bounds take longer than plans do.
    """
    search: dict[str, Any] = {"effort": "fast", "top_k": 1, "gap": GAP, "time_limit_s": time_limit_s}
    asked: dict[str, Any] = {
        "strategy": None,
        "run": None,  # days and cost of the run say nothing about which plan is best
        "training": spec.training.model_copy(update={"tokens": None}),
        "search": spec.search.model_copy(update=search),
    }
    return planner.plan(spec.model_copy(update=asked))
