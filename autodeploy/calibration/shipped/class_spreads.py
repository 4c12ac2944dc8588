"""Spreads of prediction errors by class of run, and the coverage of intervals."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.profile_fit import configuration_of
from autodeploy.calibration.record_prediction import measured_step_s, record_candidate, runnable, tokens_of
from autodeploy.costs.prediction_spread import (
    MEMORY_PER_DOUBLING,
    TABLES,
    Z80,
    class_variance,
    classes_of_run,
    names_of,
    run_of_axes,
)
from autodeploy.costs.workload.flops import mfu
from autodeploy.specs.software import features_of
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats


def run_row(record: Record) -> dict[str, Any]:
    """Run of a record in the axes of the coverage table."""
    profile = load_profile(record.cluster.profile, calibrated=False)
    ranks = int(record.cluster.num_npus or 1) * profile.devices_per_npu
    axes = record_candidate(runnable(record, profile), ranks, profile.vendor).axes_at(0)
    return {
        "id": record.id,
        "configuration": hashlib.sha256(configuration_of(record).encode()).hexdigest()[:8],
        "model": record.model.name,
        "model_family": family_of(record),
        "family": profile.family,
        "vendor_family": profile.family.split("-")[0],
        "device": record.cluster.device or profile.default_device,
        "npus": record.cluster.num_npus,
        "precision": record.training.precision,
        "mfu": None if (share := mfu_of(record)) is None else rounded(share, 4),
        **run_of_axes(
            axes,
            moe=record.model.is_moe,
            ranks=ranks,
            node_ranks=profile.ranks_per_node,
            seq_length=record.training.seq_length,
            features=features_of(record),
        ),
    }


def mfu_of(record: Record) -> float | None:
    """Measured utilisation in the convention of plans; None where the chip has no peak of the format or no time."""
    profile = load_profile(record.cluster.profile, calibrated=False)
    peak = profile.device(record.cluster.device).peak_flops.get(record.training.precision)
    step_s = measured_step_s(record)
    if peak is None or step_s is None:
        return None
    ranks = int(record.cluster.num_npus or 1) * profile.devices_per_npu
    return mfu(record.model, record.training.seq_length, tokens_of(record) / step_s / ranks, peak)


LEAST_UNCALIBRATED = 0.15  # log standard deviation where the class has no record
LEAST_IN_CLASS = 4  # weight that a spread rests on: the farthest of four residuals holds four of five further ones
LEAST_IN_SUBCLASS = 8  # below, the spread of the whole class stands
INTERVAL_COVERAGE = 0.8


@dataclass(frozen=True)
class ClassSpread:
    """Errors that the records of a class left over when their families were left out.

    parameter_variance : the part of log_sigma squared that comes from the parameters of the fits that predicted them.
    """

    log_sigma: float
    parameter_variance: float
    records: tuple[Mapping[str, Any], ...]

    def variance_with(self, parameter_variance: float) -> float:
        """Variance of a run whose own parameters add this much."""
        return class_variance(self.log_sigma, self.parameter_variance, parameter_variance)


def log_sigma_of(residuals: Floats, weights: Floats | None = None) -> float:
    """Standard deviation whose normal 80 % interval holds the next residual with a probability of 80 %.

    Of n exchangeable residuals the one of rank 0.8 (n + 1) does (conformal prediction); between ranks linear, beyond
    the last the last.

    weights : of each residual [records]: those of one configuration share one. One each without it.
    """
    weights = np.ones(len(residuals)) if weights is None else weights
    order = np.argsort(np.abs(residuals))
    sizes = np.concatenate([[0.0], np.abs(residuals)[order]])
    ranks = np.concatenate([[0.0], np.cumsum(weights[order])])
    return float(np.interp(INTERVAL_COVERAGE * (ranks[-1] + 1.0), ranks, sizes)) / Z80


def weights_of(rows: Sequence[Mapping[str, Any]]) -> Floats:
    """Weight of each row of the coverage table [rows].

    Rows of one configuration share one; n configurations of one family of models, whose left-out residuals are partly
    one error, count as the square root of n.
    """
    names = [row.get("configuration", number) for number, row in enumerate(rows)]
    families = [row.get("model_family", name) for row, name in zip(rows, names, strict=True)]
    counts = Counter(names)
    sizes = Counter(family for family, _ in set(zip(families, names, strict=True)))
    shares = [1.0 / counts[name] / sizes[family] ** 0.5 for family, name in zip(families, names, strict=True)]
    return np.array(shares, dtype=np.float64)


def class_spread(
    run: Mapping[str, Any], basis: Sequence[Mapping[str, Any]], left_out: Floats, parameter_variance: Floats
) -> ClassSpread:
    """Spread of the narrowest class of a run that has enough records in `basis`.

    left_out, parameter_variance : of every record of `basis`: its left-out residual, and the part of that residual's
        variance that comes from the parameters.
    """
    for name, least in zip(classes_of_run(run), (LEAST_IN_SUBCLASS, LEAST_IN_CLASS), strict=True):
        same = np.array([name in classes_of_run(row) for row in basis], dtype=bool)
        spread = _spread(basis, same, left_out, parameter_variance)
        if round(float(weights_of(spread.records).sum())) >= least:
            return spread
    return spread_of_all(basis, left_out, parameter_variance)


def spread_of_all(basis: Sequence[Mapping[str, Any]], left_out: Floats, parameter_variance: Floats) -> ClassSpread:
    """Spread of a run of a class that has too few records in `basis`: of all; parameters as of `class_spread`."""
    whole = _spread(basis, np.ones(len(basis), dtype=bool), left_out, parameter_variance)
    return replace(whole, log_sigma=max(LEAST_UNCALIBRATED, whole.log_sigma))


def _spread(
    rows: Sequence[Mapping[str, Any]], same: npt.NDArray[np.bool_], left_out: Floats, parameter_variance: Floats
) -> ClassSpread:
    """Spread of the rows that are the same; of none, nothing."""
    kept = tuple(compress(rows, same))
    if not kept:
        return ClassSpread(0.0, 0.0, ())
    weights = weights_of(kept)
    variance = float(np.average(parameter_variance[same], weights=weights))
    return ClassSpread(log_sigma_of(left_out[same], weights), variance, kept)


def class_spreads(
    rows: Sequence[Mapping[str, Any]], left_out: Floats, parameter_variance: Floats
) -> dict[str, dict[str, float]]:
    """Spread, number of configurations and mean variance from the parameters of every class that has enough of them,
    six significant digits.
    """
    spreads: dict[str, dict[str, float]] = {}
    for place, least in ((0, LEAST_IN_SUBCLASS), (1, LEAST_IN_CLASS)):
        names = np.array([classes_of_run(row)[place] for row in rows])
        for name in np.unique(names):
            spread = _spread(rows, names == name, left_out, parameter_variance)
            if round(float(weights_of(spread.records).sum())) >= least:
                spreads[str(name)] = {
                    "log_sigma": rounded(spread.log_sigma),
                    "n": len({row.get("configuration", number) for number, row in enumerate(spread.records)}),
                    "parameter_variance": rounded(spread.parameter_variance),
                }
    return spreads


def memory_table(rows: Sequence[Mapping[str, Any]], regimes: Sequence[str], residuals: Floats) -> dict[str, Any]:
    """Memory in the coverage table: spread by class, and runs of the records.

    rows : `run_row` of every record with a memory. regimes : STEADY or FEW_ITERATIONS of each. residuals : of each,
        log(predicted / measured).
    """
    classes: dict[str, dict[str, float]] = {}
    makers = [str(row["vendor_family"]) for row in rows]
    names = [names_of(maker, regime) for maker, regime in zip(makers, regimes, strict=True)]
    for name in sorted({name for each in names for name in each}):
        of_class = residuals[[name in each for each in names]]
        if len(of_class) >= LEAST_IN_SUBCLASS:
            classes[name] = {"log_sigma": rounded(log_sigma_of(of_class)), "n": len(of_class)}
    kept = ("vendor_family", *MEMORY_PER_DOUBLING, "features")
    return {"classes": classes, "records": [{name: row[name] for name in kept} for row in rows]}


@contextmanager
def covering(table: Mapping[str, Any]) -> Iterator[None]:
    """The table is in use while the context lasts."""
    TABLES.append((table, {}))
    try:
        yield
    finally:
        TABLES.pop()
