"""What divisibility costs: a batch or a number of cards near the spec's that would train faster per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autodeploy.evaluation.sweep.sweep import sweep_tree
from autodeploy.messages import Message
from autodeploy.solver.search_space import legal_tree, variant
from autodeploy.strategies.feature_choice import choose_features

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.specs.spec import Spec
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

MIN_GAIN = 0.03  # relative gain in tokens per second and card below which no warning is given


class NearRates(NamedTuple):
    """Tokens per second and card of the fastest candidate, by a batch and by a number of cards near the spec's."""

    batches: dict[int, float]
    cards: dict[int, float]


def near_rates(spec: Spec, profile: Profile, context: Context) -> NearRates:
    """Rates that the warnings compare with the spec's own."""
    batches = _near_batches(context.global_batch, context.world)
    may_idle = spec.cluster.blocks is None or spec.cluster.use == "at_most"
    cards = _near_cards(context.num_npus, profile.npus_per_node) if may_idle else []
    return NearRates(
        {batch: best_rate(spec, profile, context.num_npus, batch) for batch in batches},
        {count: best_rate(spec, profile, count, context.global_batch) for count in cards},
    )


def divisibility_warnings(context: Context, near: NearRates, after_recompute_s: Floats) -> list[str]:
    """Warnings that name the batch and the card count that recover what divisibility loses.

    after_recompute_s : step times of the swept candidates, of which the fastest sets the rate without a change [n].
    """
    rate = _rate(after_recompute_s, context)
    if rate <= 0.0:
        return []
    batches = [
        (others / rate - 1.0, Message("ranking.global_batch_of_instead_of", batch=batch, now=context.global_batch))
        for batch, others in near.batches.items()
    ]
    cards = [
        (
            others * count / (rate * context.num_npus) - 1.0,
            Message("ranking.cards_instead_of", cards=count, now=context.num_npus),
        )
        for count, others in near.cards.items()
    ]
    best = [max(options, default=(0.0, "")) for options in (batches, cards)]
    others = [text for gain, text in best if gain > MIN_GAIN]
    if not others:
        return []
    gain = max(gain for gain, _ in best)
    return [f"the batch divides badly among the cards: {' or '.join(others)} would train up to {gain:.0%} faster"]


def _rate(step_s: Floats, context: Context) -> float:
    """Tokens per second and card of the fastest candidate."""
    if not len(step_s) or not np.isfinite(step_s).any():
        return 0.0
    return context.global_batch * context.sample_tokens / float(np.min(step_s)) / context.num_npus


def best_rate(spec: Spec, profile: Profile, num_npus: int, batch: int) -> float:
    """The rate of the fastest swept candidate of another batch or card count."""
    choice = choose_features(spec.search, spec.model, profile, adapters=spec.training.lora is not None)
    near = variant(spec, profile, choice, num_npus, batch)
    legal, _ = legal_tree(spec.search, near, profile, choice)
    return _rate(sweep_tree(legal, near, parts=False).after_recompute_s, near)


def _near_batches(batch: int, world: int) -> list[int]:
    """Round batches within 5 %: multiples of large powers of two and of the ranks' own factors."""
    batches = set()
    for unit in (world, *(2**k for k in range(5, 11))):
        for value in (batch // unit * unit, -(-batch // unit) * unit):
            if value > 0 and value != batch and abs(value - batch) <= 0.05 * batch:
                batches.add(value)
    return sorted(batches, key=lambda v: (-(v & -v), abs(v - batch)))[:2]


def _near_cards(cards: int, per_node: int) -> list[int]:
    """Fewer cards, down to 90 %, in whole nodes with many divisors."""
    nodes = cards // per_node
    near = [n for n in range(max(1, int(nodes * 0.9)), nodes) if n > 0]
    return [n * per_node for n in sorted(near, key=lambda n: (-(n & -n), -n))[:1]]
