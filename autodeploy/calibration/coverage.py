"""What the calibration records cover, and how far the model was off on them: the basis of every interval."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from autodeploy.calibration.spreads import REPEAT_NOISE, Z80, ClassSpread, classes_of_run, conditioned
from autodeploy.messages import Message, message_or
from hardware_profiles.loader import list_profiles, load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from cost_models.arrays import Floats

Found = TypeVar("Found")

Z90 = 1.6449  # half-width of a normal 90 % interval in standard deviations
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
AXES = ("ranks", *PER_DOUBLING)
SCALED_AXES = ("ranks", "ep", "pp")  # that a rehearsal has less of than its plan
_COMPARED = (*AXES, "tp")  # to find the record that ran most alike
# Of a strategy, in rows of the table and in runs that are compared with them.
RUN_AXES = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "schedule", "moe_dispatcher")


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


@dataclass(frozen=True, eq=False)
class _Table:
    """A table, and what was looked up in it."""

    rows: Mapping[str, Any]
    known: dict[Hashable, Any] = field(default_factory=dict)


_IN_PLACE: list[_Table] = []  # of the shipped one, the last one in use


def coverage() -> Mapping[str, Any]:
    """The table that calibration writes: residual spread per family and class, and what each record ran."""
    return _in_use().rows


def looked_up(key: Hashable, find: Callable[[Mapping[str, Any]], Found]) -> Found:
    """What is found in the table in use, once for each key."""
    table = _in_use()
    if key not in table.known:
        table.known[key] = find(table.rows)
    found: Found = table.known[key]
    return found


def _in_use() -> _Table:
    return _IN_PLACE[-1] if _IN_PLACE else _shipped()


@contextmanager
def covering(table: Mapping[str, Any]) -> Iterator[None]:
    """Another table in place of the shipped one while the context lasts."""
    _IN_PLACE.append(_Table(table))
    try:
        yield
    finally:
        _IN_PLACE.pop()


@lru_cache(maxsize=1)
def _shipped() -> _Table:
    text = files("autodeploy.calibration").joinpath("coverage.json").read_text(encoding="utf-8")
    return _Table(json.loads(text))


def carried_from(family: str) -> str | None:
    """The family whose errors the predictions of this one are given, as a profile of it says; None where none does."""
    documents = (load_profile(name, calibrated=False).document for name in list_profiles())
    return next((d.calibration.spread_of for d in documents if d.family == family and d.calibration.spread_of), None)


def axes_in_words(axes: Iterable[str]) -> tuple[str, ...]:
    """Names of axes and features, as messages where they are words."""
    return tuple(message_or(axis, f"axis_of_evidence.{axis.replace(' ', '_')}") for axis in axes)


def spread_of(
    family: str,
    run: Mapping[str, Any],
    parameter_variance: float = 0.0,
    origin: str | None = None,
    cluster: TimedRuns | None = None,
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
    known = ClassSpread(float(entry["log_sigma"]), float(entry["parameter_variance"]), tuple(records))
    variance, extrapolated = known.variance_with(parameter_variance), []
    if own or is_carried(family, run, fitted):
        variance += PER_CARRIED_DEVICE**2
        extrapolated.append("device family")
    timed = cluster is not None and cluster.timed
    if timed:
        left = conditioned(variance, float(table["pair_log_sigma"]) ** 2) + parameter_variance + REPEAT_NOISE**2
        if left < variance:
            variance, extrapolated = left, []
    scale, same_work = 1.0 if cluster is None else cluster.scale, False
    if cluster is not None and cluster.alike_variance is not None:
        left = cluster.alike_variance + float(table["alike_log_sigma"]) ** 2 + REPEAT_NOISE**2
        if left < scale**2 * variance:
            variance, extrapolated, scale, same_work = left, [], 1.0, True
    slopes = {"ranks": float(table["ranks_per_doubling"].get(origin, RANKS_PER_DOUBLING)), **PER_DOUBLING}
    if same_work:  # of the very cluster, with its features, sequence length and cut: only what adds ranks counts
        slopes = {axis: slopes[axis] for axis in SCALED_AXES}
    variance, beyond = widened(variance, run, records, slopes, None if same_work else PER_UNSEEN)
    extrapolated += beyond
    basis = (
        Message("calibration.configurations_of", count=entry["n"], group=key)
        if measured
        else Message("calibration.no_record_of_spread_of_uncalibrated_devices", family=family)
    )
    if timed:
        basis = Message("calibration.runs_of_this_cluster", basis=basis)
    return Spread(scale * math.sqrt(variance), basis, _nearest(family, run), axes_in_words(extrapolated))


def is_carried(family: str, run: Mapping[str, Any], fitted: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run's device has too few records of its kind, dense or with experts, among those that were fitted."""
    own = {r.get("configuration", r["id"]) for r in fitted if r["family"] == family and r["moe"] == run["moe"]}
    return len(own) < MIN_CONFIGURATIONS


def widened(
    variance: float,
    run: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    per_doubling: Mapping[str, float],
    per_unseen: float | None,
) -> tuple[float, list[str]]:
    """The variance with what lies between a run and the records in quadrature, and the axes and features that do.

    per_doubling : of each axis beyond the records' range. per_unseen : of each feature of no record; None where
    features do not count.
    """
    extrapolated = []
    for axis, slope in per_doubling.items():
        seen = [r[axis] for r in records] or [1]
        beyond = max(0.0, math.log2(run[axis] / max(seen)), math.log2(min(seen) / run[axis]))
        if beyond > 0.5:
            variance += (slope * beyond) ** 2
            extrapolated.append(axis)
    if per_unseen is not None:
        unseen = sorted(set(run["features"]) - {name for r in records for name in r["features"]})
        variance = sum((per_unseen**2 for _ in unseen), start=variance)
        extrapolated += unseen
    return variance, extrapolated


def memory_interval() -> float:
    """Factor between a predicted peak on the card and the ends of its 90 % interval.

    Residual spread of the records' allocator peaks, and in quadrature what is assumed beside the allocator:
    fragmentation, communication buffers and runtime. Running out of memory costs a launch, hence 90 % and not 80 %.
    """
    sigma = math.hypot(float(coverage()["memory_log_sigma"]), ASSUMED_BESIDE_ALLOCATOR)
    return math.exp(Z90 * sigma)


class Neighbours:
    """Records in the order of their names, and how unlike a run each of them ran."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.rows = tuple(sorted(records, key=lambda row: str(row["id"])))
        self._logs = np.log2([[row[axis] for axis in _COMPARED] for row in self.rows]).reshape(-1, len(_COMPARED))
        self._moe = np.array([bool(row["moe"]) for row in self.rows], dtype=bool)
        self._makers = np.array([row["vendor_family"] for row in self.rows], dtype=object)
        self._families = np.array([row["family"] for row in self.rows], dtype=object)

    def distances(self, family: str, run: Mapping[str, Any]) -> Floats:
        """Same family and class first, then the least sum of |log2 ratio| over axes [records]."""
        far = np.abs(self._logs - np.log2([run[axis] for axis in _COMPARED])).sum(axis=1)
        far += 4.0 * (self._moe != run["moe"]) + 6.0 * (self._makers != family.split("-")[0])
        return np.asarray(far + 2.0 * (self._families != family), dtype=np.float64)

    def nearest(self, family: str, run: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The record that ran most alike."""
        return self.rows[int(np.argmin(self.distances(family, run)))] if self.rows else None


def named(row: Mapping[str, Any]) -> str:
    """A record of the table in words."""
    return f"{row['model']} on {row['npus']} {row['device']} ({row['id']})"


def _nearest(family: str, run: Mapping[str, Any]) -> str | None:
    """The record that ran most alike, in words."""
    neighbours = looked_up("neighbours", lambda table: Neighbours(table["records"]))
    found = neighbours.nearest(family, run)
    return named(found) if found else None
