"""Uneven work between the ranks of an expert parallel group, from a factor or from loads of experts.

Loads are tokens that the router sends to each expert, in any unit: arrays [rows, layers, experts], rows in the order
of time. A rank's load is the sum over its experts; imbalance is max / mean over the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Number = Floats | float | int

# Of a load series that stands in for a factor; a few layers and intervals give its mean within a few percent.
SERIES_LAYERS, SERIES_ROWS, SERIES_SEED = 8, 5, 20251121


@dataclass(frozen=True, eq=False)
class LoadSeries:
    """Loads of the experts of every mixture-of-experts layer over time.

    steps : training step of each row, ascending. loads : [rows, layers, experts].
    """

    steps: Ints
    loads: Floats

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return int(self.loads.shape[-1])


def rank_imbalance(group_imbalance: Number, ranks: Number) -> Floats:
    """max / mean load over the ranks of an expert parallel group [n], never above what the group allows.

    The maximum of g loads with sum g is at most g, when one rank receives everything; a group of one rank is balanced
    by definition.
    """
    return np.asarray(np.where(np.asarray(ranks) > 1, np.minimum(group_imbalance, ranks), 1.0))


def contiguous(layers: int, experts: int, ranks: int) -> Ints:
    """The framework's placement [layers, experts]: rank r has the r-th share of the experts in their order."""
    return np.broadcast_to(np.arange(experts) * ranks // experts, (layers, experts)).astype(np.int64)


def loads_of_ranks(loads: Floats, placement: Ints, ranks: int) -> Floats:
    """Load of every rank [..., layers, ranks] under a placement [layers, experts]."""
    layers = placement.shape[0]
    flat = (placement + np.arange(layers)[:, None] * ranks).ravel()
    rows = loads.reshape(-1, layers * placement.shape[1])
    summed = np.stack([np.bincount(flat, weights=row, minlength=layers * ranks) for row in rows])
    return np.asarray(summed.reshape(*loads.shape[:-1], ranks))


def imbalance_of(rank_loads: Floats) -> Floats:
    """max / mean over the last axis (ratio, at least 1)."""
    return np.asarray(rank_loads.max(axis=-1) / np.maximum(rank_loads.mean(axis=-1), 1e-300))


def variation_of(rank_loads: Floats) -> Floats:
    """Coefficient of variation over the last axis: standard deviation / mean (ratio).

    What MindSpeed's expert migration compares with its threshold (--fine-grained-expert-placement-thre).
    """
    return np.asarray(rank_loads.std(axis=-1) / np.maximum(rank_loads.mean(axis=-1), 1e-300))


def series_of_factor(imbalance: float, experts: int, ranks: int, change: float, row_steps: int) -> LoadSeries:
    """A load series whose mean max / mean over `ranks` is a given factor: the family behind a factor.

    Rows are an interval of `row_steps` steps apart. The first row is the past that a prediction learns from: the mean
    is over the others.

    Notes
    -----
    The logarithms of the experts' loads are independent and normal with deviation sigma. From one row to the next a
    load changes by `change` (relative, its standard deviation) and keeps its distribution: z' = rho z + sqrt(1 -
    rho^2) e with sigma sqrt(2 (1 - rho)) = change. Bisection finds sigma, so nothing here is tuned to a gain. The
    draws are the same for every factor: numpy's frozen legacy generator.
    """
    normal = np.random.RandomState(SERIES_SEED).standard_normal((SERIES_ROWS, SERIES_LAYERS, experts))
    placement = contiguous(SERIES_LAYERS, experts, ranks)

    def series(sigma: float) -> Floats:
        rho = max(0.0, 1.0 - (change / sigma) ** 2 / 2.0) if sigma > 0.0 else 0.0
        rows = [normal[0]]
        for fresh in normal[1:]:
            rows.append(rho * rows[-1] + np.sqrt(1.0 - rho * rho) * fresh)
        return np.asarray(np.exp(sigma * np.stack(rows)))

    low, high = 0.0, 16.0
    for _ in range(40):
        middle = (low + high) / 2.0
        reached = float(imbalance_of(loads_of_ranks(series(middle)[1:], placement, ranks)).mean())
        low, high = (middle, high) if reached < imbalance else (low, middle)
    steps = row_steps * np.arange(SERIES_ROWS, dtype=np.int64)
    return LoadSeries(steps, series((low + high) / 2.0))


def hot_share(loads: Floats, hottest: int) -> Floats:
    """Share of all tokens that go to the `hottest` experts of each layer [...]."""
    if hottest <= 0:
        return np.zeros(loads.shape[:-1])
    top = -np.partition(-loads, hottest - 1, axis=-1)[..., :hottest]
    return np.asarray(top.sum(axis=-1) / np.maximum(loads.sum(axis=-1), 1e-300))


def without_hottest(loads: Floats, hottest: int) -> Floats:
    """The loads with those of each layer's `hottest` experts taken out [rows, layers, experts]."""
    cold = loads.copy()
    if hottest > 0:
        index = np.argpartition(-loads, hottest - 1, axis=-1)[..., :hottest]
        np.put_along_axis(cold, index, 0.0, axis=-1)
    return cold


def capped(loads: Floats, capacity: float) -> Floats:
    """The loads when an expert drops its tokens above `capacity` times the mean expert's [rows, layers, experts].

    Source: capacity factor of the Switch Transformer, arXiv:2101.03961, section 2.2.
    """
    return np.asarray(np.minimum(loads, capacity * loads.mean(axis=-1, keepdims=True)))
