"""Calibration of a profile's efficiencies to records.

Sources publish one layout on many cluster sizes, and one run in several releases; each row repeats the errors of the
others, so their number says nothing, and each configuration counts once.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import PARAMETERS, Fit, fit, left_out_residuals, limits_of, nuisances_of, values_of
from autodeploy.calibration.overlays import covariance_of_matrix, overlay_numbers, rounded
from autodeploy.calibration.record_prediction import fits_time, measured_step_s, predict_record
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.software import in_graph_mode, release_of, stack_of
from hardware_profiles.loader import load_profile, shipped_profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

# Noise of a record, log standard deviation: repeats of one configuration differ by 3.5 %; a chip grade that the source
# does not name may be the next one (18 %). Of low confidence are speeds converted from a utilisation whose convention
# the source does not state: at 32K tokens, full or causal attention differ by a quarter, 0.22 in the logarithm.
NOISE = 0.06
NOISE_UNKNOWN_GRADE = 0.12
NOISE_LOW_CONFIDENCE = 0.12
OF_THE_SIZE = {"name", "num_hidden_layers"}  # of a model: sources cut its depth with the number of devices
OF_THE_RANKS = {"pp", "dp", "layers_per_stage"}  # of a strategy: the layers of a stage stand for them


@dataclass(frozen=True)
class Calibration:
    """A fit of one profile with what it was fitted to."""

    profile: Profile
    records: tuple[Record, ...]
    fit: Fit
    left_out: Floats  # log(predicted / measured) of each record by a fit without its family


def noise_of(record: Record) -> float:
    """Standard deviation of the logarithm of a record's measurement."""
    measured = record.measured
    of_flops = measured.tokens_per_s_per_npu is None and measured.step_time_s is None  # counted by each in its own way
    if record.confidence == "low" or of_flops:
        return NOISE_LOW_CONFIDENCE
    return NOISE_UNKNOWN_GRADE if in_graph_mode(record) else NOISE


def configuration_of(record: Record) -> str:
    """Key of a configuration: chip, stack and software band, shape of the model, layers of a stage, training
    without the batch, and strategy.

    Rows that differ in devices, replicas or micro batches alone, and repeats, share it.
    """
    strategy, cluster = record.strategy, record.cluster
    parts = {
        "where": (cluster.profile, cluster.device, stack_of(record), release_of(record).band),
        "model": record.model.model_dump(mode="json", exclude=OF_THE_SIZE),
        "layers": round(record.model.num_hidden_layers / strategy.pp),
        "training": record.training.model_dump(mode="json", exclude={"global_batch_size"}),
        "strategy": strategy.model_dump(mode="json", exclude=OF_THE_RANKS),
    }
    return json.dumps(parts, sort_keys=True)


def shares_of(records: Sequence[Record]) -> Floats:
    """Weight of each record [records]: those of one configuration share one."""
    names = [configuration_of(record) for record in records]
    counts = Counter(names)
    return np.array([1.0 / counts[name] for name in names], dtype=np.float64)


def calibrate(
    records: Sequence[Record], profile_name: str, *, start: Floats | None = None, iterations: int = 8
) -> Calibration:
    """Fit the efficiencies of a profile to the records that ran on it and on those that take its factors, each
    configuration with one weight; without records the priors stand.

    start : log factors to start from.

    Raises SpecError if the profile's family has no free parameters.
    """
    profile = load_profile(profile_name, calibrated=False)
    if profile.family not in PARAMETERS:
        raise SpecError(
            Message("calibration.no_parameters_to_fit", family=profile.family),
            path="/profile",
            hint=", ".join(sorted(PARAMETERS)),
        )
    parameters = (*PARAMETERS[profile.family], *nuisances_of(profile))
    group = fitted_together(profile_name)
    used = tuple(r for r in records if r.cluster.profile in group and fits_time(r))
    measured = np.array([measured_step_s(r) for r in used], dtype=np.float64)

    def linear(log_factors: Floats) -> tuple[Floats, Floats]:
        values = {name: values_of(parameters, log_factors, each.efficiency) for name, each in group.items()}
        predicted = [
            predict_record(r, efficiency=values[r.cluster.profile], calibrated=False, factors_of=lambda _: parameters)
            for r in used
        ]
        residuals = np.log(np.array([p.step_time_s for p in predicted], dtype=np.float64) / measured)
        slopes = np.array([p.slopes for p in predicted], dtype=np.float64)
        return residuals, slopes.reshape(len(used), len(parameters))

    noise = np.array([noise_of(r) for r in used])
    limits, share = limits_of(parameters, profile.efficiency), shares_of(used)
    result = fit(parameters, linear, noise, upper=limits, share=share, start=start, iterations=iterations)
    return Calibration(profile, used, result, left_out_residuals(result, [family_of(r) for r in used]))


def fitted_together(profile_name: str) -> dict[str, Profile]:
    """The profiles whose records a fit of this one sees, by name: its own, and those that take its factors."""
    every = {name: load_profile(name, calibrated=False) for name in shipped_profiles()}
    return {n: p for n, p in every.items() if profile_name in (n, p.document.calibration.factors_of)}


def source_of(calibration: Calibration) -> str:
    """Source of the numbers of a fit."""
    counts = Counter(record.cluster.profile for record in calibration.records)
    return f"MAP fit to {' and '.join(f'{n} records on {name}' for name, n in counts.items()) or 'no record'}"


def overlay_of(calibration: Calibration) -> dict[str, Any]:
    """The overlay that brings a profile to the fitted values, six significant digits."""
    profile, fitted, source = calibration.profile, calibration.fit, source_of(calibration)
    covariance = covariance_of_matrix(fitted.parameters, fitted.covariance, source)
    document = {
        "profile": profile.name,
        **overlay_numbers(profile, fitted.moved(), kind="fitted", source=source),
        "covariance": covariance.model_dump(mode="json", exclude_defaults=True),
    }
    error = np.abs(np.expm1(-calibration.left_out))
    if len(error):
        document["report"] = {
            "records": len(calibration.records),
            "left_out_mape_pct": rounded(100.0 * float(error.mean()), 3),
            "left_out_p90_pct": rounded(100.0 * float(np.percentile(error, 90)), 3),
        }
    return document
