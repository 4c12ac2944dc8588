"""What divisibility costs: a batch or a number of cards near the spec's that would train faster per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.sweep import sweep
from autodeploy.solver.search_space import Searched, legal_candidates, variant
from autodeploy.strategies.feature_choice import choose_features

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile

WORTH = 0.03  # relative gain in tokens per second and card below which no warning is given


def divisibility_warnings(spec: Spec, profile: Profile, context: Context, searched: Searched) -> list[str]:
    """Warnings that name the batch and the card count that recover what divisibility loses."""
    here = _rate(searched.swept.repaired_s, context)
    if here <= 0.0:
        return []
    options: list[tuple[float, str]] = []
    for batch in _near_batches(context.global_batch, context.world):
        gain = best_rate(spec, profile, context.num_npus, batch) / here - 1.0
        options.append((gain, f"a global batch of {batch:,} instead of {context.global_batch:,}"))
    best_batch = max(options, default=(0.0, ""))
    cards = []
    if spec.cluster.blocks is None or spec.cluster.use == "at_most":
        for count in _near_cards(context.num_npus, profile.npus_per_node):
            gain = best_rate(spec, profile, count, context.global_batch) * count / (here * context.num_npus) - 1.0
            cards.append((gain, f"{count:,} cards instead of {context.num_npus:,}"))
    best_cards = max(cards, default=(0.0, ""))
    found = [text for gain, text in (best_batch, best_cards) if gain > WORTH]
    if not found:
        return []
    gain = max(best_batch[0], best_cards[0])
    return [f"the batch divides badly among the cards: {' or '.join(found)} would train up to {gain:.0%} faster"]


def _rate(step_s: np.ndarray, context: Context) -> float:
    """Tokens per second and card of the fastest candidate."""
    if not len(step_s) or not np.isfinite(step_s).any():
        return 0.0
    return context.global_batch * context.seq_length / float(np.min(step_s)) / context.num_npus


def best_rate(spec: Spec, profile: Profile, num_npus: int, batch: int) -> float:
    """The rate of the fastest swept candidate of another batch or card count."""
    choice = choose_features(spec.search, spec.model, profile.name)
    near = variant(spec, profile, choice, num_npus, batch)
    legal, _ = legal_candidates(spec.search, near, profile, choice)
    return _rate(sweep(legal, near).repaired_s, near) if len(legal) else 0.0


def _near_batches(batch: int, world: int) -> list[int]:
    """Round batches within 5 %: multiples of large powers of two and of the ranks' own factors."""
    found = set()
    for unit in (world, *(2**k for k in range(5, 11))):
        for value in (batch // unit * unit, -(-batch // unit) * unit):
            if value > 0 and value != batch and abs(value - batch) <= 0.05 * batch:
                found.add(value)
    return sorted(found, key=lambda v: (-(v & -v), abs(v - batch)))[:2]


def _near_cards(cards: int, per_node: int) -> list[int]:
    """Fewer cards, down to 90 %, in whole nodes with many divisors."""
    nodes = cards // per_node
    near = [n for n in range(max(1, int(nodes * 0.9)), nodes) if n > 0]
    return [n * per_node for n in sorted(near, key=lambda n: (-(n & -n), -n))[:1]]
