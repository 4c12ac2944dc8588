"""A spec resolved, and the contexts of strategies and plans of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from autodeploy.costs.inputs.build_context import choice_context, profile_of, spec_context
from autodeploy.costs.layers.unit_costs import closed
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.search.choices.effort import budget
from autodeploy.search.ranking.measured_speed import measured_ratio
from autodeploy.search.ranking.one_strategy import Prepared
from autodeploy.search.ranking.plans import Identity
from autodeploy.space.feature_choice import FeatureChoice, choice_of
from autodeploy.space.rules import refuse_unmodelled
from autodeploy.specs.spec import Spec, spec_hash
from autodeploy.stack.features import mechanisms

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.choices.effort import Budget
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile


def prepare(spec: Spec) -> Prepared:
    """Resolve a spec.

    Raises SpecError if a feature, profile, device, precision or kind of training can't be planned with.
    """
    profile, choice = _resolved(spec)
    context = choice_context(spec, profile, choice)
    return Prepared(spec, profile, choice, context, identity_of(spec, profile, context))


def _resolved(spec: Spec) -> tuple[Profile, FeatureChoice]:
    refuse_unmodelled(spec)
    profile = profile_of(spec.cluster)
    return profile, choice_of(spec, profile)


def identity_of(spec: Spec, profile: Profile, context: Context) -> Identity:
    measured = measured_ratio(spec, profile, context)
    return Identity(spec_hash(spec), profile.content_hash, ENGINE_VERSION, measured)


def context_for(prepared: Prepared, strategy: Strategy, features: frozenset[str] | None) -> Context:
    """The context of a strategy that states its own features: exactly those are on, where it states any."""
    on = _stated(prepared.choice, strategy, features)
    if on is None:
        first, *others = (
            replace(each, distributed_optimizer=strategy.distributed_optimizer) for each in closed(prepared.context)
        )
        return replace(first, alternatives=tuple(others))
    return spec_context(prepared.spec, prepared.profile, on, distributed_optimizer=strategy.distributed_optimizer)


def judged_context(
    spec: Spec, strategy: Strategy, features: frozenset[str] | None, prepared: Prepared | None = None
) -> tuple[Context, frozenset[str]]:
    """Facts of a strategy's context for rules, as of `context_for`, and the features that are on for the spec."""
    profile, choice = _resolved(spec) if prepared is None else (prepared.profile, prepared.choice)
    on = _stated(choice, strategy, features)
    if on is None:
        return spec_context(spec, profile, choice.on), choice.on
    return spec_context(spec, profile, on, distributed_optimizer=strategy.distributed_optimizer), choice.on


def _stated(choice: FeatureChoice, strategy: Strategy, features: frozenset[str] | None) -> frozenset[str] | None:
    """The features that are on for a strategy; None where those that were chosen for the spec are."""
    on = features if features is not None else strategy.named_features
    if on is None:
        if strategy.fsdp == ("fsdp" in mechanisms(choice.on)):
            return None
        on = choice.on
    return on | {"fsdp"} if strategy.fsdp else on


class OnCards(Protocol):
    """A strategy on the cards that it uses, with as many micro batches as its batch has: a plan, described or not."""

    @property
    def strategy(self) -> Strategy: ...
    @property
    def num_npus_used(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Undescribed:
    """A plan of which nothing is predicted yet."""

    strategy: Strategy
    num_npus_used: int
    micro_batches: int


def context_of_plan(prepared: Prepared, plan: OnCards) -> Context:
    return _on_cards_of(plan, prepared.spec, prepared.profile, prepared.choice)


def plan_context(spec: Spec, plan: Plan) -> Context:
    """`context_of_plan` of a spec that is prepared for nothing else."""
    refuse_unmodelled(spec)
    profile = profile_of(spec.cluster)
    return _on_cards_of(plan, spec, profile, choice_of(spec, profile))


def _on_cards_of(plan: OnCards, spec: Spec, profile: Profile, choice: FeatureChoice) -> Context:
    strategy = plan.strategy
    named = strategy.named_features
    return spec_context(
        spec,
        profile,
        choice.on if named is None else named,
        num_npus=plan.num_npus_used,
        global_batch=plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1),
        distributed_optimizer=strategy.distributed_optimizer,
    )


def at_size(spec: Spec, seq_length: int, global_batch: int) -> Spec:
    """The spec of one phase: another sequence length and batch, no run around it."""
    batch = spec.training.global_batch_size.model_copy(update={"value": global_batch, "tolerance_pct": 0.0})
    training = spec.training.model_copy(update={"seq_length": seq_length, "global_batch_size": batch, "tokens": None})
    return spec.model_copy(update={"training": training, "run": None, "strategy": None})


def describe_hashes(spec: Spec) -> tuple[str, str, str]:
    """(spec hash, profile hash, engine version): equal triples give equal plans."""
    return spec_hash(spec), profile_of(spec.cluster).content_hash, ENGINE_VERSION


def profile_hash(cluster: ClusterSpec) -> str:
    """Hash of the profile that plans of this cluster rest on, its overlay and overrides included."""
    return profile_of(cluster).content_hash


def budget_of(spec: Spec, *, alone: bool = False) -> Budget:
    """`solver.effort.budget` of a spec."""
    return budget(spec.search, alone=alone)
