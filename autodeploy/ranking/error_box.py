"""The box of efficiencies that calibration leaves possible, and its corners."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autodeploy.calibration.coverage import CARRIED_FROM, coverage
from autodeploy.calibration.fit import FitParameter, values_of
from autodeploy.calibration.parameters import PARAMETERS
from autodeploy.calibration.spreads import Z80

if TYPE_CHECKING:
    from autodeploy.evaluation.inner_problem import Floats
    from hardware_profiles.profile import Profile

ANYWHERE = "nvidia-h100"  # parameters that every device has: matrix units, attention, memory, experts

UNMEASURED_LINK = 0.30  # the prior of links that are fitted, log standard deviation


@dataclass(frozen=True)
class ErrorBox:
    """Free efficiencies of a device with the half-width of each, as logarithms [parameters]."""

    parameters: tuple[FitParameter, ...]
    half_widths: Floats

    def only(self, which: npt.NDArray[np.bool_]) -> ErrorBox:
        """The box of some of the efficiencies [parameters]; the others stay as they are."""
        kept = tuple(p for p, mark in zip(self.parameters, which, strict=True) if mark)
        return ErrorBox(kept, self.half_widths[which])

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


def error_box(profile: Profile) -> ErrorBox:
    """80 % of each fitted efficiency's posterior and of each link's; the other efficiencies stay.

    A device without a fit of its own has the spreads of the device that its efficiencies come from, and the prior of
    its links, which are not carried over. Factors on the time of old releases are left out: plans run on the current
    one.
    """
    family = profile.family if profile.family in PARAMETERS else CARRIED_FROM.get(profile.family, ANYWHERE)
    spreads = coverage()["parameter_log_sigma"][family]
    tiers = {f"link_{tier.name}" for tier in profile.tiers}
    found, widths = [], []
    for parameter in PARAMETERS[family]:
        names = [name for name in parameter.multiplies if not name.startswith("release_")]
        links = [name for name in names if name.startswith("link_")]
        if not names or not set(links) <= tiers:
            continue
        carried_link = bool(links) and family != profile.family
        sigma = parameter.prior_sigma if carried_link else float(spreads[parameter.name])
        found.append(parameter)
        widths.append(Z80 * sigma)
    named = {name for parameter in found for name in parameter.multiplies}
    for tier in profile.tiers:
        if f"link_{tier.name}" not in named:
            meaning = f"rate of collectives on {tier.name}, which no record has measured"
            found.append(FitParameter(tier.name, (f"link_{tier.name}",), UNMEASURED_LINK, meaning))
            widths.append(Z80 * UNMEASURED_LINK)
    return ErrorBox(tuple(found), np.array(widths, dtype=np.float64))


def factors_of(box: ErrorBox, log_factors: Floats) -> dict[str, float]:
    """Factor on each parameter at a corner, three digits after the point."""
    return {p.name: round(math.exp(v), 3) for p, v in zip(box.parameters, log_factors, strict=True)}
