"""The box of efficiencies that calibration leaves possible, and its corners."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autodeploy.calibration.covariances import covariance_of
from autodeploy.calibration.fit import FitParameter, values_of
from autodeploy.calibration.parameters import UNFITTED, known_parameters, link_parameters
from autodeploy.calibration.spreads import Z80

if TYPE_CHECKING:
    from autodeploy.evaluation.inner_problem import Floats
    from hardware_profiles.profile import Profile


@dataclass(frozen=True)
class CornerBox:
    """Free efficiencies of a device with the half-width of each, as logarithms [parameters]."""

    parameters: tuple[FitParameter, ...]
    half_widths: Floats

    def only(self, which: npt.NDArray[np.bool_]) -> CornerBox:
        """The box of some of the efficiencies [parameters]; the others stay as they are."""
        kept = tuple(p for p, mark in zip(self.parameters, which, strict=True) if mark)
        return CornerBox(kept, self.half_widths[which])

    def corners(self) -> Floats:
        """Every corner as log factors [2 ** parameters, parameters], the one with all of them low first."""
        signs = np.array(list(product((-1.0, 1.0), repeat=len(self.parameters))))
        return signs * self.half_widths

    def efficiency(self, profile: Profile, log_factors: Floats) -> dict[str, float]:
        """A profile's efficiencies under log factors; fractions and what links reach stay at most 1."""
        found = values_of(self.parameters, log_factors, profile.efficiency)
        for name in profile.efficiency:
            if profile.quantity(f"efficiency.{name}").unit == "fraction":
                found[name] = min(1.0, found[name])
        for tier in profile.tiers:
            name = f"link_{tier.name}"
            if name in found:
                found[name] = min(found[name], 1.0 / tier.efficiency)
        return found


def corner_box(profile: Profile) -> CornerBox:
    """80 % of each fitted efficiency's posterior, of each link's and of what no fit moves; the others stay.

    The spreads are those of the covariance that ships with the profile or with a cluster's overlay. Factors on the time
    of old releases are left out: plans run on the current one.
    """
    covariance = covariance_of(profile)
    links = link_parameters(tier.name for tier in profile.tiers)
    known = (*known_parameters(profile.family), *UNFITTED, *links)
    meanings = {parameter.name: parameter.meaning for parameter in known}
    found, widths = [], []
    for factor, variance in zip(covariance.factors, np.diag(covariance.matrix()), strict=True):
        if all(name.startswith("release_") for name in factor.multiplies):
            continue
        sigma = math.sqrt(variance)
        found.append(FitParameter(factor.name, factor.multiplies, sigma, meanings.get(factor.name, factor.name)))
        widths.append(Z80 * sigma)
    named = {name for parameter in found for name in parameter.multiplies}
    for link in links:
        if link.name not in named:  # no run of the fit used it
            found.append(link)
            widths.append(Z80 * link.prior_sigma)
    return CornerBox(tuple(found), np.array(widths, dtype=np.float64))


def factors_of(box: CornerBox, log_factors: Floats) -> dict[str, float]:
    """Factor on each parameter at a corner, three digits after the point."""
    return {p.name: round(math.exp(v), 3) for p, v in zip(box.parameters, log_factors, strict=True)}
