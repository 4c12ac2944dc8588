"""The efficiencies that the formulas read: every name, its meaning, unit, default and prior, of `efficiencies.yaml`.

A profile may leave any of them out; the default then stands in with kind "assumed". `prior_sigma` is the relative
standard deviation that calibration gives the number before it has seen a record.
"""

from __future__ import annotations

from dataclasses import dataclass

from hardware_profiles.shipped_yaml import shipped


@dataclass(frozen=True, slots=True)
class EfficiencyTerm:
    """Meaning of one named efficiency.

    `unit` is "fraction" (of the peak named in `meaning`, 0 < value <= `upper`), a count, a "ratio" to another number of
    the profile, or the unit of a half-saturation size: the size x_half in 1 / (1 + x_half / x), at which half of the
    peak is reached.
    """

    name: str
    meaning: str
    unit: str
    default: float
    prior_sigma: float
    upper: float = 1.0
    may_be_zero: bool = False


EFFICIENCY_TERMS = {
    name: EfficiencyTerm(name, **row)
    for name, row in shipped("hardware_profiles", "efficiencies.yaml")["efficiencies"].items()
}


def limited(name: str, value: float) -> float:
    """A number under this name, no higher than the efficiency's limit where it is one."""
    return min(value, EFFICIENCY_TERMS[name].upper) if name in EFFICIENCY_TERMS else value
