"""Verdict of a launch target's rules on one strategy: the one record that searches, estimates and exports read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.costs.inputs.build_context import healthy_npus, profile_of
from autodeploy.costs.steps.one_strategy import as_candidate, facts_of_placement
from autodeploy.search.prepared import judged_context
from autodeploy.space.rules import LaunchRules, broken_rules, launchable, told, values_of
from autodeploy.specs.spec import no_strategy

if TYPE_CHECKING:
    from autodeploy.search.ranking.one_strategy import Prepared
    from autodeploy.specs.diagnostics import BrokenRule
    from autodeploy.specs.spec import Spec


def launch_rules(
    spec: Spec, *, features: frozenset[str] | None = None, prepared: Prepared | None = None
) -> LaunchRules:
    """Rules of the spec's target that its strategy breaks, and what the target could launch instead.

    A strategy whose degrees contradict the cluster is judged too.

    prepared : the spec resolved, where it is already.

    Raises SpecError if the spec has no strategy, or asks for something that can't be planned with.
    """
    if spec.strategy is None:
        raise no_strategy()
    of_generation: tuple[BrokenRule, ...] = ()
    if spec.training.rl is not None:
        from autodeploy.search.post_training.launchable import broken_by  # a tenth of a second, for post-training alone
        from autodeploy.search.post_training.update_layouts import update_alone

        profile = profile_of(spec.cluster)
        of_generation = broken_by(spec, profile, healthy_npus(profile, spec.cluster))
        spec = update_alone(spec, spec.strategy)
    assert spec.strategy is not None
    context, on = judged_context(spec, spec.strategy, features, prepared)
    target = spec.search.target
    candidate = as_candidate(context, spec.strategy, possible=False)
    facts = {**context.facts, **facts_of_placement(spec.strategy)}
    judged, values = broken_rules(candidate, facts, target)[0], values_of(candidate, facts)
    return LaunchRules(
        (*told([rule for rule in judged if rule.is_told], values), *of_generation),
        launchable(candidate, facts, target),
        on,
        (*told([rule for rule in judged if rule.stops], values), *of_generation),
    )
