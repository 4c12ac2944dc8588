"""One update of a plan as the model of pre-training reads it: its packs as sequences, on the cards that train."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autodeploy.costs.post_training.samples import samples_of, software_of, update_context

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.specs.rl import RlStrategy
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile


def context_of_update(
    spec: Spec,
    profile: Profile,
    strategy: Strategy,
    pack_tokens: int | None,
    *,
    npus: int,
    features: frozenset[str] | None = None,
) -> Context:
    """The context of one update on `npus` cards, on packs of mean length."""
    rl = spec.training.rl
    assert rl is not None
    dp = strategy.dp or npus * profile.devices_per_npu // (strategy.tp * strategy.pp * strategy.cp)
    samples = samples_of(rl, strategy, dp, pack_tokens)
    software = software_of(spec, profile.vendor)
    context = update_context(
        *(spec.model, profile, spec.cluster, strategy, samples),
        npus=npus,
        features=features,
        software=software,
        routed=spec.training,
    )
    return replace(context, global_batch=samples.update_rows)


def trainers(layout: RlStrategy, cards: int) -> int:
    """Cards that train, of all."""
    return cards - (layout.generation_npus or 0)
