"""Fitted numbers and how uncertain they are, as overlays hold them; where no fit gave that, as priors do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.fit import ELSEWHERE, UNFITTED, link_parameters, measured_elsewhere, portable_parameters
from autodeploy.stack.host import HOST_UNITS
from autodeploy.stack.software import Run, resolved
from hardware_profiles.covariance import Covariance, FittedFactor
from hardware_profiles.efficiencies import limited

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autodeploy.calibration.fit import FitParameter, Moved
    from autodeploy.stack.software import Stack
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

OF_LINKS = ("device_scatter", "dispatch_loss", "combine_loss")  # efficiencies that measurements of the chip may tell
DIGITS = 6


def overlay_numbers(
    profile: Profile,
    moved: Iterable[Moved],
    *,
    kind: str,
    source: str,
    **more: object,
) -> dict[str, dict[str, Any]]:
    """Each number that a fitted parameter multiplies, with its new value, six significant digits.

    profile : whose numbers are multiplied. moved : each parameter, its log factor and the standard deviation of that.
    more : entries of each number beside value, kind, source and note.
    """
    numbers: dict[str, dict[str, Any]] = {}
    for parameter, value, spread in moved:
        factor = float(np.exp(value))
        note = f"factor {rounded(factor)} on the prior, +- {100 * spread:.0f} %"
        for name in parameter.multiplies:
            tier = name.removeprefix("link_")
            if tier != name and not any(t.name == tier for t in profile.tiers):
                continue
            section, number, before = _place_of(profile, name)
            new = min(1.0, before * factor) if number == "efficiency" else limited(number, before * factor)
            entry = {"value": rounded(new), "kind": kind, "source": source, "note": note, **more}
            numbers.setdefault(section, {})[number] = entry
    return numbers


def _place_of(profile: Profile, name: str) -> tuple[str, str, float]:
    """Section and name in a profile of the number that a factor multiplies, and its value."""
    if name.startswith("link_"):
        tier = name.removeprefix("link_")
        return tier, "efficiency", float(profile.tier(tier).efficiency)
    if name.startswith("release_"):
        band = name.removeprefix("release_")
        return "release_factors", band, profile.release_factors.get(band, 1.0)
    path = ELSEWHERE.get(name, f"efficiency.{name}")
    section, _, number = path.partition(".")
    return section, number, profile.quantity(path).value


def software_overlay(document: Mapping[str, Any], stack: Stack) -> tuple[dict[str, Any], dict[str, Any]]:
    """An overlay without the numbers of the software that ran, and these as a stack that inherits from that one.

    Costs of the host to issue an operator and to wait for the device, and the factor of the stack's band, which takes
    the place of that of the profile. What a fit leaves uncertain of them stays with the overlay's covariance.
    """
    places = {("host", fact): fact for fact in ("issue_us_per_op", "sync_us")}
    places |= {("release_factors", resolved(stack, Run()).band): "operator_factor"}
    hardware = {section: dict(rows) if isinstance(rows, dict) else rows for section, rows in document.items()}
    host: dict[str, dict[str, Any]] = {}
    for (section, number), fact in places.items():
        found = hardware.get(section, {}).pop(number, None)
        if found is not None:
            source = f"{found['source']}: {found['note']}" if "note" in found else found["source"]
            host[fact] = {"value": found["value"], "unit": HOST_UNITS[fact], "kind": "record", "source": source}
    name = f"{stack.name}-calibrated"
    software = {"name": name, "title": f"{stack.title}, calibrated", "inherits": stack.name, "host": host}
    return {section: rows for section, rows in hardware.items() if rows != {}}, software


def rounded(value: float, digits: int = DIGITS) -> float:
    """The value with that many significant digits."""
    return float(f"{value:.{digits}g}")


def covariance_of(profile: Profile) -> Covariance:
    """Covariance of a profile's factors: what ships with it or its overlay, else that of the priors.

    The numbers of the host and of large networks are as uncertain as before any run where no fit had them and nobody
    measured them; what was measured since the fit is known.
    """
    fitted = covariance_of_fitted(profile)
    added = unfitted_beside(profile, fitted.factors)
    if not added:
        return fitted
    zeros = (0.0,) * len(fitted.factors)
    rows = tuple((*zeros, *(0.0,) * n, p.prior_sigma**2) for n, p in enumerate(added))
    factors = tuple(FittedFactor(name=p.name, multiplies=p.multiplies) for p in added)
    return fitted.model_copy(
        update={"factors": (*fitted.factors, *factors), "log_covariance": (*fitted.log_covariance, *rows)}
    )


def covariance_of_fitted(profile: Profile) -> Covariance:
    """Of what a fit had; where there was none, of what it would have. Factors of numbers that somebody has measured on
    the device since are left out.
    """
    covariance = profile.covariance
    if covariance is None:
        parameters = (*portable_parameters(profile.family), *link_parameters(profile.tiers))
        variances = np.diag([p.prior_sigma**2 for p in parameters])
        covariance = covariance_of_matrix(parameters, variances, "prior: parameters.yaml, no run was fitted")
    measured = measured_elsewhere(profile)
    kept = [n for n, factor in enumerate(covariance.factors) if not measured.issuperset(factor.multiplies)]
    if len(kept) == len(covariance.factors):
        return covariance
    factors, matrix = [covariance.factors[n] for n in kept], covariance.matrix()[np.ix_(kept, kept)]
    return covariance_of_matrix(factors, matrix, covariance.source, in_residuals=covariance.in_residuals)


def unfitted_beside(profile: Profile, factors: Iterable[FittedFactor | FitParameter]) -> tuple[FitParameter, ...]:
    """Factors of the numbers that a fit of these ones does not have, and nobody has measured."""
    named = measured_elsewhere(profile) | {name for factor in factors for name in factor.multiplies}
    named |= {name for name in OF_LINKS if profile.quantity(f"efficiency.{name}").kind in {"measured", "fitted"}}
    return tuple(parameter for parameter in UNFITTED if not named.intersection(parameter.multiplies))


def covariance_of_matrix(
    parameters: Sequence[FittedFactor | FitParameter], matrix: Floats, source: str, *, in_residuals: float = 0.0
) -> Covariance:
    """Covariance of the log factors of these parameters, six significant digits."""
    return Covariance(
        source=source,
        factors=tuple(FittedFactor(name=p.name, multiplies=p.multiplies) for p in parameters),
        log_covariance=tuple(
            tuple(rounded(float(value)) for value in row[: number + 1]) for number, row in enumerate(matrix)
        ),
        in_residuals=rounded(in_residuals),
    )
