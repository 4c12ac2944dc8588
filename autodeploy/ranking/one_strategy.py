"""The plan of one strategy as it stands, legal or not, fitting or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.evaluation.steps.one_strategy import Estimated, estimated_with_slopes
from autodeploy.ranking.plans import Identity, plan_of_estimate
from autodeploy.ranking.uncertainty import factors_of, slopes_of

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from cost_models.arrays import Floats


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
