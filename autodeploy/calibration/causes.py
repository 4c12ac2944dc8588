"""Causes of wrong predictions, of `causes.yaml`: which of them an uncertain number belongs to, and what settles it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.specs.commissioning import Cause
    from autodeploy.specs.planset import Measurement
    from hardware_profiles.profile import Profile

_CAUSES: Mapping[Cause, dict[str, Any]] = shipped("autodeploy.calibration", "causes.yaml")
SETTLED_BY: Mapping[Cause, Measurement] = {cause: row["settled_by"] for cause, row in _CAUSES.items()}


def cause_of(multiplies: Sequence[str], profile: Profile) -> Cause:
    """The cause that an uncertain number belongs to, by what it multiplies."""
    for cause, row in _CAUSES.items():
        begin = row.get("begin")
        if any(name in row.get("numbers", ()) or (begin and name.startswith(begin)) for name in multiplies):
            return cause
    tiers = {name.partition("_")[2] for name in multiplies if name.startswith(("link_", "exchange_"))}
    for tier in profile.tiers:
        if tier.name in tiers:
            return "exchange_inside" if tier.ranks and tier.ranks <= profile.ranks_per_node else "exchange_across"
    return "kernels"
