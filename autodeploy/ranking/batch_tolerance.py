"""A batch within the spec's tolerance that divides better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.ranking.divisibility import best_rate

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile

MAX_BATCHES = 4
MIN_SPEEDUP = 1.002  # a batch of another size has to bring more than noise


def best_batch(spec: Spec, profile: Profile, context: Context) -> int:
    """The batch within the tolerance whose fastest strategy trains most tokens a second, as the sweep estimates it.

    The spec's own batch stays where no other brings anything.
    """
    size = spec.training.global_batch_size
    own = best_rate(spec, profile, context.num_npus, size.value)
    rates = {
        batch: best_rate(spec, profile, context.num_npus, batch)
        for batch in round_batches(size.value, context.world, size.tolerance_pct / 100.0)
    }
    best = max(rates, key=lambda batch: (rates[batch], -abs(batch - size.value)), default=size.value)
    return best if rates.get(best, 0.0) > MIN_SPEEDUP * own else size.value


def round_batches(batch: int, world: int, tolerance: float) -> list[int]:
    """The roundest batches within a relative tolerance: multiples of the ranks and of large powers of two."""
    batches = set()
    for unit in (world, *(2**k for k in range(1, 14))):
        for value in (batch // unit * unit, -(-batch // unit) * unit):
            if value > 0 and value != batch and abs(value - batch) <= tolerance * batch:
                batches.add(value)
    return sorted(batches, key=lambda v: (-(v & -v), abs(v - batch)))[:MAX_BATCHES]
