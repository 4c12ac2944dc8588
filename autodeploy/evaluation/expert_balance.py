"""How evenly the experts of each candidate load its ranks: as the framework places them, moved, or partly copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autodeploy.stack.features import launch_values
from autodeploy.strategies.tree import distinct
from cost_models.expert_migration import migrate, migrate_all
from cost_models.load_balance import (
    LoadSeries,
    capped,
    contiguous,
    hot_share,
    loads_of_ranks,
    rank_imbalance,
    series_of_factor,
    without_hottest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.evaluation.context import Context

Floats = npt.NDArray[np.float64]

# Without a file: by how much the load of an expert differs from its prediction, relative, one standard deviation.
PREDICTION_CHANGE = 0.1


@dataclass(frozen=True, slots=True)
class ExpertBalance:
    """Loads of a layer's ranks against their mean, one entry per candidate [n].

    compute : rows that the busiest rank's experts work on. exchange : copies of tokens that it receives; mean_exchange:
        that the mean rank receives (below 1 where hot experts' tokens stay at home).
    node : copies that enter the busiest node. peak : the worst moment, which sizes memory.
    moved_share : of the busiest rank's experts, arriving anew in each interval of expert migration.
    hot_experts : experts whose weights every rank receives.
    """

    compute: Floats
    exchange: Floats
    mean_exchange: Floats
    node: Floats
    peak: Floats
    moved_share: Floats
    hot_experts: Floats

    @property
    def busiest(self) -> tuple[Floats, ...]:
        """What the busiest rank's exchanges depend on."""
        return self.compute, self.exchange, self.node


@dataclass(frozen=True, slots=True)
class Levelling:
    """How experts are moved or copied, as the launch says it.

    interval_steps : between placements. least_drop : of a layer's coefficient of variation for which its experts move.
    hot_experts : that every rank receives the weights of, where a rank holds so many.
    """

    interval_steps: int
    least_drop: float
    hot_experts: float

    @classmethod
    def of(cls, features: frozenset[str] = frozenset()) -> Levelling:
        """The values of the features that are on, else those of their records."""
        moved, copied = (launch_values(features, name) for name in ("expert_migration", "mutual_routing"))
        return cls(int(moved["interval_steps"]), float(moved["least_drop"]), float(copied["hot_experts"]))


@dataclass(frozen=True, slots=True)
class Loads:
    """What is known about the router: two factors, or a series of loads (of experts, or of a log's ranks)."""

    experts: int
    factor: float
    peak_factor: float
    series: LoadSeries | None = None
    of_ranks: bool = False
    capacity: float | None = None  # an expert drops its tokens above this times the mean
    levelling: Levelling = field(default_factory=Levelling.of)


def even_balance(n: int) -> ExpertBalance:
    """Every rank loaded alike."""
    one, zero = np.ones(n), np.zeros(n)
    return ExpertBalance(one, one, one, one, one, zero, zero)


def placed_balance(context: Context, ep: Floats, nodes: Floats) -> ExpertBalance:
    """Experts stay where the framework puts them: consecutive ones share a rank."""
    compute, node, peak = _each(ep, nodes, lambda *pairs: [_placed(context.loads, ranks) for ranks, _ in pairs])
    one, zero = np.ones_like(ep), np.zeros_like(ep)
    return ExpertBalance(compute, compute, one, node, peak, zero, zero)


def migrated_balance(context: Context, ep: Floats, nodes: Floats) -> ExpertBalance:
    """Experts move to level the ranks, never to more imbalance than without."""
    placed = placed_balance(context, ep, nodes)
    left, node, peak, moved = _each(ep, nodes, lambda *pairs: _migrated(context.loads, pairs))
    left = np.minimum(left, placed.compute)
    return ExpertBalance(
        left,
        left,
        placed.mean_exchange,
        np.minimum(node, placed.node),
        np.minimum(peak, placed.peak),
        moved * ep / context.loads.experts,
        placed.hot_experts,
    )


def routed_balance(context: Context, ep: Floats, nodes: Floats, allowed: npt.NDArray[np.bool_]) -> ExpertBalance:
    """Every rank computes its own tokens for the hottest experts, whose weights it receives instead."""
    placed = placed_balance(context, ep, nodes)
    loads = context.loads
    most = np.minimum(loads.levelling.hot_experts, np.floor(loads.experts / ep))
    hot = np.where(allowed & (ep > 1), most, 0.0)
    share, coldest = _each(ep, hot, lambda *pairs: [_routed(loads, ranks, number) for ranks, number in pairs])
    share, busiest = np.where(hot > 0, share, 0.0), np.where(hot > 0, coldest, placed.compute)
    zero = np.zeros_like(ep)
    # Activations are sized as if the hot experts' tokens came: the peak is a moment when others are hot.
    return ExpertBalance(share + busiest, busiest, 1.0 - share, placed.node, placed.peak, zero, hot)


def prediction_error(context: Context, ep: int) -> float:
    """Error of the predicted loads that expert migration places by, on the file or the family behind the factor."""
    series = _series(context.loads, ep)
    if series is None or not _divides(series, ep):
        return 0.0
    how = context.loads.levelling
    found = migrate(series, nodes=1, ranks=ep, interval=how.interval_steps, least_drop=how.least_drop)
    return found.prediction_error


def _each(first: Floats, second: Floats, values: Callable[..., Sequence[tuple[float, ...]]]) -> tuple[Floats, ...]:
    """`values` of the distinct pairs of whole numbers, one array a result."""
    columns = [each.astype(np.int64) for each in (first, second)]
    rows, which = distinct(columns)
    # Without candidates one pair is asked all the same: it says how many results there are.
    pairs = zip(*(each[rows].tolist() for each in columns), strict=True) if len(rows) else [(1, 1)]
    found = np.array(values(*pairs))
    return tuple(np.ascontiguousarray(found[which, column]) for column in range(found.shape[1]))


@lru_cache(maxsize=512)
def _placed(loads: Loads, ranks: int) -> tuple[float, float, float]:
    """(sustained, of nodes, peak) imbalance over contiguous ranks; without a series nodes are as uneven as ranks."""
    if ranks <= 1:
        return 1.0, 1.0, 1.0
    if loads.series is None:
        factor, peak_factor = (float(rank_imbalance(f, ranks)) for f in (loads.factor, loads.peak_factor))
        if loads.capacity is None:
            return factor, factor, peak_factor
        interval = loads.levelling.interval_steps
        sustained = _capped_factor(loads.experts, factor, ranks, loads.capacity, interval)
        peak = _capped_factor(loads.experts, peak_factor, ranks, loads.capacity, interval)
        return sustained, sustained, max(sustained, peak)
    # A log of fewer ranks says nothing about how its ranks' experts share their load: they are at least as uneven.
    groups = ranks if loads.series.experts % ranks == 0 or not loads.of_ranks else loads.series.experts
    held, mean = loads.series.loads, loads.series.loads.mean(axis=-1)
    if loads.capacity is not None and not loads.of_ranks:
        held = capped(held, loads.capacity)
    layers, experts = held.shape[1:]
    on_ranks = loads_of_ranks(held, contiguous(layers, experts, groups), groups)
    uneven = np.maximum(1.0, on_ranks.max(axis=-1) / (mean * experts / groups))
    sustained = float(uneven.mean())
    return sustained, sustained, float(uneven.max(axis=0).mean())


def _capped_factor(experts: int, factor: float, ranks: int, capacity: float, interval: int) -> float:
    """What capacity leaves of a factor: busiest rank after dropping against the mean rank before."""
    if factor <= 1.0:
        return 1.0
    series = series_of_factor(factor, experts, ranks, PREDICTION_CHANGE, interval)
    kept = loads_of_ranks(capped(series.loads[1:], capacity), contiguous(series.loads.shape[1], experts, ranks), ranks)
    mean = series.loads[1:].sum(axis=-1) / ranks
    return max(1.0, min(factor, float((kept.max(axis=-1) / mean).mean())))


@lru_cache(maxsize=512)
def _series(loads: Loads, ranks: int) -> LoadSeries | None:
    """Loads of experts: the file's, or the family whose imbalance over the ranks is the factor; None where even."""
    if loads.series is not None and not loads.of_ranks:
        return loads.series
    factor = _placed(loads, ranks)[0]
    if factor <= 1.0:
        return None
    return series_of_factor(factor, loads.experts, ranks, PREDICTION_CHANGE, loads.levelling.interval_steps)


def _divides(series: LoadSeries, ranks: int) -> bool:
    return series.experts % ranks == 0


def _migrated(loads: Loads, pairs: Sequence[tuple[int, int]]) -> list[tuple[float, ...]]:
    """(sustained, of nodes, peak) imbalance after migration, and experts moved each interval, of (ranks, nodes)."""
    known = _migrations(loads)
    cases = {}
    for ranks, nodes in (pair for pair in pairs if pair not in known):
        series = _series(loads, ranks) if ranks > 1 else None
        if series is None or not _divides(series, ranks) or ranks == series.experts:
            known[ranks, nodes] = (*_placed(loads, ranks), 0.0)
        else:
            cases[ranks, nodes] = series, nodes if nodes and ranks % nodes == 0 else 1, ranks
    how = loads.levelling
    moved = migrate_all(list(cases.values()), interval=how.interval_steps, least_drop=how.least_drop)
    for (ranks, nodes), found in zip(cases, moved, strict=True):
        # Without a file the peak is a moment that migration has not seen coming.
        peak = found.peak_imbalance if loads.series is not None and not loads.of_ranks else _placed(loads, ranks)[2]
        known[ranks, nodes] = found.imbalance, found.node_imbalance, peak, found.moved_experts
    return [known[pair] for pair in pairs]


@lru_cache(maxsize=8)
def _migrations(_: Loads) -> dict[tuple[int, int], tuple[float, ...]]:
    """What is known of these loads already, by (ranks, nodes): found together where several are asked for."""
    return {}


@lru_cache(maxsize=512)
def _routed(loads: Loads, ranks: int, hottest: int) -> tuple[float, float]:
    """(share of tokens that stay at home, copies that the busiest rank receives against all copies of the mean)."""
    placed = _placed(loads, ranks)[0]
    series = _series(loads, ranks) if ranks > 1 else None
    if series is None or hottest < 1 or not _divides(series, ranks):
        return 0.0, placed
    share = float(hot_share(series.loads, hottest).mean())
    cold = without_hottest(series.loads, hottest)
    on_ranks = loads_of_ranks(cold, contiguous(cold.shape[1], cold.shape[2], ranks), ranks)
    mean = series.loads.sum(axis=-1) / ranks
    return share, float((on_ranks.max(axis=-1) / mean).mean())
