"""Error figures of the accuracy page: what a fit left over, in and out of sample, and how well it orders strategies."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.fit import values_of
from autodeploy.calibration.record_prediction import fits_time, measured_step_s, predict_record
from autodeploy.specs.software import release_of
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.calibration.profile_fit import Calibration
    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats

LEAST_DIFFERENCE = math.log(1.07)  # pairs of measured times nearer than this are repeats of one another, not an order
GROUP_SIZE = 5


@dataclass(frozen=True, slots=True)
class Errors:
    """Error of predicted tokens per second, predicted / measured - 1: positive is predicted too fast."""

    n: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float


def errors_of(residuals: Floats) -> Errors:
    """Errors of speed from residuals log(predicted / measured) of step times [records], at least one."""
    error = np.expm1(-residuals)
    size = np.abs(error)
    return Errors(
        len(error), float(size.mean()), float(np.median(size)), float(np.percentile(size, 90)), float(error.mean())
    )


@dataclass(frozen=True, slots=True)
class Runs:
    """Records with their residuals, log(predicted / measured) of step time, in sample and with the family left out."""

    records: tuple[Record, ...]
    in_sample: Floats
    left_out: Floats

    def of(self, inside: Sequence[bool]) -> Runs:
        """The records that are marked."""
        marks = np.asarray(inside, dtype=bool)
        kept = tuple(r for r, mark in zip(self.records, marks, strict=True) if mark)
        return Runs(kept, self.in_sample[marks], self.left_out[marks])


def runs_of(calibration: Calibration) -> Runs:
    """What a calibration left over."""
    return Runs(calibration.records, calibration.fit.residuals, calibration.left_out)


def step_s(record: Record) -> float:
    """Measured seconds of a step of a record that counts for time."""
    measured = measured_step_s(record)
    if measured is None:
        raise ValueError(f"{record.id} has no measured time")
    return measured


def residuals_at(records: Sequence[Record], efficiency: Mapping[str, float] | None) -> Floats:
    """log(predicted / measured) of step times at given efficiencies; None takes each profile as it ships."""
    residuals = [
        math.log(predict_record(r, efficiency=efficiency, calibrated=efficiency is None).step_time_s / step_s(r))
        for r in records
    ]
    return np.array(residuals, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Carried:
    """One device predicted with the factors of another: as it is, and after one record has set the common scale.

    after_anchor : over all choices of the anchor record, errors of the others.
    after_anchor_other_model : of those, only records of another model than the anchor's.
    """

    plain: Errors
    spread: float
    after_anchor: Errors
    after_anchor_other_model: Errors


def carried_over(origin: Calibration, records: Sequence[Record], target: str) -> Carried:
    """Errors on a device whose own records were never seen: it takes the origin's factors on its own priors.

    Rates of links stay the target's own, as in the overlays that ship for devices without records.
    """
    used = [r for r in records if r.cluster.profile == target and fits_time(r)]
    rows = zip(origin.fit.parameters, origin.fit.log_factors, strict=True)
    shared = [(p, v) for p, v in rows if not any(name.startswith(("link_", "release_")) for name in p.multiplies)]
    base = load_profile(target, calibrated=False).efficiency
    values = values_of([p for p, _ in shared], np.array([v for _, v in shared]), base)
    residuals = residuals_at(used, values)
    others, other_models = [], []
    for anchor, left in zip(used, residuals, strict=True):
        for record, residual in zip(used, residuals, strict=True):
            if record is not anchor:
                others.append(residual - left)
                other_models += [residual - left] if record.model.name != anchor.model.name else []
    return Carried(
        errors_of(residuals), float(np.std(residuals)), errors_of(np.array(others)), errors_of(np.array(other_models))
    )


def _groups(runs: Runs, *, equal_batch: bool) -> list[list[int]]:
    """Indices of the records of one model on one cluster and release (one source, one software band)."""
    members: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, record in enumerate(runs.records):
        cluster, training = record.cluster, record.training
        batch = training.global_batch_size.value if equal_batch else None
        source = record.source.split("@")[0]
        key = (record.model.name, cluster.profile, cluster.device, cluster.num_npus, source, release_of(record).band)
        members[(*key, training.seq_length, batch)].append(number)
    return list(members.values())


def _log_time_per_token(record: Record) -> float:
    return math.log(step_s(record) / record.training.global_batch_size.value / record.training.seq_length)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Pairs of strategies whose measured times differ by more than 7 %, and how many the model orders right."""

    pairs: int
    in_sample: int
    left_out: int


def ordered_pairs(runs: Runs) -> Ordered:
    """Counts pairs of different strategies of one model on one cluster and release."""
    times = [_log_time_per_token(r) for r in runs.records]
    count, right = 0, [0, 0]
    for group in _groups(runs, equal_batch=False):
        for one, two in combinations(group, 2):
            measured = times[one] - times[two]
            if abs(measured) <= LEAST_DIFFERENCE or runs.records[one].strategy == runs.records[two].strategy:
                continue
            count += 1
            for kind, residuals in enumerate((runs.in_sample, runs.left_out)):
                right[kind] += bool((measured + residuals[one] - residuals[two]) * measured > 0.0)
    return Ordered(count, right[0], right[1])


@dataclass(frozen=True, slots=True)
class Group:
    """One group of layouts at equal batch: Kendall's tau of the order, and how much slower the chosen layout ran."""

    name: str
    layouts: int
    tau: float
    regret: float


def layout_groups(runs: Runs) -> list[Group]:
    """Groups of at least five layouts at equal batch, with the family left out."""
    groups = []
    for group in _groups(runs, equal_batch=True):
        if len(group) >= GROUP_SIZE:
            record = runs.records[group[0]]
            measured = np.array([math.log(step_s(runs.records[i])) for i in group])
            predicted = measured + runs.left_out[group]
            regret = math.exp(measured[int(np.argmin(predicted))] - measured.min()) - 1.0
            name = f"{record.model.name} on {record.cluster.num_npus} cards"
            groups.append(Group(name, len(group), kendall_tau(predicted, measured), regret))
    return sorted(groups, key=lambda g: g.name)


def kendall_tau(first: Floats, second: Floats) -> float:
    """Kendall's tau-a: concordant less discordant pairs over all pairs; a tie is neither."""
    upper = np.triu_indices(len(first), 1)
    same = np.sign(first[upper[0]] - first[upper[1]]) * np.sign(second[upper[0]] - second[upper[1]])
    return float(same.mean())
