"""Tables that ship: overlays of profiles, those carried to chips without runs, and coverage."""

from __future__ import annotations

import json
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
    fits_time,
    memory_regime,
    predict_record,
)
from autodeploy.calibration.shipped.class_spreads import (
    memory_table,
    run_row,
)
from autodeploy.calibration.shipped.left_out_widths import width_table
from autodeploy.calibration.shipped.strategy_groups import gains, realised_of
from autodeploy.calibration.shipped.unseen_classes import spread_table, unseen_runs
from autodeploy.costs.prediction_spread import REPEAT_NOISE
from autodeploy.kit.yaml_text import profile_text
from autodeploy.specs.record import Record, read_records
from autodeploy.specs.software import release_of
from hardware_profiles.loader import load_profile, shipped_profiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    links = link_parameters(target.tiers)
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
    return [record for name in RECORD_FILES for record in _records_of(name)]


@cache
def _records_of(name: str) -> tuple[Record, ...]:
    return tuple(read_records(Path(str(files("autodeploy.calibration") / "records" / name))))


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


def rows_of(calibrations: Sequence[Calibration], records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Rows of the coverage table of all records that fits see, by name: with the fit and what it left over."""
    rows = {record.id: run_row(record) for record in records if fits_time(record)}
    for calibration in calibrations:
        for record, residual in zip(calibration.records, calibration.left_out, strict=True):
            rows[record.id] |= {"fit": calibration.profile.family, "left_out": rounded(float(residual), 4)}
    return rows


def coverage_table(calibrations: Sequence[Calibration], records: Sequence[Record]) -> dict[str, Any]:
    """Residual spread per family and class, spread of ratios between strategies, and what every record ran."""
    rows = rows_of(calibrations, records)
    pairs = [each for calibration in calibrations for each in _pair_differences(calibration)]
    memory, of_memory = _memory_residuals(records), [r for r in records if r.measured.peak_memory_gib is not None]
    table = {
        "alike_log_sigma": alike_log_sigma(calibrations),
        "memory": memory_table([run_row(r) for r in of_memory], [memory_regime(r) for r in of_memory], memory),
        "pair_log_sigma": _ratio_sigma(np.array(pairs)) if pairs else 0.05,
        "realised": realised_of(gains(records, calibrations)),
        "widths": {c.profile.family: width_table(c, [rows[r.id] for r in c.records]) for c in calibrations},
    }
    return table | spread_table(calibrations, rows, unseen_runs(records))


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
    return rounded(max(0.005**2, spread**2 - 2.0 * REPEAT_NOISE**2) ** 0.5) if spread > 0.0 else 0.005


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
