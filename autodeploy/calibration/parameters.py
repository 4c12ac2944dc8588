"""Free parameters of each device family: at most twelve, each with a physical meaning, none per model or record; and
the numbers that a fit has beside them because nobody knows them well, though its runs hardly tell them.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.fit import FitParameter
from autodeploy.messages import Message
from hardware_profiles.efficiencies import EFFICIENCY_TERMS
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hardware_profiles.profile import Profile

# Factors of numbers outside the profile's efficiencies: the path of each.
ELSEWHERE = {
    "vector_op": "fixed_costs.vector_op_us",
    "host_issue": "host.issue_us_per_op",
    "host_sync": "host.sync_us",
}


def _table(file: str) -> dict[str, Any]:
    text = files("autodeploy.calibration").joinpath(file).read_text(encoding="utf-8")
    table: dict[str, Any] = load_shipped_yaml(text)
    return table


# Numbers that no run tells, with the width of each.
PRIOR_WIDTHS: list[dict[str, Any]] = _table("prior_widths.yaml")["numbers"]


def _rows(rows: list[dict[str, Any]]) -> tuple[FitParameter, ...]:
    return tuple(
        FitParameter(**{**row, "multiplies": tuple(row["multiplies"]), "meaning": meaning_of(row)}) for row in rows
    )


def meaning_of(row: Mapping[str, Any]) -> Message:
    """What a number of a table means, in a person's language."""
    return Message.of_record(f"uncertain_number.{row.get('record', row['name'])}", row["meaning"])


_PARAMETERS = _table("parameters.yaml")
COMMON = _rows(_PARAMETERS["common"])
PARAMETERS: dict[str, tuple[FitParameter, ...]] = {name: _rows(rows) for name, rows in _PARAMETERS["families"].items()}


def as_assumed(name: str, *multiplies: str) -> FitParameter:
    """A factor as uncertain as the first number that it multiplies is before any measurement."""
    term = EFFICIENCY_TERMS[multiplies[0]]
    return FitParameter(name, multiplies, term.prior_sigma, term.meaning)


# Nuisances: in every fit with their priors, so that what the records do tell is as uncertain as these make it. No run
# waits for its host long enough to tell them: their spread stays the prior's.
NUISANCES = (as_assumed("host_issue", "host_issue"), as_assumed("host_sync", "host_sync"))
# What no fit of the records moves freely: beside the nuisances numbers of one device's network, in no fit at all.
UNFITTED = (
    *NUISANCES,
    as_assumed("nodes", "node_growth"),
    as_assumed("small_messages", "message_half_size"),
    as_assumed("exchange_loss", "dispatch_loss", "combine_loss"),
)
# A network that no run has measured: rate of collectives on each of its tiers.
LINK_SIGMA = 0.30


def nuisances_of(profile: Profile) -> tuple[FitParameter, ...]:
    """The nuisances whose number nobody measured on the device."""
    return tuple(p for p in NUISANCES if not measured_elsewhere(profile).intersection(p.multiplies))


def measured_elsewhere(profile: Profile) -> frozenset[str]:
    """Factors of numbers outside the efficiencies that somebody measured on the device."""
    return frozenset(name for name, path in ELSEWHERE.items() if profile.quantity(path).kind == "measured")


def portable_parameters(family: str) -> tuple[FitParameter, ...]:
    """Parameters of a family that say something of another device: neither links nor releases."""
    of_family = PARAMETERS.get(family, COMMON)
    return tuple(p for p in of_family if not any(map(p.multiplies_any, ("link_", "release_"))))


def link_parameters(tiers: Iterable[str], sigma: float = LINK_SIGMA) -> tuple[FitParameter, ...]:
    """One factor for each of these tiers, as uncertain as where nothing measured it."""
    meaning = Message("calibration.rate_of_collectives_on_this_tier")
    return tuple(FitParameter(f"link_{tier}", (f"link_{tier}",), sigma, meaning) for tier in tiers)
