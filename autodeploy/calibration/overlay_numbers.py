"""The numbers of a profile under fitted factors, as a calibration overlay holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.parameters import ELSEWHERE
from hardware_profiles.efficiencies import limited

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.calibration.fit import Moved
    from hardware_profiles.profile import Profile

DIGITS = 6


def overlay_numbers(
    profile: Profile,
    moved: Iterable[Moved],
    *,
    kind: str,
    source: str,
    carried: bool = False,
    **more: object,
) -> dict[str, dict[str, Any]]:
    """Each number that a fitted parameter multiplies, with its new value, six significant digits.

    Parameters
    ----------
    profile : whose numbers are multiplied. moved : each parameter, its log factor and the standard deviation of that.
    carried : the factors were fitted on another device; its links say nothing of this one's.
    more : entries of each number beside value, kind, source and note.
    """
    found: dict[str, dict[str, Any]] = {}
    for parameter, value, spread in moved:
        factor = float(np.exp(value))
        note = f"factor {rounded(factor)} on the prior, +- {100 * spread:.0f} %"
        for name in parameter.multiplies:
            tier = name.removeprefix("link_")
            if tier != name and (carried or not any(t.name == tier for t in profile.tiers)):
                continue
            section, number, before = _place_of(profile, name)
            new = min(1.0, before * factor) if number == "efficiency" else limited(number, before * factor)
            entry = {"value": rounded(new), "kind": kind, "source": source, "note": note, **more}
            found.setdefault(section, {})[number] = entry
    return found


def _place_of(profile: Profile, name: str) -> tuple[str, str, float]:
    """Section and name in a profile of the number that a factor multiplies, and its value."""
    if name.startswith("link_"):
        tier = name.removeprefix("link_")
        return tier, "efficiency", profile.tier(tier).efficiency
    if name.startswith("release_"):
        band = name.removeprefix("release_")
        return "release_factors", band, profile.release_factors.get(band, 1.0)
    path = ELSEWHERE.get(name, f"efficiency.{name}")
    section, _, number = path.partition(".")
    return section, number, profile.quantity(path).value


def rounded(value: float, digits: int = DIGITS) -> float:
    """The value with that many significant digits."""
    return float(f"{value:.{digits}g}")
