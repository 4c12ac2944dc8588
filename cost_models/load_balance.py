"""Uneven work between the ranks of an expert parallel group, from a factor or from loads of experts.

Loads are tokens that the router sends to each expert, in any unit: arrays [rows, layers, experts], rows in the order
of time. A rank's load is the sum over its experts; imbalance is max / mean over the ranks.

Parameters
----------
layers : whose loads add up [layers].
placement : rank of every expert [layers, experts].
lasting, passing : deviations of the loads' logarithms: of what lasts, of what does not.
hottest : most loaded experts of a layer [experts].
capacity : an expert drops its tokens above this times the mean expert's [ratio].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from cost_models.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from cost_models.arrays import Floats, Ints


# Of a load series that stands in for a factor; a few layers and intervals give its mean within a few percent.
SERIES_LAYERS, SERIES_ROWS, SERIES_SEED = 8, 5, 20251121
LEAST = 1e-300  # [tokens] in place of a mean or a sum of 0: layers without tokens have 0 / LEAST = 0, not 0 / 0
MOST_SIGMA = 16.0  # deviation of the logarithm of a load: one expert has nearly everything
SIGMA_WITHIN = MOST_SIGMA * 2.0**-41  # what 41 halvings of 0 to MOST_SIGMA leave: 7e-12, far below what a load shows


@dataclass(frozen=True, eq=False)
class LoadSeries:
    """Loads of the experts of every mixture-of-experts layer over time.

    steps : training step of each row, ascending [steps]. loads : [rows, layers, experts] [tokens]. foreseen : of them
        what many micro batches share, from which a prediction learns; None: the loads themselves [tokens].
    """

    steps: Ints
    loads: Floats
    foreseen: Floats | None = None

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return int(self.loads.shape[-1])


def contiguous(layers: int, experts: int, ranks: int) -> Ints:
    """The framework's placement [layers, experts]: rank r has the r-th share of the experts in their order."""
    return np.broadcast_to(np.arange(experts) * ranks // experts, (layers, experts)).astype(np.int64)


def loads_of_ranks(loads: Floats, placement: Ints, ranks: int) -> Floats:
    """Load of every rank [..., layers, ranks] under a placement [layers, experts]."""
    rows = np.ascontiguousarray(loads.reshape(-1, loads.shape[-1]))
    return _summed(rows, np.ascontiguousarray(placement), ranks).reshape(*loads.shape[:-1], ranks)


@compiled
def _summed(loads: Floats, placement: Ints, ranks: int) -> Floats:
    """Loads of ranks [n, ranks] of loads of experts [n, experts]; row n has placement n modulo k [k, experts]."""
    sums = np.zeros((len(loads), ranks))
    for row in range(len(loads)):
        place = row % len(placement)
        for expert in range(loads.shape[1]):
            sums[row, placement[place, expert]] += loads[row, expert]
    return sums


def imbalance_of(rank_loads: Floats) -> Floats:
    """Imbalance of experts or ranks: max / mean over the last axis [...] (ratio, at least 1; 0 without tokens).

    The slowest rank sets the pace of its group: a time in proportion to the load grows by this factor. It is what
    `training.routing_imbalance` of a spec states.
    """
    return np.asarray(rank_loads.max(axis=-1) / np.maximum(rank_loads.mean(axis=-1), LEAST))


def series_of_factor(
    imbalance: float, experts: int, ranks: int, change: float, row_steps: int, persistent: float = 1.0
) -> LoadSeries:
    """A load series whose mean max / mean over `ranks` is a given factor: the family behind a factor.

    Rows are an interval of `row_steps` steps apart. The first row is the past that a prediction learns from: the mean
    is over the others.

    Parameters
    ----------
    imbalance : the factor, max / mean [ratio]. experts, ranks : of a layer, of the group [count].
    change : relative change of an expert's load from one row to the next, its standard deviation [fraction].
    row_steps : training steps between rows [steps].
    persistent : share of the logarithms' variance that a row's micro batches have in common. The rest is drawn anew for
        every row, and no prediction sees it [fraction].

    Notes
    -----
    The logarithms of the experts' loads are independent and normal with deviation sigma. From one row to the next a
    load changes by `change` (relative, its standard deviation) and keeps its distribution: z' = rho z + sqrt(1 -
    rho^2) e with sigma sqrt(2 (1 - rho)) = change. Root finding gives sigma, so nothing here is tuned to a gain. The
    draws are the same for every factor: numpy's frozen legacy generator.
    """
    placement = contiguous(SERIES_LAYERS, experts, ranks)

    shares = math.sqrt(persistent), math.sqrt(1.0 - persistent)

    def above(sigma: float) -> float:
        later = series_of_deviation(sigma * shares[0], sigma * shares[1], experts, change, row_steps).loads[1:]
        return float(imbalance_of(loads_of_ranks(later, placement, ranks)).mean()) - imbalance

    sigma = _root(above, 1.0, MOST_SIGMA, SIGMA_WITHIN)
    return series_of_deviation(sigma * shares[0], sigma * shares[1], experts, change, row_steps)


def series_of_deviation(lasting: float, passing: float, experts: int, change: float, row_steps: int) -> LoadSeries:
    """The series of `series_of_factor` by the deviations of its logarithms: of what lasts, and of what passes."""
    steps = row_steps * np.arange(SERIES_ROWS, dtype=np.int64)
    foreseen = _lasting_loads(lasting, experts, change)
    if passing <= 0.0:
        return LoadSeries(steps, foreseen)
    return LoadSeries(steps, foreseen * np.exp(passing * _draws(experts)[1]), foreseen)


@lru_cache(maxsize=4)
def _lasting_loads(deviation: float, experts: int, change: float) -> Floats:
    """Loads that change little from row to row [rows, layers, experts]; the same array for the same deviation."""
    normal = _draws(experts)[0]
    rho = max(0.0, 1.0 - (change / deviation) ** 2 / 2.0) if deviation > 0.0 else 0.0
    rows = math.sqrt(1.0 - rho * rho) * normal
    rows[0] = normal[0]
    for before, row in pairwise(rows):
        row += rho * before
    return np.asarray(np.exp(deviation * rows))


@lru_cache(maxsize=8)
def _draws(experts: int) -> tuple[Floats, Floats]:
    """Two sets of independent normal draws [rows, layers, experts]: of what lasts, and of what passes."""
    generator = np.random.RandomState(SERIES_SEED)
    shape = (SERIES_ROWS, SERIES_LAYERS, experts)
    pair = generator.standard_normal(shape), generator.standard_normal(shape)
    for draws in pair:
        draws.flags.writeable = False
    return pair


def _root(value: Callable[[float], float], start: float, most: float, within: float) -> float:
    """Zero of a growing function between 0 and `most`, to `within`; the nearer end where there is none.

    The end above it is looked for from `start` on, doubling. Between both ends: inverse quadratic interpolation through
    the last three points where they lie well, the middle elsewhere.
    Source: Chandrupatla, Advances in Engineering Software 28 (1997), 145-149.
    """
    b, at_b, a, at_a = 0.0, value(0.0), start, value(start)
    if at_b >= 0.0:
        return b
    while at_a < 0.0 and a < most:
        b, at_b, a = a, at_a, min(2.0 * a, most)
        at_a = value(a)
    if at_a <= 0.0:
        return a
    share = 0.5
    while True:
        x = a + share * (b - a)
        at_x = value(x)
        # a is the newest point, b across zero from it, c the one before.
        if (at_x > 0.0) == (at_a > 0.0):
            c, at_c = a, at_a
        else:
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a = x, at_x
        least = within / abs(b - a)
        if least > 0.5 or at_a == 0.0:
            return a if abs(at_a) < abs(at_b) else b
        place, height = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        share = 0.5
        if height**2 < place and (1.0 - height) ** 2 < 1.0 - place:
            share = at_a / (at_b - at_a) * at_c / (at_b - at_c)
            share += (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
        share = min(max(share, least), 1.0 - least)


def hot_share(loads: Floats, hottest: int) -> Floats:
    """Share of all tokens that go to the `hottest` experts of each layer [...] (fraction; 0 where there are no tokens).

    What stays at home when those experts' weights are sent to every rank.
    Source: MindSpeed balanced_moe, --balanced-moe-hot-expert-num.
    """
    if hottest <= 0:
        return np.zeros(loads.shape[:-1])
    top = -np.partition(-loads, hottest - 1, axis=-1)[..., :hottest]
    return np.asarray(top.sum(axis=-1) / np.maximum(loads.sum(axis=-1), LEAST))


def without_hottest(loads: Floats, hottest: int) -> Floats:
    """The loads with those of each layer's `hottest` experts taken out [rows, layers, experts]."""
    cold = loads.copy()
    if hottest > 0:
        index = np.argpartition(-loads, hottest - 1, axis=-1)[..., :hottest]
        np.put_along_axis(cold, index, 0.0, axis=-1)
    return cold


def capped(loads: Floats, capacity: float) -> Floats:
    """Loads under a capacity factor: an expert drops tokens above `capacity` times the mean [rows, layers, experts].

    Source: capacity factor of the Switch Transformer, arXiv:2101.03961, section 2.2.
    """
    return np.asarray(np.minimum(loads, capacity * loads.mean(axis=-1, keepdims=True)))
