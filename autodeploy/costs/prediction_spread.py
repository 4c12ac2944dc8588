"""Spread of predictions: that of the records' residuals by class, wider with the distance from them.

Of step times those of a fit without the record's family; nothing in the memory model is fitted, so that every record's
peak is one of a run that was left out.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from autodeploy.costs.inputs.context import PRETRAINING
from autodeploy.messages import Message, message_or
from autodeploy.specs.plan_details import MemoryInterval
from cost_models.arrays import product
from hardware_profiles.loader import list_profiles, load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Floats
    from hardware_profiles.evidence import MemorySeen


# The table that calibration writes.
Found = TypeVar("Found")

# Of a strategy, in rows of the table and in runs that are compared with them.
RUN_AXES = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "schedule", "moe_dispatcher")
_COMPARED = ("ranks", "ep", "cp", "pp", "seq_length", "tp")  # to find the record that ran most alike


# The shipped table, then those in place of it, each with what was looked up in it; the last one is in use.
TABLES: list[tuple[Mapping[str, Any], dict[Hashable, Any]]] = []


def coverage() -> Mapping[str, Any]:
    """Residual spread per family and class, and what each record ran."""
    return _in_use()[0]


def looked_up(key: Hashable, find: Callable[[Mapping[str, Any]], Found]) -> Found:
    """Entry of the table in use, once for each key."""
    rows, values = _in_use()
    if key not in values:
        values[key] = find(rows)
    value: Found = values[key]
    return value


def _in_use() -> tuple[Mapping[str, Any], dict[Hashable, Any]]:
    if not TABLES:
        text = files("autodeploy.costs").joinpath("coverage.json").read_text(encoding="utf-8")
        TABLES.append((json.loads(text), {}))
    return TABLES[-1]


def carried_from(family: str) -> str | None:
    """The family whose errors the predictions of this one are given, as a profile of it says; None where none does."""
    documents = (load_profile(name, calibrated=False).document for name in list_profiles())
    return next((d.calibration.spread_of for d in documents if d.family == family and d.calibration.spread_of), None)


def run_in_context(candidate: Candidates, context: Context, features: Iterable[str]) -> dict[str, Any]:
    """A candidate as the rows of the table are."""
    return run_of_axes(
        candidate.axes_at(0),
        moe=context.model.is_moe,
        ranks=context.world,
        node_ranks=context.node_ranks,
        seq_length=context.seq_length,
        features=features,
        kind=context.kind_of_run,
    )


def run_of_axes(
    axes: Mapping[str, Any],
    *,
    moe: bool,
    ranks: int,
    node_ranks: int,
    seq_length: int,
    features: Iterable[str],
    kind: str = PRETRAINING,
) -> dict[str, Any]:
    """A run as the rows of the table are; `axes`: of its strategy."""
    return {
        "kind": kind,
        "moe": moe,
        "ranks": ranks,
        "shares_node": shares_node(ranks, int(axes["tp"]), node_ranks),
        "seq_length": seq_length,
        "features": sorted(features),
        **{axis: axes[axis] for axis in RUN_AXES},
    }


def shares_node(ranks: int, tp: int, ranks_per_node: int) -> bool:
    """Whether several tensor-parallel groups share a node of a run on several nodes."""
    return ranks > ranks_per_node > tp


class Neighbours:
    """Rows in the order of their names, and how unlike a run each of them ran."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.rows = tuple(sorted(records, key=lambda row: str(row["id"])))
        self._logs = np.log2([[row[axis] for axis in _COMPARED] for row in self.rows]).reshape(-1, len(_COMPARED))
        self._moe = np.array([bool(row["moe"]) for row in self.rows], dtype=bool)
        self._makers = np.array([row["vendor_family"] for row in self.rows], dtype=object)
        self._families = np.array([row["family"] for row in self.rows], dtype=object)
        self._kinds = np.array([row.get("kind", PRETRAINING) for row in self.rows], dtype=object)

    def distances(self, family: str, run: Mapping[str, Any]) -> Floats:
        """Same kind of run first, then family and class, then the least sum of |log2 ratio| over axes [records]."""
        far = np.abs(self._logs - np.log2([run[axis] for axis in _COMPARED])).sum(axis=1)
        far += 16.0 * (self._kinds != run.get("kind", PRETRAINING))
        far += 4.0 * (self._moe != run["moe"]) + 6.0 * (self._makers != family.split("-")[0])
        return np.asarray(far + 2.0 * (self._families != family), dtype=np.float64)


def nearest_record(family: str, run: Mapping[str, Any]) -> str | None:
    """The record that ran most alike, in words."""
    row = _nearest_row(family, run)
    return None if row is None else named(row)


def nearest_log_error(family: str, run: Mapping[str, Any]) -> float | None:
    """Logarithm of predicted over measured step time of that record, from a fit without it; None where unknown."""
    row = _nearest_row(family, run)
    return None if row is None or row.get("left_out") is None else float(row["left_out"])


def _nearest_row(family: str, run: Mapping[str, Any]) -> Mapping[str, Any] | None:
    neighbours = looked_up("neighbours", lambda table: Neighbours([*table["records"], *table.get("others", ())]))
    return neighbours.rows[int(np.argmin(neighbours.distances(family, run)))] if neighbours.rows else None


def named(row: Mapping[str, Any]) -> str:
    """A record of the table in words."""
    return f"{row['model']} on {row['npus']} {row['device']} ({row['id']})"


Z80 = 1.2816  # half-width of a normal 80 % interval in standard deviations
REPEAT_NOISE = 0.035  # of one configuration measured twice
ASSUMED_BESIDE_ALLOCATOR = 0.03  # of the card: fragmentation 2-5 %, buffers and runtime known to about a third

# Standard deviation of log step time that each doubling beyond the covered range of an axis adds, and each feature or
# tier that no record of the family has used. That of ranks is measured, by chip and of all for chips without records;
# of the others there are too few records: judgement.
RANKS_PER_DOUBLING = 0.02  # where no chip has a configuration on several numbers of ranks
ELSEWHERE = "elsewhere"
PER_DOUBLING = {"ep": 0.04, "cp": 0.03, "pp": 0.02, "seq_length": 0.02}
PER_UNSEEN = 0.05
UNCALIBRATED = {False: "uncalibrated/dense", True: "uncalibrated/moe"}  # classes of chips without runs of a kind
LARGEST_RATIO = 6.0  # of the ends of an interval that still says something
MIN_CONFIGURATIONS = 4  # configurations
SCALED_AXES = ("ranks", "ep", "pp")  # that a rehearsal has less of than its plan
STEADY, FEW_ITERATIONS = "steady", "few iterations"
# The same of log memory: judgement, as for time. A rank's memory hardly knows how many ranks there are.
MEMORY_PER_DOUBLING = {"seq_length": 0.02, "pp": 0.02, "ep": 0.02, "cp": 0.02}
MEMORY_PER_UNSEEN = 0.02


@dataclass(frozen=True, slots=True)
class Spread:
    """Relative spread of a prediction.

    log_shift : of the middle of its interval, where that is not the value. own : what the run's own numbers and its
    distance from the records leave uncertain to shorter and to longer times, in log time, 80 % on each side.
    """

    log_sigma: float
    basis: str
    nearest_record: str | None
    extrapolated: tuple[str, ...]
    log_shift: float = 0.0
    own: tuple[float, float] = (0.0, 0.0)

    def interval(self, value: float) -> tuple[float, float]:
        """80 % interval around a predicted value."""
        half, middle = Z80 * self.log_sigma, value * math.exp(self.log_shift)
        return middle * math.exp(-half), middle * math.exp(half)


@dataclass(frozen=True, slots=True)
class TimedRuns:
    """Evidence of a cluster's timed runs on a prediction there.

    timed : one was of a model of this family, and the cluster's numbers are fitted to it. scale : of the spread, as
    runs missed their intervals. alike_variance : what the runs whose ranks did the same work leave uncertain, None
    without any.
    """

    timed: bool = False
    scale: float = 1.0
    alike_variance: float | None = None


NO_RUNS = TimedRuns()


@dataclass(frozen=True, slots=True)
class MemorySpread:
    """Relative spread of a predicted peak.

    peaks : measured ones that it rests on. belief : what runs of the same cluster and family of models have said.
    """

    log_sigma: float
    basis: str
    extrapolated: tuple[str, ...]
    peaks: int = 0
    belief: Belief | None = None

    def interval(self, gib: float) -> MemoryInterval:
        """80 % interval around a predicted peak; where runs have said something, of what they leave probable."""
        width = math.exp(Z80 * self.log_sigma)
        low, high = gib / width, gib * width
        if self.belief is not None:
            low, high = (gib * math.exp(self.belief.quantile(p)) for p in (0.1, 0.9))
        return MemoryInterval(low_gib=low, high_gib=high, basis=self.basis, extrapolated=self.extrapolated)


def classes_of_run(run: Mapping[str, Any]) -> tuple[str, str]:
    """The classes of a run, the narrower one first.

    Where several tensor-parallel groups share a node, several replicas or stages load its network cards at once, and
    measured times scatter more than where one group fills the node (or the run has one node). Runs with experts are too
    few to tell.
    """
    if run["moe"]:
        return "moe", "moe"
    return f"dense, {'shared' if run['shares_node'] else 'whole'} nodes", "dense"


def spread_of(
    family: str,
    run: Mapping[str, Any],
    parameter_variance: float = 0.0,
    origin: str | None = None,
    cluster: TimedRuns = NO_RUNS,
    asymmetric: tuple[float, float] = (0.0, 0.0),
) -> Spread:
    """Spread of the prediction of a run.

    run : moe (bool), ranks, shares_node (bool), tp, pp, cp, ep, seq_length, features (list of names that no family may
        have measured).
    parameter_variance : of the run's log step time, from the uncertainty of the fitted numbers; of runs like the
        records the residuals hold it already, and only what lies beyond theirs counts.
    origin : the family whose errors count where this one has no records; None: the one that its profile names.
    cluster : what runs of the very cluster have shown. asymmetric : by how much an uncertain number with an interval
        of its own shortens and lengthens the run, in log time.

    Notes
    -----
    The residual spread of the narrowest class with enough records, plus what the parameters and distance from the
    covered range add in quadrature, beyond what both were of the class's own runs where they were left out. Where a run
    of the cluster was timed, the error that its plans have in common is in the fitted numbers; what is left is by how
    much pairs of strategies on one cluster scatter (`conditioned`), what the cluster's fit leaves uncertain, and the
    noise of a measured step. Where ranks did the same work, what is left is by how much such runs scatter, beside what
    they leave uncertain and the noise.
    """
    table = coverage()
    narrow, kind = classes_of_run(run)
    classes = table["classes"]
    own, family = family.endswith("/own"), family.removesuffix("/own")
    origin = family if f"{family}/{kind}" in classes else origin or carried_from(family) or family
    name = narrow if f"{origin}/{narrow}" in classes else kind
    key = f"{origin}/{name}"
    measured = key in classes
    fitted = [r for r in table["records"] if r.get("fit", r["family"]) == origin]
    # Without a class of its own the spread is of all chips, and so is the range that their runs cover.
    records = [r for r in (fitted if measured else table["records"]) if name in classes_of_run(r)]
    carried = own or not measured or is_carried(family, run, fitted)
    entry = classes[UNCALIBRATED[bool(run["moe"])] if carried else key]
    variance = class_variance(float(entry["log_sigma"]), float(entry["parameter_variance"]), parameter_variance)
    extrapolated = ["device family"] if carried else []
    held = float(entry["distance_variance"])  # of the distance, by the class's own residuals
    if cluster.timed:
        left = conditioned(variance, float(table["pair_log_sigma"]) ** 2) + parameter_variance + REPEAT_NOISE**2
        if left < variance:
            variance, extrapolated, held = left, [], 0.0
    scale, same_work = cluster.scale, False
    if cluster.alike_variance is not None:
        left = cluster.alike_variance + float(table["alike_log_sigma"]) ** 2 + REPEAT_NOISE**2
        if left < scale**2 * variance:
            variance, extrapolated, held, scale, same_work = left, [], 0.0, 1.0, True
    slopes = slopes_of_chip(table["ranks_per_doubling"], origin)
    if same_work:  # of the very cluster, with its features, sequence length and cut: only what adds ranks counts
        slopes, run = {axis: slopes[axis] for axis in SCALED_AXES}, {**run, "features": ()}
    distance, beyond = widened(0.0, run, records, slopes, PER_UNSEEN)
    variance += max(0.0, distance - held)
    extrapolated += beyond
    basis = (
        Message("calibration.spread_between_classes", family=family, least=MIN_CONFIGURATIONS, n=entry["n"])
        if carried
        else Message("calibration.configurations_of", count=entry["n"], group=key)
    )
    if cluster.timed:
        basis = Message("calibration.runs_of_this_cluster", basis=basis)
    near = nearest_record(family, run)
    spread = Spread(scale * math.sqrt(variance), basis, near, axes_in_words(extrapolated))
    of_class = 0.0 if cluster.timed or same_work else scale * float(entry["log_sigma"])
    both = Z80 * math.sqrt(max(0.0, spread.log_sigma**2 - of_class**2))
    sides = math.hypot(both, asymmetric[0]), math.hypot(both, asymmetric[1])
    return _beyond_records(spread, sides, run, family, asymmetric)


def _beyond_records(
    spread: Spread,
    own: tuple[float, float],
    run: Mapping[str, Any],
    family: str,
    asymmetric: tuple[float, float],
) -> Spread:
    """The spread of a kind of run that no fit has seen: what lay between such kinds and their predictions.

    That is counted by source and measured with each source left out (`autodeploy.calibration.shipped.unseen_classes`):
    between sources and within them, to either side. It holds what residuals of pre-training say, and the mean of what
    these runs' own numbers leave uncertain; own, what this one's do, adds what lies beyond that. Both sides add up in
    quadrature, each for itself; an interval whose end is more than 6 times its beginning is no prediction.
    """
    kind, beyond = run.get("kind", PRETRAINING), coverage().get("beyond")
    basis = spread.basis
    down, up = (math.hypot(Z80 * spread.log_sigma, number) for number in asymmetric)
    if beyond is not None and kind != PRETRAINING:
        excess = [max(0.0, side**2 - mean) for side, mean in zip(own, beyond["explained"], strict=True)]
        down, up = (
            math.hypot(beyond[side], beyond["within"], math.sqrt(more))
            for side, more in zip(("shorter", "longer"), excess, strict=True)
        )
        basis = Message(
            f"calibration.no_fit_to_{kind}", family=family, factor=math.exp(float(beyond["seen"])), n=beyond["sources"]
        )
    elif not any(asymmetric):
        return replace(spread, own=own)
    if up + down > math.log(LARGEST_RATIO):
        basis = Message("calibration.no_prediction", basis=basis)
    return replace(spread, log_sigma=(up + down) / 2.0 / Z80, log_shift=(up - down) / 2.0, basis=basis, own=own)


def class_variance(log_sigma: float, of_class: float, of_run: float) -> float:
    """Variance of a run of a class whose residuals have the standard deviation log_sigma.

    of_class, of_run : variance from the parameters of the fit; what the class's records had already counts once.
    """
    return log_sigma**2 + max(0.0, of_run - of_class)


def slopes_of_chip(by_chip: Mapping[str, float], family: str) -> dict[str, float]:
    """Standard deviation of log step time that a doubling beyond the records' range of each axis adds on a chip.

    by_chip : those of ranks, by family of chips.
    """
    return {"ranks": float(by_chip.get(family, by_chip[ELSEWHERE])), **PER_DOUBLING}


def distance_variances(
    rows: Sequence[Mapping[str, Any]], groups: Sequence[str], by_chip: Mapping[str, float]
) -> Floats:
    """Variance of log step time that the distance of each row from those of all other groups adds [rows].

    0 where there is no other group.
    """
    found = np.zeros(len(rows))
    for group in set(groups):
        others = [row for row, label in zip(rows, groups, strict=True) if label != group]
        for place in (number for number, label in enumerate(groups) if others and label == group):
            slopes = slopes_of_chip(by_chip, str(rows[place]["family"]))
            found[place] = widened(0.0, rows[place], others, slopes, PER_UNSEEN)[0]
    return found


def is_carried(family: str, run: Mapping[str, Any], fitted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run's device has too few records of its kind, dense or with experts, among those that were fitted."""
    own = {r.get("configuration", r["id"]) for r in fitted if r["family"] == family and r["moe"] == run["moe"]}
    return len(own) < MIN_CONFIGURATIONS


def widened(
    variance: float,
    run: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    per_doubling: Mapping[str, float],
    per_unseen: float,
) -> tuple[float, list[str]]:
    """The variance with what lies between a run and the records in quadrature, and the axes and features that do.

    per_doubling : of each axis beyond the records' range. per_unseen : of each feature of no record.
    """
    extrapolated = []
    for axis, slope in per_doubling.items():
        seen = [r[axis] for r in records] or [1]
        beyond = max(0.0, math.log2(run[axis] / max(seen)), math.log2(min(seen) / run[axis]))
        if beyond > 0.5:
            variance += (slope * beyond) ** 2
            extrapolated.append(axis)
    unseen = sorted(set(run["features"]) - {name for r in records for name in r["features"]})
    return sum((per_unseen**2 for _ in unseen), start=variance), extrapolated + unseen


def names_of(maker: str, regime: str) -> tuple[str, ...]:
    """Classes of a peak, the narrowest first."""
    return f"{maker}, {regime}", maker, "all"


def memory_spread(maker: str, run: Mapping[str, Any], *, regime: str = STEADY, on_card: bool = True) -> MemorySpread:
    """Spread of the peak of a run.

    maker : of the chip, the first word of its family. run : seq_length, pp, ep, cp, features. on_card : what is
        beside the allocator counts, which is assumed.
    """
    table = coverage()["memory"]
    name, entry = next((n, table["classes"][n]) for n in names_of(maker, regime) if n in table["classes"])
    records = [r for r in table["records"] if name == "all" or r["vendor_family"] == maker]
    variance = float(entry["log_sigma"]) ** 2 + (ASSUMED_BESIDE_ALLOCATOR**2 if on_card else 0.0)
    variance, extrapolated = widened(variance, run, records, MEMORY_PER_DOUBLING, MEMORY_PER_UNSEEN)
    basis = Message("calibration.peaks_of", count=entry["n"], group=name)
    return MemorySpread(math.sqrt(variance), basis, axes_in_words(extrapolated), int(entry["n"]))


def widening(freedom: float, squares: Sequence[float]) -> float:
    """Factor on a spread whose later observations had these squares, in its variances; never below 1.

    The variance is the mean of an inverse gamma distribution with `freedom` degrees of freedom that saw one more square
    per observation.
    """
    return math.sqrt(max(1.0, (freedom + math.fsum(squares)) / (freedom + len(squares))))


def conditioned(variance: float, pair_variance: float) -> float:
    """Variance of an error once another one on the same cluster is known.

    variance : of either error. pair_variance : of their difference, repeat noise left out.

    Notes
    -----
    Two normal errors of variance v whose difference has the variance d are correlated by r = 1 - d / 2v; the second
    one given the first has (1 - r^2) v = d (1 - d / 4v). Errors with nothing in common (d >= 2v) keep theirs.
    """
    if pair_variance >= 2.0 * variance:
        return variance
    return pair_variance * (1.0 - pair_variance / (4.0 * variance))


def axes_in_words(axes: Iterable[str]) -> tuple[str, ...]:
    """Names of axes and features, as messages where they are words."""
    return tuple(message_or(axis, f"axis_of_evidence.{axis.replace(' ', '_')}") for axis in axes)


# What runs of a cluster and a family of models say of the memory of other plans there.
SHARED_VARIANCE: Final = 0.5
"""Share of the variance that b has. Of the shipped peaks of Ascend most of it lies between families, of those of other
makers next to none: judgement."""
_POINTS: Final = 1201
_BEYOND: Final = 8.0
"""Standard deviations on both sides of what was seen that a grid covers."""


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """Distribution of x of plans of a family; `same`: what runs of these plans' own configuration said.

    shared : values of b [points]. weights : their probabilities [points]. omega : standard deviation of e.
    """

    shared: Floats
    weights: Floats
    omega: float
    same: tuple[MemorySeen, ...]

    def at_most(self, log_ratio: float) -> float:
        """Probability that x stays within log_ratio."""
        exact = [seen.log_ratio for seen in self.same if not seen.at_least]
        least = max((seen.log_ratio for seen in self.same if seen.at_least), default=-math.inf)
        if log_ratio <= least:
            return 0.0
        if exact:  # e is known but for what lies beside the allocator
            return NormalDist(math.fsum(exact) / len(exact), _measured_sigma(len(exact))).cdf(log_ratio)
        log_above = _log_cdf((self.shared - log_ratio) / self.omega)
        if self.same:
            log_above = log_above - _log_cdf((self.shared - least) / self.omega)
        return float(np.clip(1.0 - product(self.weights, np.exp(log_above)), 0.0, 1.0))

    def quantile(self, probability: float) -> float:
        """The x that is met with this probability at most, by bisection to 1e-9."""
        return _quantile(self, probability)


@lru_cache(maxsize=256)
def _quantile(believed: Belief, probability: float) -> float:
    low, high = (
        float(end) + side * _BEYOND * believed.omega
        for end, side in ((believed.shared[0], -1.0), (believed.shared[-1], 1.0))
    )
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if believed.at_most(middle) < probability else (low, middle)
    return 0.5 * (low + high)


@lru_cache(maxsize=512)
def belief(seen: tuple[MemorySeen, ...], configuration: str, log_sigma: float, peaks: int) -> Belief:
    """Belief about the plans of one configuration.

    seen : of one family on one cluster, at least one. configuration : digest of these plans' own. log_sigma : standard
        deviation of x before anything was seen. peaks : measured peaks that it rests on.

    Notes
    -----
    Where what was seen is farther off than log_sigma says, all spreads grow: `widening` with `peaks` degrees of freedom
    and one square per configuration. Of a censored observation at c standard deviations the expected square counts,
    1 + c h(c), h the hazard of the normal distribution.
    """
    groups: dict[str, list[MemorySeen]] = {}
    for each in seen:
        groups.setdefault(each.configuration, []).append(each)
    squares = [max(_square(each, log_sigma) for each in group) for group in groups.values()]
    scale = widening(peaks, squares)
    tau, omega = scale * log_sigma * math.sqrt(SHARED_VARIANCE), scale * log_sigma * math.sqrt(1.0 - SHARED_VARIANCE)
    ratios = [0.0, *(each.log_ratio for each in seen)]
    shared = np.linspace(min(ratios) - _BEYOND * tau, max(ratios) + _BEYOND * tau, _POINTS)
    log_weights = -0.5 * (shared / tau) ** 2
    for group in groups.values():
        log_weights += _log_likelihood(group, shared, omega)
    weights = np.exp(log_weights - log_weights.max())
    return Belief(shared, weights / weights.sum(), omega, tuple(groups.get(configuration, ())))


def _log_likelihood(group: Sequence[MemorySeen], shared: Floats, omega: float) -> Floats:
    """Of what runs of one configuration said, for each b, up to a constant [points]."""
    exact = [each.log_ratio for each in group if not each.at_least]
    if exact:
        sigma = math.hypot(omega, _measured_sigma(len(exact)))
        return np.asarray(-0.5 * ((math.fsum(exact) / len(exact) - shared) / sigma) ** 2)
    least = max(each.log_ratio for each in group)
    return _log_cdf((shared - least) / omega)


def _measured_sigma(runs: int) -> float:
    """Of x where the allocator's peak was measured: what lies beside the allocator."""
    return ASSUMED_BESIDE_ALLOCATOR / math.sqrt(runs)


def _square(seen: MemorySeen, log_sigma: float) -> float:
    """Expected square of what was seen, in variances."""
    if not seen.at_least:
        return seen.log_ratio**2 / (log_sigma**2 + ASSUMED_BESIDE_ALLOCATOR**2)
    at = seen.log_ratio / log_sigma
    log_hazard = -0.5 * at**2 - 0.5 * math.log(2.0 * math.pi) - float(_log_cdf(np.array([-at]))[0])
    return 1.0 + at * math.exp(log_hazard)


def _log_cdf(x: Floats) -> Floats:
    """Logarithm of the normal distribution's cumulative probability; far below, its asymptotic series."""
    plain = -np.maximum(x, -20.0) / math.sqrt(2.0)
    near = np.log(0.5 * np.array(list(map(math.erfc, plain.ravel().tolist())))).reshape(plain.shape)
    far = np.minimum(x, -20.0)
    # Abramowitz and Stegun 26.2.12; at -20 the next term is 15 / x^6 < 3e-7.
    series = -0.5 * far**2 - np.log(-far) - 0.5 * math.log(2.0 * math.pi) + np.log1p(-1.0 / far**2 + 3.0 / far**4)
    return np.asarray(np.where(x < -20.0, series, near))
