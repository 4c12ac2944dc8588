"""The longest sample with which a launch fits whose samples are not padded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autodeploy.costs.steps.one_strategy import estimated
from autodeploy.search.prepared import at_size, context_of_plan
from autodeploy.search.ranking.plans import fits

if TYPE_CHECKING:
    from autodeploy.search.ranking.one_strategy import Prepared
    from autodeploy.specs.planset import Plan

# Collators pad to a multiple of this; tensor and context parallelism cut what comes out in equal shares.
PADDED_TO: Final = 8
# Samples shorter than this share of the sequence length are no use: a launch that takes no longer ones is too large.
LEAST_SHARE: Final = 1 / 8


def longest_sample(prepared: Prepared, plan: Plan) -> int | None:
    """Tokens of the longest sample with which a plan fits that is too large for one of the full sequence length.

    Every sample of the batch has that length: a batch of none longer takes no more. Memory grows with the length, so
    halving finds it, in whole multiples of what collators pad to.

    Returns
    -------
    None where samples are padded, or where not even those of `LEAST_SHARE` of the length fit.
    """
    training, strategy = prepared.spec.training, plan.strategy
    if training.pads_samples or plan.fits:
        return None
    unit = PADDED_TO * strategy.tp * strategy.cp
    least = max(1, math.ceil(LEAST_SHARE * training.seq_length / unit))
    low, high = least - 1, max(least, training.seq_length // unit)
    if low * unit + unit > training.seq_length:
        return None
    batch = plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1)
    while high > low:
        middle = (low + high + 1) // 2
        shorter = replace(prepared, spec=at_size(prepared.spec, middle * unit, batch))
        result = estimated(strategy, context_of_plan(shorter, plan))
        if fits(result.estimate, result.context):
            low = middle
        else:
            high = middle - 1
    return low * unit if low >= least else None
