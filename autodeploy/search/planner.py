"""plan(spec) -> PlanSet, predictions and why-not. Pure: no database, no HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from autodeploy.search.legality import launch_rules
from autodeploy.search.plan_search import check_space, fastest_s, plan, search_size
from autodeploy.search.predictions import breakdowns_in, estimate, lowered, place, predict, reestimate, timeline
from autodeploy.search.prepared import budget_of, describe_hashes, prepare, profile_hash
from autodeploy.search.progress import Progress
from autodeploy.search.questions import complete, operators, strategy_bounds, why_not
from autodeploy.search.ranking.one_strategy import Predicted, Prepared
from autodeploy.space.rules import LaunchRules
from autodeploy.specs.answers import WhyNot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.steps.scenarios import Perturbation, Scenario
    from autodeploy.search.branch_and_bound.search_space import SearchSize
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.answers import StrategyBounds
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.plan_details import OperatorReport, PipelineTimeline
    from autodeploy.specs.planset import Breakdown, Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

__all__ = [
    "LaunchRules",
    "Planner",
    "Predicted",
    "Prepared",
    "Progress",
    "WhyNot",
    "breakdowns_in",
    "budget_of",
    "check_space",
    "complete",
    "describe_hashes",
    "estimate",
    "fastest_s",
    "launch_rules",
    "lowered",
    "operators",
    "place",
    "plan",
    "predict",
    "prepare",
    "profile_hash",
    "reestimate",
    "search_size",
    "strategy_bounds",
    "timeline",
    "why_not",
]


class Planner(Protocol):
    """The functions of this module that analyses, services and jobs call; tests have others in their place."""

    def plan(
        self,
        spec: Spec,
        *,
        search_id: str = "",
        created_at: str = "",
        progress: Callable[[Progress], None] | None = None,
        should_cancel: Callable[[], bool] | None = None,
        alone: bool = False,
    ) -> PlanSet: ...

    def estimate(self, spec: Spec, *, features: frozenset[str] | None = None) -> Plan: ...

    def launch_rules(self, spec: Spec, *, features: frozenset[str] | None = None) -> LaunchRules: ...

    def place(self, spec: Spec, *, features: frozenset[str] | None = None) -> Plan | None:
        """The spec's strategy with its layers placed anew; None where nothing fits."""

    def fastest_s(self, spec: Spec) -> float | None:
        """Estimated step time of the fastest strategy; None where none fits."""

    def complete(self, spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> Plan: ...

    def why_not(self, spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> WhyNot: ...

    def timeline(self, spec: Spec, strategy: Strategy, *, slots: bool = True) -> PipelineTimeline: ...

    def operators(self, spec: Spec, plan: Plan) -> OperatorReport: ...

    def strategy_bounds(self, spec: Spec, most: int) -> StrategyBounds: ...

    def reestimate(self, spec: Spec, plan: Plan) -> Plan:
        """A plan of this spec predicted once more, under the overlay that the spec has now."""

    def breakdowns_in(
        self, spec: Spec, plan: Plan, numbers: Sequence[Perturbation], worlds: Sequence[Scenario]
    ) -> list[Breakdown]:
        """The parts of the step of `reestimate` alone, in each world in which these numbers have moved."""

    def lowered(self, spec: Spec, plan: Plan) -> tuple[Context, Candidates]:
        """Inputs of the formulas for a plan of this spec."""

    def prepare(self, spec: Spec) -> object:
        """Raises SpecError where the spec asks for something that can't be planned with."""

    def check_space(self, spec: Spec) -> None:
        """Raises SpecError where a search would have too many candidates."""

    def search_size(self, spec: Spec) -> SearchSize:
        """Sizes that the time of a search depends on."""

    def describe_hashes(self, spec: Spec) -> tuple[str, str, str]: ...

    def profile_hash(self, cluster: ClusterSpec) -> str:
        """Hash of the profile that plans of this cluster rest on."""
