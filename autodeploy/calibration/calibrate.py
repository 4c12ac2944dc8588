"""Calibration of a profile's efficiencies to records, and the tables that intervals rest on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.configurations import shares_of
from autodeploy.calibration.covariances import covariance_document, fitted_covariance
from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import (
    Fit,
    fit,
    latest_kept,
    left_out_residuals,
    limits_of,
    parameter_variances,
    values_of,
)
from autodeploy.calibration.measured import fits_time, measured_step_s, states_time
from autodeploy.calibration.overlay_numbers import overlay_numbers, rounded
from autodeploy.calibration.parameters import PARAMETERS, nuisances_of
from autodeploy.calibration.predict import predict_record
from autodeploy.calibration.release_defaults import in_graph_mode
from autodeploy.errors import SpecError
from autodeploy.messages import Message
from hardware_profiles.covariance import FittedFactor
from hardware_profiles.loader import load_profile, shipped_profiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.calibration.predict import Prediction
    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

# Noise of a record, log standard deviation: repeats of one configuration differ by 3.5 %; a chip grade that the source
# does not name may be the next one (18 %). Of low confidence are speeds converted from a utilisation whose convention
# the source does not state: at 32K tokens, full or causal attention differ by a quarter, 0.22 in the logarithm.
NOISE = 0.06
NOISE_UNKNOWN_GRADE = 0.12
NOISE_LOW_CONFIDENCE = 0.12


@dataclass(frozen=True)
class Calibration:
    """A fit of one profile with what it was fitted to."""

    profile: Profile
    records: tuple[Record, ...]
    fit: Fit
    left_out: Floats  # log(predicted / measured) of each record by a fit without its family
    parameter_variance: Floats  # of each of these, from the uncertainty of that fit's parameters

    @property
    def family(self) -> str:
        """Device family."""
        return self.profile.family


def noise_of(record: Record) -> float:
    """Standard deviation of the logarithm of a record's measurement."""
    if record.confidence == "low" or not states_time(record):
        return NOISE_LOW_CONFIDENCE
    return NOISE_UNKNOWN_GRADE if in_graph_mode(record) else NOISE


def calibrate(
    records: Sequence[Record], profile_name: str, *, start: Floats | None = None, iterations: int = 8
) -> Calibration:
    """Fit the efficiencies of a profile to the records that ran on it and on those that take its factors, each
    configuration with one weight; without records the priors stand.

    Parameters
    ----------
    start : log factors to start from.

    Raises
    ------
    SpecError
        if the profile's family has no free parameters.
    """
    profile = load_profile(profile_name, calibrated=False)
    if profile.family not in PARAMETERS:
        raise SpecError(
            Message("calibration.no_free_parameters_are_defined_for", family=profile.family),
            path="/profile",
            hint=", ".join(sorted(PARAMETERS)),
        )
    parameters = (*PARAMETERS[profile.family], *nuisances_of(profile))
    group = fitted_together(profile_name)
    used = tuple(r for r in records if r.cluster.profile in group and fits_time(r))
    measured = np.array([measured_step_s(r) for r in used], dtype=np.float64)
    factors = tuple(FittedFactor(name=p.name, multiplies=p.multiplies) for p in parameters)

    def values_at(log_factors: Floats) -> dict[str, dict[str, float]]:
        return {name: values_of(parameters, log_factors, each.efficiency) for name, each in group.items()}

    @latest_kept
    def predicted_at(log_factors: Floats) -> list[Prediction]:
        values = values_at(log_factors)
        return [
            predict_record(r, efficiency=values[r.cluster.profile], calibrated=False, factors_of=lambda _: factors)
            for r in used
        ]

    def residuals(log_factors: Floats) -> Floats:
        return np.log(np.array([p.step_time_s for p in predicted_at(log_factors)], dtype=np.float64) / measured)

    def slopes(log_factors: Floats) -> Floats:
        rows = [p.slopes for p in predicted_at(log_factors)]
        return np.array(rows, dtype=np.float64).reshape(len(used), len(parameters))

    noise = np.array([noise_of(r) for r in used])
    limits = limits_of(parameters, profile.efficiency)
    result = fit(
        parameters,
        residuals,
        noise,
        upper=limits,
        share=shares_of(used),
        slopes=slopes,
        start=start,
        iterations=iterations,
    )
    families = [family_of(r) for r in used]
    return Calibration(
        profile, used, result, left_out_residuals(result, families), parameter_variances(result, families)
    )


def fitted_together(profile_name: str) -> dict[str, Profile]:
    """The profiles whose records a fit of this one sees, by name: its own, and those that take its factors."""
    every = {name: load_profile(name, calibrated=False) for name in shipped_profiles()}
    return {n: p for n, p in every.items() if profile_name in (n, p.document.calibration.factors_of)}


def overlay_of(calibration: Calibration, target: Profile | None = None) -> dict[str, Any]:
    """The overlay that brings a profile to the fitted values, six significant digits.

    Parameters
    ----------
    target : another profile that these factors are carried over to; its numbers are then assumed, not fitted.
    """
    profile = target or calibration.profile
    carried = profile.name != calibration.profile.name
    counts = Counter(record.cluster.profile for record in calibration.records)
    source = f"MAP fit to {' and '.join(f'{n} records on {name}' for name, n in counts.items()) or 'no record'}"
    kind = "assumed" if carried and not counts[profile.name] else "fitted"
    if kind == "assumed":
        source = Message("calibration.carried_over_from", profile=calibration.profile.name, text=source)
    document: dict[str, Any] = {"profile": profile.name}
    document |= overlay_numbers(profile, calibration.fit, kind=kind, source=source, carried=carried)
    document["covariance"] = covariance_document(fitted_covariance(profile, calibration.fit, source, carried=carried))
    error = np.abs(np.expm1(-calibration.left_out))
    if len(error):
        document["report"] = {
            "records": len(calibration.records),
            "left_out_mape_pct": rounded(100.0 * float(error.mean()), 3),
            "left_out_p90_pct": rounded(100.0 * float(np.percentile(error, 90)), 3),
        }
    return document
