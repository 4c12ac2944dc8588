"""Balance of experts over the ranks of each candidate: as the framework places them, moved, or partly copied."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache, wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autodeploy.space.tree import distinct
from autodeploy.specs.training import STATED_AT_EP, RouterKind, even_groups
from autodeploy.stack.features import launch_values
from cost_models.bounded_cache import kept_each
from cost_models.expert_migration import migrate, migrate_all
from cost_models.expert_skew import REFERENCE_SPLIT, SkewFamily, deviations, family_imbalance
from cost_models.load_balance import (
    LoadSeries,
    capped,
    contiguous,
    hot_share,
    imbalance_of,
    loads_of_ranks,
    series_of_deviation,
    series_of_factor,
    without_hottest,
)
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.training import StatedImbalance
    from cost_models.arrays import Floats


@dataclass(frozen=True, slots=True)
class RouterPrior:
    """A number that nobody measured on the user's router: its value, what it may be, and where it comes from.

    low, high : the extremes. sigma : standard deviation inside of them.
    """

    value: float
    low: float
    high: float
    sigma: float
    unit: str
    kind: str
    source: str


@cache
def persistent_shares() -> dict[str, RouterPrior]:
    """Share of the variance of log loads that lasts, by kind of router; forced routers have none."""
    document = shipped("autodeploy.costs.inputs", "router_priors.yaml")
    return {kind: RouterPrior(**each["persistent_share"], source=each["source"]) for kind, each in document.items()}


def family_of(
    model: ModelSpec, router: RouterKind, stated: StatedImbalance | None, seq_length: int, share: float | None = None
) -> SkewFamily:
    """The loads behind a stated factor; even without one, and under a forced router.

    share : of the variance that lasts, in place of the prior's.
    """
    experts = model.n_routed_experts or 1
    value = 1.0 if stated is None or router == "forced" or not model.is_moe else stated.value
    if router != "forced" and share is None:
        share = persistent_shares()[router].value
    return SkewFamily(
        experts=experts,
        value=value,
        at_ranks=STATED_AT_EP if stated is None else stated.at_ep,
        copies=(model.computing_experts_per_tok or 1.0) * seq_length / REFERENCE_SPLIT,
        persistent=1.0 if share is None else share,
        groups=even_groups(model, router),
    )


# Without a file: by how much the load of an expert differs from its prediction, relative, one standard deviation.
PREDICTION_CHANGE = 0.1
LEAST_EXCESS = 1e-12  # of an imbalance above 1


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
        """Load that the busiest rank's exchanges depend on."""
        return self.compute, self.exchange, self.node

    @property
    def uneven(self) -> bool:
        """Whether the busiest rank's experts or exchanges differ from the mean rank's, in any candidate."""
        exchanges = (self.exchange != self.mean_exchange) | (self.node != self.mean_exchange)
        return bool(np.any((self.compute != 1.0) | exchanges))


@dataclass(frozen=True, slots=True)
class Levelling:
    """Moves or copies of experts, as the launch says it.

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
class ExpertRanks:
    """Expert parallel groups, one entry per candidate [n].

    ranks : of the group. nodes : instances of the outermost tier that it spans. sequences : of its micro batch, whose
    documents average. copies : of tokens that a rank receives in a micro batch, in the mean.
    """

    ranks: Floats
    nodes: Floats
    sequences: Floats
    copies: Floats


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of the router: two factors, or a series of loads (of experts, or of a log's ranks).

    sustained, worst : the family behind the factor that sizes time, and behind the one that sizes memory.
    families, family_of : of a batch whose candidates have different ones, those that size time, and the place of each
        candidate's among them; `sustained` is that of none in particular.
    """

    experts: int
    sustained: SkewFamily
    worst: SkewFamily
    router: RouterKind = "auxiliary_loss"
    series: LoadSeries | None = None
    of_ranks: bool = False
    capacity: float | None = None  # an expert drops its tokens above this times the mean
    levelling: Levelling = field(default_factory=Levelling.of)
    families: tuple[SkewFamily, ...] = ()
    family_of: tuple[int, ...] = ()

    @property
    def even(self) -> bool:
        """Whether no group is uneven."""
        return self.series is None and self.sustained.value <= 1.0

    @property
    def always_even(self) -> bool:
        """Whether none is at the worst moment either."""
        return self.even and self.worst.value <= 1.0


def even_balance(n: int) -> ExpertBalance:
    """Every rank loaded alike."""
    one, zero = np.ones(n), np.zeros(n)
    return ExpertBalance(one, one, one, one, one, zero, zero)


def _by_family(balance: Callable[..., ExpertBalance]) -> Callable[..., ExpertBalance]:
    """A balance of loads, groups and perhaps more arrays [n], for candidates of different families too."""

    @wraps(balance)
    def of_each(loads: Loads, groups: ExpertRanks, *more: npt.NDArray[Any]) -> ExpertBalance:
        if not loads.families:
            return balance(loads, groups, *more)
        family_of, columns = np.array(loads.family_of), _arrays_of(groups)
        whole: dict[str, Floats] = {}
        for number, family in enumerate(loads.families):
            rows = np.flatnonzero(family_of == number)
            own = replace(loads, sustained=family, families=(), family_of=())
            part = balance(
                own, ExpertRanks(**{n: a[rows] for n, a in columns.items()}), *(array[rows] for array in more)
            )
            for name, values in _arrays_of(part).items():
                whole.setdefault(name, np.empty(len(family_of)))[rows] = values
        return ExpertBalance(**whole)

    return of_each


def _arrays_of(value: ExpertRanks | ExpertBalance) -> dict[str, Floats]:
    """Its arrays by name."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


@_by_family
def placed_balance(loads: Loads, groups: ExpertRanks) -> ExpertBalance:
    """Experts stay where the framework puts them: consecutive ones share a rank."""
    if loads.always_even:
        return even_balance(len(groups.ranks))
    compute, peak = _each(groups, lambda *cases: _placed(loads, cases))
    one, zero = np.ones_like(compute), np.zeros_like(compute)
    # Without loads of experts, nodes are taken to be as uneven as ranks.
    return ExpertBalance(compute, compute, one, compute, peak, zero, zero)


@_by_family
def migrated_balance(loads: Loads, groups: ExpertRanks) -> ExpertBalance:
    """Experts move to level the ranks, never to more imbalance than without."""
    placed = placed_balance(loads, groups)
    left, node, peak, moved = _each(groups, lambda *cases: _migrated(loads, cases))
    left = np.minimum(left, placed.compute)
    return ExpertBalance(
        left,
        left,
        placed.mean_exchange,
        np.minimum(node, placed.node),
        np.minimum(peak, placed.peak),
        moved * groups.ranks / loads.experts,
        placed.hot_experts,
    )


@_by_family
def routed_balance(loads: Loads, groups: ExpertRanks, allowed: npt.NDArray[np.bool_]) -> ExpertBalance:
    """Every rank computes its own tokens for the hottest experts, whose weights it receives instead."""
    placed = placed_balance(loads, groups)
    most = np.minimum(loads.levelling.hot_experts, np.floor(loads.experts / groups.ranks))
    hot = np.where(allowed & (groups.ranks > 1), most, 0.0)
    share, coldest = _each(groups, lambda *cases: _routed(loads, cases), hot)
    share, busiest = np.where(hot > 0, share, 0.0), np.where(hot > 0, coldest, placed.compute)
    zero = np.zeros_like(hot)
    # Activations are sized as if the hot experts' tokens came: the peak is a moment when others are hot.
    return ExpertBalance(share + busiest, busiest, 1.0 - share, placed.node, placed.peak, zero, hot)


def peak_over_layers(loads: Loads, groups: ExpertRanks, layers: Floats) -> Floats:
    """Of what the worst moment adds to the busiest rank of one layer, the share that it adds in the mean over the
    mixture-of-experts layers of a rank [n].

    The rank that is busiest in one layer is not in the next, whose experts are others: a rank's sum over its layers is
    less uneven. A file of loads says what its layers' worst moments are.
    """
    if loads.series is not None or loads.worst.value <= 1.0:
        return np.ones_like(groups.ranks)

    (peak,) = _each(groups, lambda *cases: _shares_over_layers(loads.worst, cases), np.maximum(1.0, layers))
    return np.asarray(np.where(groups.ranks > 1, np.clip(peak, 0.0, 1.0), 1.0))


def worst_imbalance(loads: Loads, groups: ExpertRanks) -> Floats:
    """The factor that sizes memory, where experts stay where the framework puts them [n]."""
    if loads.worst.value <= 1.0:
        return np.ones(1)
    worst = loads.worst

    def factors(*cases: Case) -> list[tuple[float]]:
        return [(factor,) for factor in _factors(worst, [(case[0], case[2], case[3]) for case in cases])]

    return _each(groups, factors)[0]


def prediction_error(loads: Loads, groups: ExpertRanks) -> float:
    """Error of the predicted loads that expert migration places by, on the file or the family behind the factor."""
    ranks, sequences, copies = int(groups.ranks[0]), float(groups.sequences[0]), float(groups.copies[0])
    series = _series(loads, ranks, sequences, copies)
    if series is None or series.experts % ranks:
        return 0.0
    how = loads.levelling
    outcome = migrate(series, nodes=1, ranks=ranks, interval=how.interval_steps, least_drop=how.least_drop)
    return outcome.prediction_error


FIRST_CASE = np.zeros(1, dtype=np.int64)  # the first case of one
Case = tuple[float, ...]  # ranks, nodes, sequences, copies, and what else a question depends on


def _each(groups: ExpertRanks, values: Callable[..., Sequence[tuple[float, ...]]], *more: Floats) -> tuple[Floats, ...]:
    """`values` of the distinct cases, one array a result."""
    columns = [groups.ranks, groups.nodes, groups.sequences, groups.copies, *more]
    number = len(groups.ranks)
    if number and all((column == column[0]).all() for column in columns):
        rows, which = FIRST_CASE, np.zeros(number, dtype=np.int64)
    else:
        rows, which = distinct([np.unique(c, return_inverse=True)[1] for c in columns])
    # Without candidates one case is asked all the same: it says how many results there are.
    cases = list(zip(*(each[rows].tolist() for each in columns), strict=True)) or [(1.0,) * len(columns)]
    answers = np.array(values(*cases))
    return tuple(np.ascontiguousarray(answers[which, column]) for column in range(answers.shape[1]))


def _placed(loads: Loads, cases: Sequence[Case]) -> list[tuple[float, float]]:
    """(sustained, peak) imbalance over contiguous ranks of each case."""
    if loads.series is not None:
        return [_placed_of_file(loads, int(case[0])) for case in cases]
    groups = [(case[0], case[2], case[3]) for case in cases]
    sustained, worst = (_factors(family, groups) for family in (loads.sustained, loads.worst))
    imbalance = [(usual, max(usual, most)) for usual, most in zip(sustained, worst, strict=True)]
    if loads.capacity is None:
        return imbalance
    kept = []
    for case, factors in zip(cases, imbalance, strict=True):
        after, peak = (_capped_factor(loads, factor, int(case[0])) for factor in factors)
        kept.append((after, max(after, peak)))
    return kept


@kept_each(32)
def _factors(family: SkewFamily, groups: Sequence[Case]) -> list[float]:
    """Max / mean of the ranks of each group of so many ranks, sequences and copies."""
    factors: list[float] = family_imbalance(family, *np.array(groups).T).tolist()
    return factors


@kept_each(32)
def _shares_over_layers(family: SkewFamily, cases: Sequence[Case]) -> list[tuple[float]]:
    """`peak_over_layers` of each case, the last of whose numbers is that of layers."""
    ranks, _, sequences, copies, number = np.array(cases).T
    one, several = (family_imbalance(family, ranks, sequences, copies, n) for n in (1.0, number))
    return [(share,) for share in ((several - 1.0) / np.where(one > 1.0, one - 1.0, 1.0)).tolist()]


@lru_cache(maxsize=512)
def _placed_of_file(loads: Loads, ranks: int) -> tuple[float, float]:
    """(sustained, peak) imbalance over contiguous ranks, as the file of loads says."""
    if ranks <= 1 or loads.series is None:
        return 1.0, 1.0
    # A log of fewer ranks says nothing about how its ranks' experts share their load: they are at least as uneven.
    groups = ranks if loads.series.experts % ranks == 0 or not loads.of_ranks else loads.series.experts
    loads_of_steps, mean = loads.series.loads, loads.series.loads.mean(axis=-1)
    if loads.capacity is not None and not loads.of_ranks:
        loads_of_steps = capped(loads_of_steps, loads.capacity)
    layers, experts = loads_of_steps.shape[1:]
    on_ranks = loads_of_ranks(loads_of_steps, contiguous(layers, experts, groups), groups)
    uneven = np.maximum(1.0, on_ranks.max(axis=-1) / (mean * experts / groups))
    return float(uneven.mean()), float(uneven.max(axis=0).mean())


@lru_cache(maxsize=512)
def _capped_factor(loads: Loads, factor: float, ranks: int) -> float:
    """A factor under a capacity: busiest rank after dropping against the mean rank before."""
    if factor <= 1.0 or loads.capacity is None:
        return 1.0
    series = series_of_factor(factor, loads.experts, ranks, PREDICTION_CHANGE, loads.levelling.interval_steps)
    layers = series.loads.shape[1]
    kept = loads_of_ranks(capped(series.loads[1:], loads.capacity), contiguous(layers, loads.experts, ranks), ranks)
    mean = series.loads[1:].sum(axis=-1) / ranks
    return max(1.0, min(factor, float((kept.max(axis=-1) / mean).mean())))


@lru_cache(maxsize=256)
def _series(loads: Loads, ranks: int, sequences: float, copies: float) -> LoadSeries | None:
    """Loads of experts: the file's, or the family whose imbalance over the ranks is the factor; None where even.

    Of what the family's micro batches don't share, no prediction knows. A log of ranks says nothing about that.
    """
    if loads.series is not None and not loads.of_ranks:
        return loads.series
    interval = loads.levelling.interval_steps
    if loads.of_ranks:
        factor = _placed_of_file(loads, ranks)[0]
        return None if factor <= 1.0 else series_of_factor(factor, loads.experts, ranks, PREDICTION_CHANGE, interval)
    if loads.sustained.value <= 1.0:
        return None
    lasting, passing = deviations(loads.sustained, ranks, sequences, copies)
    return series_of_deviation(lasting, passing, loads.experts, PREDICTION_CHANGE, interval)


@lru_cache(maxsize=2048)
def _sampled(loads: Loads, ranks: int, sequences: float, copies: float) -> float:
    """Max / mean over contiguous ranks of the series: near the factor, of which it is a sample."""
    series = _series(loads, ranks, sequences, copies)
    if series is None or loads.series is not None:
        return 1.0
    came = series.loads[1:]
    return float(imbalance_of(loads_of_ranks(came, contiguous(came.shape[1], series.experts, ranks), ranks)).mean())


@kept_each(8)
def _migrated(loads: Loads, cases: Sequence[Case]) -> list[tuple[float, ...]]:
    """(sustained, of nodes, peak) imbalance after migration, and experts moved each interval."""
    imbalance: dict[Case, tuple[float, ...]] = {}
    placed = dict(zip(cases, _placed(loads, cases), strict=True))
    moving = {}
    for case, (sustained, peak) in placed.items():
        ranks, nodes = int(case[0]), int(case[1])
        series = _series(loads, ranks, *case[2:]) if ranks > 1 else None
        if series is None or series.experts % ranks or ranks == series.experts or sustained <= 1.0:
            imbalance[case] = sustained, sustained, peak, 0.0
        else:
            moving[case] = series, nodes if nodes and ranks % nodes == 0 else 1, ranks
    how = loads.levelling
    moved = migrate_all(list(moving.values()), interval=how.interval_steps, least_drop=how.least_drop)
    for case, outcome in zip(moving, moved, strict=True):
        sustained, peak = placed[case]
        if loads.series is not None:
            # Of a log of ranks, too, the peak is a moment that migration has not seen coming.
            peak = peak if loads.of_ranks else outcome.peak_imbalance
            imbalance[case] = outcome.imbalance, outcome.node_imbalance, peak, outcome.moved_experts
            continue
        # Of what is above the mean, the family keeps the share that the sample keeps.
        share = (sustained - 1.0) / max(_sampled(loads, int(case[0]), *case[2:]) - 1.0, LEAST_EXCESS)
        left, nodes_left = (1.0 + share * (value - 1.0) for value in (outcome.imbalance, outcome.node_imbalance))
        imbalance[case] = left, nodes_left, peak, outcome.moved_experts
    return [imbalance[case] for case in cases]


def _routed(loads: Loads, cases: Sequence[Case]) -> list[tuple[float, float]]:
    """(share of tokens that stay at home, copies that the busiest rank receives against all copies of the mean)."""
    placed = _placed(loads, cases)
    return [_without_hot(loads, *case, factors[0]) for case, factors in zip(cases, placed, strict=True)]


@lru_cache(maxsize=2048)
def _without_hot(
    loads: Loads, ranks: float, _: float, sequences: float, copies: float, hottest: float, placed: float
) -> tuple[float, float]:
    """`_routed` of one case, whose imbalance is `placed` where no expert is copied."""
    number, most = int(ranks), int(hottest)
    series = _series(loads, number, sequences, copies) if number > 1 else None
    if series is None or most < 1 or series.experts % number or placed <= 1.0:
        return 0.0, placed
    share = float(hot_share(series.loads, most).mean())
    cold = without_hottest(series.loads, most)
    on_ranks = loads_of_ranks(cold, contiguous(cold.shape[1], cold.shape[2], number), number)
    mean = series.loads.sum(axis=-1) / number
    busiest = float((on_ranks.max(axis=-1) / mean).mean())
    return share, busiest if loads.series is not None else busiest * placed / _sampled(loads, number, sequences, copies)
