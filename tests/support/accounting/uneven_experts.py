"""Max / mean over the ranks of an expert group, from the family that a factor at 32 ranks stands for."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.ranks import Degrees
    from tests.support.accounting.run import Run

LASTS = 0.75  # of the log loads' variance, under auxiliary losses
STATED_AT, STATED_TP = 32, 8


def uneven(run: Run, d: Degrees, factor: float, layers: float = 1.0) -> float:
    """The factor of the group of these degrees; in the mean over so many layers."""
    if d.ep == 1 or factor <= 1.0:
        return 1.0
    split = d.tp * d.cp
    sequences = d.micro_batch_size * max(1.0, d.ep * d.etp / split)
    copies = run.chosen * run.seq * d.micro_batch_size * d.etp / split
    return _factor(run.n_routed_experts, run.chosen * run.seq, factor, d.ep, sequences, copies, max(1.0, layers))


def grown(run: Run, d: Degrees) -> tuple[float, float]:
    """Rows of the busiest rank at the worst moment, against the mean: of a layer, in the mean over a stage's layers."""
    if d.ep == 1 or run.capacity_factor:
        return 1.0, 1.0
    peak = worst = uneven(run, d, run.peak_imbalance)
    if run.levelled is not None:
        peak = run.levelled.peak
    layers = (run.num_hidden_layers - (run.first_k_dense_replace or 0)) / d.pp
    share = (uneven(run, d, run.peak_imbalance, layers) - 1.0) / (worst - 1.0) if worst > 1.0 else 1.0
    return peak, 1.0 + share * (peak - 1.0)


@lru_cache(maxsize=4096)
def _factor(
    experts: int, sequence: float, factor: float, ranks: int, sequences: float, copies: float, layers: float
) -> float:
    lasting, passing, noise, reached = _family(experts, sequence, factor)
    found = _mean_maximum(experts, lasting, passing, noise, (ranks, sequences, copies, layers))
    if reached < factor * (1.0 - 1e-9):  # more than the family can have
        found = 1.0 + (found - 1.0) * (factor - 1.0) / (reached - 1.0)
    return min(found, ranks)


@lru_cache(maxsize=4096)
def _family(experts: int, sequence: float, factor: float) -> tuple[float, float, float, float]:
    """Lasting and passing part of the variance and noise of the family that has the factor where it is stated, or the
    largest that it can have; and that."""
    stated = (min(STATED_AT, experts), STATED_AT / STATED_TP, sequence / STATED_TP, 1.0)

    def parts(variance: float) -> tuple[float, float]:
        return LASTS * variance, (math.exp((1.0 - LASTS) * variance) - 1.0) * stated[1]

    if _mean_maximum(experts, 0.0, 0.0, 1.0, stated) >= factor:
        noise = _bisected(lambda x: _mean_maximum(experts, 0.0, 0.0, x, stated) - factor, 1.0)
        return 0.0, 0.0, noise, factor
    variance = _bisected(lambda x: _mean_maximum(experts, *parts(x), 1.0, stated) - factor, 4.0)
    return *parts(variance), 1.0, _mean_maximum(experts, *parts(variance), 1.0, stated)


def _mean_maximum(
    experts: int, lasting: float, passing: float, noise: float, at: tuple[float, float, float, float]
) -> float:
    """Of so many ranks, sequences and copies of tokens, over so many layers."""
    ranks, sequences, copies, layers = at
    # Raw moments of a load: a lognormal variable times a mean of lognormal ones.
    first, number = math.exp(lasting), sequences * layers
    second_mean = 1.0 + passing / number
    third_mean = 1.0 + 3.0 * passing / number + passing**2 * (passing + 3.0) / number**2
    second, third = first * second_mean, first**3 * third_mean
    relative, skew = second - 1.0, third - 3.0 * second + 2.0
    return expected_maximum(ranks, relative, skew, ranks / experts, noise / copies / layers)


def _bisected(grows: object, high: float) -> float:
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if grows(middle) >= 0.0 else (middle, high)  # type: ignore[operator]
    return high


def expected_maximum(ranks: float, relative: float, third: float, share: float, noise: float) -> float:
    """Of so many sums of loads with a relative variance and third moment, 1 / share of them each, counted with noise.

    The sum is a shifted lognormal variable with its three moments, integrated over a normal one.
    """
    variance = relative * share + noise
    if variance <= 0.0:
        return 1.0
    skewness = third * share**2 + 3.0 * relative * share * noise + noise**2
    skewness /= variance**1.5
    excess = _bisected(lambda x: (x + 3.0) * math.sqrt(x) - skewness, max(1.0, skewness))
    sigma = math.sqrt(math.log1p(excess))
    total = sum(weight * math.expm1(sigma * z - sigma * sigma / 2.0) for z, weight in largest_of(ranks))
    return 1.0 + math.sqrt(variance / excess) * total


@lru_cache(maxsize=64)
def largest_of(ranks: float) -> list[tuple[float, float]]:
    """Places z and what the largest of so many standard normal variables has there, where that counts."""
    step, found = 0.05, []
    for index in range(-230, 260):
        z = index * step
        below = 0.5 * math.erfc(-z / math.sqrt(2.0))
        weight = step * ranks * math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi) * below ** (ranks - 1.0)
        found.append((z, weight))
    return [(z, weight) for z, weight in found if weight > 0.0]


@lru_cache(maxsize=64)
def mean_largest(ranks: float) -> float:
    """In the mean, of so many standard normal variables."""
    return sum(z * weight for z, weight in largest_of(ranks))
