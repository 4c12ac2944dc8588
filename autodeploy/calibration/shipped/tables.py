"""Tables that ship: overlays of profiles, those carried to chips without runs, and coverage."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.fit import link_parameters
from autodeploy.calibration.overlays import covariance_of_matrix, overlay_numbers, rounded
from autodeploy.calibration.profile_fit import Calibration, calibrate, configuration_of, overlay_of, source_of
from autodeploy.calibration.record_prediction import (
    counts_for_time,
    fits_time,
    kind_of_record,
    measured_step_s,
    memory_regime,
    predict_record,
)
from autodeploy.calibration.shipped.class_spreads import (
    INTERVAL_COVERAGE,
    LEAST_UNCALIBRATED,
    class_spreads,
    memory_table,
    run_row,
)
from autodeploy.calibration.shipped.left_out_widths import projected, variances_of, width_table
from autodeploy.calibration.shipped.strategy_groups import gains, ranks_per_doubling, realised_of, rehearsals
from autodeploy.costs.inputs.context import PRETRAINING
from autodeploy.costs.prediction_spread import REPEAT_NOISE
from autodeploy.costs.steps.scenarios import times_of_host
from autodeploy.kit.errors import SpecError
from autodeploy.kit.yaml_text import profile_text
from autodeploy.specs.record import Record, read_records
from autodeploy.specs.software import release_of
from hardware_profiles.loader import load_profile, shipped_profiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile
    from hardware_profiles.schema import CalibrationOrigin


def carried_overlay(calibration: Calibration, target: Profile) -> dict[str, Any]:
    """The overlay of another profile that the factors of a fit are carried over to.

    Its numbers are assumed, not fitted, where no record ran on it. The factors of links stay behind: the marginal
    covariance of the others, and every tier of the device as uncertain as before any run.
    """
    fit, source, kind = calibration.fit, source_of(calibration), "fitted"
    if not any(record.cluster.profile == target.name for record in calibration.records):
        source, kind = f"carried over from {calibration.profile.name}: {source}", "assumed"
    kept = [n for n, p in enumerate(fit.parameters) if not p.multiplies_any("link_")]
    links = link_parameters(tier.name for tier in target.tiers)
    matrix = np.diag([0.0] * len(kept) + [p.prior_sigma**2 for p in links])
    matrix[: len(kept), : len(kept)] = fit.covariance[np.ix_(kept, kept)]
    covariance = covariance_of_matrix((*(fit.parameters[n] for n in kept), *links), matrix, source)
    moved = fit.moved()
    return {
        "profile": target.name,
        **overlay_numbers(target, (moved[n] for n in kept), kind=kind, source=source),
        "covariance": covariance.model_dump(mode="json", exclude_defaults=True),
    }


MEDIAN_OF_NORMAL = 0.6745  # median of |x| of a standard normal
RECORD_FILES = ("ascend.jsonl", "nvidia.jsonl")
HEADING = (
    "Made by `make calibrate`: efficiencies fitted to the shipped records. Edit the profile or the records, not this."
)


def fitted_profiles() -> tuple[str, ...]:
    """Shipped profiles with records of training of their own."""
    return tuple(name for name in shipped_profiles() if _origin(name).fitted)


def carried_profiles() -> dict[str, str]:
    """Shipped profiles without: the fitted one whose factors they take on the efficiencies that both have."""
    origins = {name: _origin(name).factors_of for name in shipped_profiles()}
    return {name: origin for name, origin in origins.items() if origin is not None}


def _origin(name: str) -> CalibrationOrigin:
    return load_profile(name, calibrated=False).document.calibration


def shipped_records() -> list[Record]:
    """All records that ship with the product."""
    return list(_shipped_records())


@cache
def _shipped_records() -> tuple[Record, ...]:
    folder = files("autodeploy.calibration").joinpath("records")
    return tuple(record for name in RECORD_FILES for record in read_records(Path(str(folder.joinpath(name)))))


def write_shipped(profiles_folder: Path, coverage_file: Path, records: Sequence[Record]) -> list[Calibration]:
    """Fit every family again and write its overlays and the coverage table."""
    done = {name: calibrate(records, name) for name in fitted_profiles()}
    profiles_folder.mkdir(parents=True, exist_ok=True)
    for name, calibration in done.items():
        (profiles_folder / f"{name}.yaml").write_text(profile_text(overlay_of(calibration), HEADING), encoding="utf-8")
    for name, origin in carried_profiles().items():
        overlay = carried_overlay(done[origin], load_profile(name, calibrated=False))
        (profiles_folder / f"{name}.yaml").write_text(profile_text(overlay, HEADING), encoding="utf-8")
    table = coverage_table(list(done.values()), records)
    coverage_file.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return list(done.values())


def coverage_table(calibrations: Sequence[Calibration], records: Sequence[Record]) -> dict[str, Any]:
    """Residual spread per family and class, spread of ratios between strategies, and what every record ran."""
    classes: dict[str, dict[str, float]] = {}
    pairs: list[float] = []
    rows = {record.id: run_row(record) for record in records if fits_time(record)}
    for calibration in calibrations:
        spreads = class_spreads(
            [rows[r.id] for r in calibration.records], calibration.left_out, variances_of(calibration)
        )
        classes |= {f"{calibration.profile.family}/{name}": each for name, each in spreads.items()}
        for record, residual in zip(calibration.records, calibration.left_out, strict=True):
            rows[record.id]["fit"] = calibration.profile.family
            rows[record.id]["left_out"] = rounded(float(residual), 4)
        pairs += _pair_differences(calibration)
    memory, of_memory = _memory_residuals(records), [r for r in records if r.measured.peak_memory_gib is not None]
    # A device without records: what carrying efficiencies over between families has cost (B200, prior alone: 14.5 %).
    classes["uncalibrated"] = {
        "log_sigma": max([LEAST_UNCALIBRATED, *(c["log_sigma"] for c in classes.values())]),
        "n": 0,
        "parameter_variance": rounded(prior_variance(calibrations)),
    }
    return {
        "alike_log_sigma": alike_log_sigma(calibrations),
        "classes": classes,
        "memory": memory_table([run_row(r) for r in of_memory], [memory_regime(r) for r in of_memory], memory),
        "pair_log_sigma": _ratio_sigma(np.array(pairs)) if pairs else 0.05,
        "ranks_per_doubling": {c.profile.family: ranks_per_doubling(rehearsals(c, rows)) for c in calibrations},
        "realised": realised_of(gains(records, calibrations)),
        "records": list(rows.values()),
        **beyond_table(records),
        "widths": {c.profile.family: width_table(c, [rows[r.id] for r in c.records]) for c in calibrations},
    }


def prior_variance(calibrations: Sequence[Calibration]) -> float:
    """Mean over all records of the variance of their log predictions before any fit: what a device without records
    meets. Releases' factors are left out: plans are for the current one.
    """
    variances: list[float] = []
    for calibration in calibrations:
        fit = calibration.fit
        widths = [0.0 if p.multiplies_any("release_") else p.prior_sigma for p in fit.parameters]
        variances += [float(v) for v in projected(fit.jacobian, np.diag(np.square(widths)))]
    return float(np.mean(variances)) if variances else 0.0


def _memory_residuals(records: Sequence[Record]) -> Floats:
    """log(predicted / measured) of every allocator peak; nothing in the memory model is fitted."""
    measured = [r for r in records if r.measured.peak_memory_gib is not None]
    predicted = [predict_record(r, calibrated=False).memory_gib for r in measured]
    return np.log(np.array(predicted) / np.array([r.measured.peak_memory_gib for r in measured], dtype=np.float64))


def _ratio_sigma(differences: Floats) -> float:
    """Standard deviation of the model's error in a ratio of two strategies: the middle of the pairs' differences, less
    the repeat noise of both measurements.
    """
    spread = float(np.median(np.abs(differences))) / MEDIAN_OF_NORMAL
    return float(f"{max(0.005**2, spread**2 - 2.0 * REPEAT_NOISE**2) ** 0.5:.6g}") if spread > 0.0 else 0.005


def alike_log_sigma(calibrations: Sequence[Calibration]) -> float:
    """Standard deviation of the model's error in a ratio of two runs whose ranks do the same work.

    The middle of the differences between rows of one configuration on different numbers of ranks, each configuration
    with its own middle. Repeats differ too, so this is an upper limit.
    """
    middles = []
    for calibration in calibrations:
        groups: dict[str, list[tuple[int | None, float]]] = {}
        for record, residual in zip(calibration.records, calibration.fit.residuals, strict=True):
            groups.setdefault(configuration_of(record), []).append((record.cluster.num_npus, float(residual)))
        for members in groups.values():
            apart = [abs(a - b) for (n, a), (m, b) in combinations(members, 2) if n != m]
            middles += [float(np.median(apart))] if apart else []
    return rounded(float(np.median(middles)) / MEDIAN_OF_NORMAL) if middles else REPEAT_NOISE


def _pair_differences(calibration: Calibration) -> list[float]:
    """Differences of residuals between strategies of one model on one cluster and release: what does not cancel."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for record, residual in zip(calibration.records, calibration.fit.residuals, strict=True):
        key = (record.model.name, record.cluster.num_npus, record.source.split("@")[0], release_of(record).band)
        groups.setdefault((*key, record.training.seq_length), []).append(float(residual))
    return [first - second for members in groups.values() for first, second in combinations(members, 2)]


# Errors of kinds of runs that no fit sees, by source, each predicted without itself. Fits see pre-training alone: what
# formulas lack for update phases, tuning and fully sharded runs is a property of a source, whose rows count once.
HALVINGS = 60
FACTORS = np.exp(np.linspace(math.log(0.2), math.log(5.0), 9))  # of the cost of a new shape, tried for one source


@dataclass(frozen=True)
class Unseen:
    """A run that no fit sees: its source, and log(measured / predicted) of step time, at each of FACTORS where the
    cost of a new shape counts, else once.
    """

    record: Record
    kind: str
    source: str
    at: Floats

    @property
    def changes(self) -> bool:
        """Whether the cost of a new shape counts."""
        return len(self.at) > 1


def unseen_runs(records: Iterable[Record]) -> list[Unseen]:
    """Runs of other kinds than pre-training whose time counts, as the shipped profiles predict them."""
    found = []
    for record in records:
        if not counts_for_time(record) or fits_time(record):
            continue
        try:
            predicted = predict_record(record)
        except SpecError:
            continue
        kind, measured = kind_of_record(record), measured_step_s(record)
        if kind == PRETRAINING or measured is None:
            continue
        factors = FACTORS if predicted.context.host.changing_shapes else np.ones(1)
        times = times_of_host(predicted.candidate, predicted.context, predicted.layout, factors)
        source = record.source.split("@")[0].split()[0]
        found.append(Unseen(record, kind, source, np.log(measured / times)))
    return found


def left_out_residuals(runs: Sequence[Unseen]) -> Floats:
    """log(measured / predicted) of each run, by the cost of a new shape that the other sources say [runs].

    That cost is fitted to update phases: where a source is left out, it is the one under which the others' mean
    residuals have the least squares. Without others it stays.
    """
    found = np.empty(len(runs))
    for number, run in enumerate(runs):
        others = {r.source for r in runs if r.changes and r.source != run.source}
        if not run.changes or not others:
            found[number] = np.interp(0.0, np.log(FACTORS), run.at) if run.changes else run.at[0]
            continue
        means = [np.mean([r.at for r in runs if r.changes and r.source == each], axis=0) for each in sorted(others)]
        found[number] = run.at[int(np.argmin(np.sum(np.square(means), axis=0)))]
    return found


def sides(means: Sequence[float]) -> tuple[float, float]:
    """Half of an 80 % interval to shorter and to longer times, in log time, from the mean residual of each source.

    Each side has the root mean square of its own sources and Student's t with as many degrees of freedom; a side
    without any takes the other's.
    """
    values = np.asarray(means)
    found = []
    for side in (values[values < 0], values[values > 0]):
        found.append(student_80(len(side)) * float(np.sqrt(np.mean(side**2))) if len(side) else None)
    down, up = found
    return (down if down is not None else up) or 0.0, (up if up is not None else down) or 0.0


def student_80(freedom: int) -> float:
    """Half of the 80 % interval of Student's t, by bisection of its distribution.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4: probability between -t and t
    as a finite sum over powers of the cosine of theta, tan(theta) = t / sqrt(freedom).
    """
    low, high = 0.0, math.pi / 2.0
    for _ in range(HALVINGS):
        theta = (low + high) / 2.0
        low, high = (theta, high) if _student_inside(theta, freedom) < INTERVAL_COVERAGE else (low, theta)
    return math.tan(low) * math.sqrt(freedom)


def _student_inside(theta: float, freedom: int) -> float:
    """Probability between both signs of sqrt(freedom) tan(theta)."""
    odd = freedom % 2
    term, total = math.cos(theta) if odd else 1.0, 0.0
    for power in range(1 + odd, freedom, 2):  # each term has two powers of the cosine more
        total += term
        term *= power / (power + 1.0) * math.cos(theta) ** 2
    return 2.0 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total


def means_by_source(runs: Sequence[Unseen], residuals: Floats) -> dict[str, float]:
    """Mean residual of each source."""
    sources = sorted({run.source for run in runs})
    return {s: float(np.mean([v for r, v in zip(runs, residuals, strict=True) if r.source == s])) for s in sources}


def beyond_table(records: Iterable[Record]) -> dict[str, Any]:
    """Entries of the coverage table on kinds of runs that no fit sees: `beyond`, and their rows as `others`."""
    runs = unseen_runs(records)
    if not runs:
        return {}
    residuals = left_out_residuals(runs)
    means = means_by_source(runs, residuals)
    shorter, longer = sides(list(means.values()))
    rows: list[Mapping[str, Any]] = [
        {**run_row(run.record), "kind": run.kind, "left_out": rounded(-float(value), 4)}
        for run, value in zip(runs, residuals, strict=True)
    ]
    beyond = {"shorter": rounded(shorter), "longer": rounded(longer), "seen": rounded(float(residuals.max()))}
    return {"beyond": {**beyond, "sources": len(means)}, "others": rows}
