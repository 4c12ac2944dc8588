"""Variants of a strategy of post-training, predicted whether they fit or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.calibration.release_defaults import unnamed_features
from autodeploy.errors import SpecError
from autodeploy.evaluation.inputs.build_context import profile_of
from autodeploy.rl_planning.planning import estimate_rl

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy


def features_of(spec: Spec, strategy: Strategy) -> frozenset[str]:
    """Features of the update that are on: the strategy's, and what today's software has on without naming it."""
    return frozenset(strategy.features) | unnamed_features(profile_of(spec.cluster).name)


def estimated_anyway(spec: Spec, strategy: Strategy, features: frozenset[str]) -> Plan | SpecError:
    """The prediction of a strategy, or why it can't run at all.

    Where experts lie over more ranks than any split leaves to training, over the next fewer: so their group is made
    when training has cards of its own.
    """
    try:
        return estimate_rl(spec, strategy, features=features, beyond_memory=True)
    except SpecError as error:
        if strategy.rl is None or strategy.rl.placement == "colocated" or strategy.rl.generation_npus is not None:
            return error
        for ep in _fewer(strategy.ep):
            try:
                fewer = strategy.model_copy(update={"ep": ep})
                return estimate_rl(spec, fewer, features=features, beyond_memory=True)
            except SpecError:
                continue
        return error


def _fewer(ep: int) -> list[int]:
    """Divisors of the expert group, the greatest first."""
    return [ep // d for d in range(2, ep + 1) if ep % d == 0]
