"""The plan of one strategy as it stands, legal or not, fitting or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.costs.layers.unit_costs import resolved
from autodeploy.costs.steps.one_strategy import Estimated, estimated_with_slopes
from autodeploy.search.branch_and_bound.candidate import solve_candidate
from autodeploy.search.ranking.plans import Identity, plan_of_estimate, plans_of_solved
from autodeploy.search.ranking.uncertainty import factors_of, slopes_of

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates
    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile


# What a search is of.
@dataclass(frozen=True, slots=True)
class Prepared:
    """A spec resolved: profile, features and the context of the nominal cluster and batch."""

    spec: Spec
    profile: Profile
    choice: FeatureChoice
    context: Context
    identity: Identity


@dataclass(frozen=True)
class Predicted(Estimated):
    """The same with the plan that users read."""

    plan: Plan


def predicted(strategy: Strategy, context: Context, spec: Spec, identity: Identity) -> Predicted:
    """The plan of a strategy, legal or not, fitting or not; as `estimated`."""
    result, slopes = estimated_with_slopes(strategy, context, factors_of(context))
    plan = _described(result, strategy, spec, identity, slopes)
    return Predicted(result.estimate, result.context, result.candidate, result.classes, result.layout, plan)


def described(result: Estimated, strategy: Strategy, spec: Spec, identity: Identity) -> Plan:
    """The plan of a strategy that is estimated."""
    slopes = slopes_of(result.candidate, result.context, [result.layout])[0]
    return _described(result, strategy, spec, identity, slopes)


def _described(result: Estimated, strategy: Strategy, spec: Spec, identity: Identity, slopes: Floats) -> Plan:
    context, candidate = result.context, result.candidate
    full = strategy.model_copy(update={"dp": int(candidate.dp[0])})
    plan = plan_of_estimate(
        result.estimate, full, candidate, result.classes, context, result.layout, spec, identity, slopes
    )
    return plan.model_copy(update={"rank": 1})


# The best placement and memory choices of one outer strategy, as a plan.
def place(candidate: Candidates, context: Context, spec: Spec, identity: Identity) -> Plan | None:
    """The plan of one candidate with its layers, recomputation and swap solved quickly; None where nothing fits."""
    solved = solve_candidate(candidate, resolved(context, candidate), 0, None)
    if solved.solution.plan is None:
        return None
    return plans_of_solved([solved], spec, identity)[0].model_copy(update={"rank": 1})
