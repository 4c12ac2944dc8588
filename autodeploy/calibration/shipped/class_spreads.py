"""Spreads of prediction errors by class of run, and the coverage of intervals."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from contextlib import contextmanager
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.overlays import rounded
from autodeploy.calibration.profile_fit import configuration_of
from autodeploy.calibration.record_prediction import measured_step_s, record_candidate, runnable, tokens_of
from autodeploy.costs.prediction_spread import (
    ELSEWHERE,
    MEMORY_PER_DOUBLING,
    RANKS_PER_DOUBLING,
    TABLES,
    UNCALIBRATED,
    Z80,
    classes_of_run,
    distance_variances,
    names_of,
    run_of_axes,
)
from autodeploy.costs.workload.flops import mfu
from autodeploy.specs.software import features_of
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autodeploy.calibration.profile_fit import Calibration
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
HALVINGS = 60
LEAST_IN_SUBCLASS = 8  # below, the spread of the whole class stands
INTERVAL_COVERAGE = 0.8


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


def unexplained_variance(residuals: Floats, explained: Floats, weights: Floats) -> float:
    """Variance beside what is explained of each residual with which their 80 % intervals hold the next one so often.

    By bisection; 0 where what is explained is enough. explained : variance of each residual [records].
    """

    def is_enough(variance: float) -> bool:
        return log_sigma_of(residuals / np.sqrt(np.maximum(explained + variance, 1e-12)), weights) <= 1.0

    low, high = 0.0, 4.0 * float(np.max(residuals**2, initial=0.0))
    if is_enough(low):
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


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


def class_spreads(
    rows: Sequence[Mapping[str, Any]],
    left_out: Floats,
    parameter_variance: Floats,
    between: Mapping[str, Mapping[str, float]],
    by_chip: Mapping[str, float],
) -> dict[str, dict[str, float]]:
    """Spread, number of configurations and mean variance from the parameters and from the distance of every class of a
    chip that has enough of them, six significant digits.

    left_out, parameter_variance : of every row: its left-out residual, and the part of that residual's variance that
        comes from the parameters; what comes from the distance follows from the rows of other families of models.
        between : entries of chips without runs, dense and with experts. by_chip : growths with ranks.

    Notes
    -----
    A chip's class is one of all chips' classes, and shares with them what neither parameters nor distance explains: its
    variance is the mean of what its own n configurations say and of that of classes left out whole, which counts as
    many as a class must have, with what parameters and distance are here.
    """
    spreads: dict[str, dict[str, float]] = {}
    for place, least in ((0, LEAST_IN_SUBCLASS), (1, LEAST_IN_CLASS)):
        names = np.array([classes_of_run(row)[place] for row in rows])
        for name in np.unique(names):
            same = names == name
            kept = list(compress(rows, same))
            weights = weights_of(kept)
            if round(float(weights.sum())) < least:
                continue
            distances = distance_variances(kept, [str(row["model_family"]) for row in kept], by_chip)
            of_parameters, of_distance = (
                float(np.average(each, weights=weights)) for each in (parameter_variance[same], distances)
            )
            unexplained = between[UNCALIBRATED[bool(kept[0]["moe"])]]["unexplained_variance"]
            squares = log_sigma_of(left_out[same], weights) ** 2, unexplained + of_parameters + of_distance
            shares = (weights.sum(), LEAST_IN_CLASS)
            spreads[str(name)] = {
                "log_sigma": rounded(float(np.average(squares, weights=shares)) ** 0.5),
                "n": len({row.get("configuration", number) for number, row in enumerate(kept)}),
                "parameter_variance": rounded(of_parameters),
                "distance_variance": rounded(of_distance),
            }
    return spreads


def growths_on(calibration: Calibration, rows: Mapping[str, Mapping[str, Any]]) -> Floats:
    """By how much log(predicted / measured) moves with a doubling of the ranks, from the fewest to the most of each
    configuration that ran on several numbers of them [configurations].
    """
    series: dict[str, dict[int, list[float]]] = {}
    for record, residual in zip(calibration.records, calibration.fit.residuals, strict=True):
        sizes = series.setdefault(configuration_of(record), {})
        sizes.setdefault(int(rows[record.id]["ranks"]), []).append(float(residual))
    moved = [
        float(np.mean(sizes[max(sizes)]) - np.mean(sizes[min(sizes)])) / math.log2(max(sizes) / min(sizes))
        for sizes in series.values()
        if len(sizes) > 1
    ]
    return np.array(moved, dtype=np.float64)


def slopes_by_chip(growths: Mapping[str, Floats]) -> dict[str, float]:
    """`ranks_per_doubling` of each family of chips, and of those without runs."""
    every = {**growths, ELSEWHERE: np.zeros(0)}
    squares = {name: float(np.mean(each**2)) for name, each in growths.items() if len(each)}
    slopes = {}
    for name, own in every.items():
        others = [square for chip, square in squares.items() if chip != name] or [RANKS_PER_DOUBLING**2]
        slopes[name] = ranks_per_doubling(own, float(np.mean(others)))
    return slopes


def ranks_per_doubling(own: Floats, square: float) -> float:
    """Standard deviation of log step time that a doubling of the ranks adds, six significant digits.

    own : growths of configurations on a chip. square : mean over all other chips that have any of their mean squares.

    Notes
    -----
    Within configurations, since what another configuration is off by is no matter of its ranks and counts in the
    class. The mean square is that of the chip's own and, as `LEAST_IN_CLASS` more, of the other chips'.
    """
    return rounded(math.sqrt((float(np.sum(own**2)) + LEAST_IN_CLASS * square) / (len(own) + LEAST_IN_CLASS)))


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
