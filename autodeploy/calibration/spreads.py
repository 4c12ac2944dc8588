"""How far a prediction may be off: the spread of the records' residuals by class, wider with the distance from them.

Of step times those of a fit without the record's family; nothing in the memory model is fitted, so that every record's
peak is one of a run that was left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.coverage import carried_from, coverage, nearest_record
from autodeploy.messages import Message, message_or
from autodeploy.specs.planset import MemoryInterval

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autodeploy.calibration.memory_belief import Belief

Z80 = 1.2816  # half-width of a normal 80 % interval in standard deviations
REPEAT_NOISE = 0.035  # of one configuration measured twice
ASSUMED_BESIDE_ALLOCATOR = 0.03  # of the card: fragmentation 2-5 %, buffers and runtime known to about a third

# Standard deviation of log step time that each doubling beyond the covered range of an axis adds, and each feature or
# tier that no record of the family has used. That of ranks is measured (distance.py); of the others
# there are too few records: judgement.
RANKS_PER_DOUBLING = 0.02  # for devices without records, and the prior of the others
PER_DOUBLING = {"ep": 0.04, "cp": 0.03, "pp": 0.02, "seq_length": 0.02}
PER_UNSEEN = 0.05
# A device with few records takes the efficiencies of another; what that costs beside the other's own spread.
PER_CARRIED_DEVICE = 0.08
MIN_CONFIGURATIONS = 4  # configurations
SCALED_AXES = ("ranks", "ep", "pp")  # that a rehearsal has less of than its plan
STEADY, FEW_ITERATIONS = "steady", "few iterations"
# The same of log memory: judgement, as for time. A rank's memory hardly knows how many ranks there are.
MEMORY_PER_DOUBLING = {"seq_length": 0.02, "pp": 0.02, "ep": 0.02, "cp": 0.02}
MEMORY_PER_UNSEEN = 0.02


@dataclass(frozen=True, slots=True)
class Spread:
    """Relative spread of a prediction."""

    log_sigma: float
    basis: str
    nearest_record: str | None
    extrapolated: tuple[str, ...]

    def interval(self, value: float) -> tuple[float, float]:
        """80 % interval around a predicted value."""
        width = math.exp(Z80 * self.log_sigma)
        return value / width, value * width


@dataclass(frozen=True, slots=True)
class TimedRuns:
    """What the timed runs of a cluster say of a prediction there.

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
) -> Spread:
    """Spread of the prediction of a run.

    Parameters
    ----------
    run : moe (bool), ranks, shares_node (bool), tp, pp, cp, ep, seq_length, features (list of names that no family may
        have measured).
    parameter_variance : of the run's log step time, from the uncertainty of the fitted numbers; of runs like the
        records the residuals hold it already, and only what lies beyond theirs counts.
    origin : the family whose errors count where this one has no records; None: the one that its profile names.
    cluster : what runs of the very cluster have shown.

    Notes
    -----
    The residual spread of the narrowest class with enough records, plus what the parameters and distance from the
    covered range add in quadrature. Where a run of the cluster was timed, the error that its plans have in common is in
    the fitted numbers; what is left is by how much pairs of strategies on one cluster scatter (`conditioned`), what the
    cluster's fit leaves uncertain, and the noise of a measured step. Where ranks did the same work, what is left is by
    how much such runs scatter, beside what they leave uncertain and the noise.
    """
    table = coverage()
    narrow, kind = classes_of_run(run)
    classes = table["classes"]
    own, family = family.endswith("/own"), family.removesuffix("/own")
    origin = family if f"{family}/{kind}" in classes else origin or carried_from(family) or family
    name = narrow if f"{origin}/{narrow}" in classes else kind
    key = f"{origin}/{name}"
    measured = key in classes
    entry = classes.get(key) or classes["uncalibrated"]
    fitted = [r for r in table["records"] if r.get("fit", r["family"]) == origin]
    records = [r for r in fitted if name in classes_of_run(r) or not measured]
    variance = class_variance(float(entry["log_sigma"]), float(entry["parameter_variance"]), parameter_variance)
    extrapolated = []
    if own or is_carried(family, run, fitted):
        variance += PER_CARRIED_DEVICE**2
        extrapolated.append("device family")
    if cluster.timed:
        left = conditioned(variance, float(table["pair_log_sigma"]) ** 2) + parameter_variance + REPEAT_NOISE**2
        if left < variance:
            variance, extrapolated = left, []
    scale, same_work = cluster.scale, False
    if cluster.alike_variance is not None:
        left = cluster.alike_variance + float(table["alike_log_sigma"]) ** 2 + REPEAT_NOISE**2
        if left < scale**2 * variance:
            variance, extrapolated, scale, same_work = left, [], 1.0, True
    slopes = {"ranks": float(table["ranks_per_doubling"].get(origin, RANKS_PER_DOUBLING)), **PER_DOUBLING}
    if same_work:  # of the very cluster, with its features, sequence length and cut: only what adds ranks counts
        slopes, run = {axis: slopes[axis] for axis in SCALED_AXES}, {**run, "features": ()}
    variance, beyond = widened(variance, run, records, slopes, PER_UNSEEN)
    extrapolated += beyond
    basis = (
        Message("calibration.configurations_of", count=entry["n"], group=key)
        if measured
        else Message("calibration.spread_of_uncalibrated_devices", family=family)
    )
    if cluster.timed:
        basis = Message("calibration.runs_of_this_cluster", basis=basis)
    return Spread(scale * math.sqrt(variance), basis, nearest_record(family, run), axes_in_words(extrapolated))


def class_variance(log_sigma: float, of_class: float, of_run: float) -> float:
    """Variance of a run of a class whose residuals have the standard deviation log_sigma.

    of_class, of_run : variance from the parameters of the fit; what the class's records had already counts once.
    """
    return log_sigma**2 + max(0.0, of_run - of_class)


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

    Parameters
    ----------
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

    Parameters
    ----------
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
