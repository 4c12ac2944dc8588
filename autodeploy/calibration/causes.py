"""Causes of wrong predictions: which of them an uncertain number belongs to."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.specs.commissioning import Cause
    from autodeploy.specs.planset import Measurement
    from hardware_profiles.profile import Profile

# Numbers of the network that belong to no tier: they count where ranks are many.
_ACROSS: Final = frozenset({"device_scatter", "message_half_size", "dispatch_loss", "combine_loss", "exchange_beside"})
_HOST: Final = frozenset({"host_issue", "host_sync", "vector_op", "host_link"})
_LOADS: Final = frozenset({"imbalance_excess", "persistent_share"})


SETTLED_BY: Final[Mapping[Cause, Measurement]] = MappingProxyType(
    {
        "kernels": "probe",
        "host": "probe",
        "exchange_inside": "probe",
        "exchange_across": "probe_across",
        "software": "launch",
        "memory": "launch",
        "imbalance": "expert_load_file",
    }
)
"""The cheapest measurement that tells the numbers of a cause: a probe times kernels and links by themselves, the rest
needs a model that trains.
"""


def cause_of(multiplies: Sequence[str], profile: Profile) -> Cause:
    """The cause that an uncertain number belongs to, by what it multiplies."""
    names = set(multiplies)
    if names & _LOADS:
        return "imbalance"
    if names & _HOST:
        return "host"
    if names & _ACROSS:
        return "exchange_across"
    if "fragmentation" in names:
        return "memory"
    if any(name.startswith("release_") for name in names):
        return "software"
    tiers = {name.partition("_")[2] for name in names if name.startswith(("link_", "exchange_"))}
    for tier in profile.tiers:
        if tier.name in tiers:
            return "exchange_inside" if tier.ranks and tier.ranks <= profile.ranks_per_node else "exchange_across"
    return "kernels"
