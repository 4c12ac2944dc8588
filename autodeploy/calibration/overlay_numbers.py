"""The numbers of a profile under fitted factors, in the shape of a calibration overlay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.parameters import ELSEWHERE
from hardware_profiles.efficiencies import limited

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.calibration.fit import Fit
    from hardware_profiles.profile import Profile

DIGITS = 6


def overlay_numbers(
    profile: Profile,
    fit: Fit,
    *,
    kind: str,
    source: str,
    carried: bool = False,
    measured_over: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Each number that a fitted parameter multiplies, with its new value, six significant digits.

    Parameters
    ----------
    profile : whose numbers are multiplied.
    measured_over : the shapes or sizes that benchmarks measured, by axis.
    carried : the factors were fitted on another device; its links say nothing of this one's.
    """
    found: dict[str, dict[str, Any]] = {}
    sigma = np.sqrt(np.diag(fit.covariance))
    for parameter, value, spread in zip(fit.parameters, fit.log_factors, sigma, strict=True):
        factor = float(np.exp(value))
        for name in parameter.multiplies:
            note = f"factor {rounded(factor)} on the prior, +- {100 * spread:.0f} %"
            entry: dict[str, Any] = {"kind": kind, "source": source, "note": note}
            if measured_over is not None:
                entry["measured_over"] = {axis: list(ends) for axis, ends in measured_over.items()}
            if name.startswith("link_"):
                tier = name.removeprefix("link_")
                if any(t.name == tier for t in profile.tiers) and not carried:
                    new = min(1.0, profile.tier(tier).efficiency * factor)
                    found.setdefault(tier, {})["efficiency"] = {"value": rounded(new), **entry}
            elif name in ELSEWHERE:
                section, _, number = ELSEWHERE[name].partition(".")
                new = profile.quantity(ELSEWHERE[name]).value * factor
                found.setdefault(section, {})[number] = {"value": rounded(new), **entry}
            elif name.startswith("release_"):
                band = name.removeprefix("release_")
                new = profile.release_factors.get(band, 1.0) * factor
                found.setdefault("release_factors", {})[band] = {"value": rounded(new), **entry}
            else:
                new = limited(name, profile.efficiency[name] * factor)
                found.setdefault("efficiency", {})[name] = {"value": rounded(new), **entry}
    return found


def rounded(value: float, digits: int = DIGITS) -> float:
    """The value with that many significant digits."""
    return float(f"{value:.{digits}g}")
