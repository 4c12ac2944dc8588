"""Free parameters of each device family: at most twelve, each with a physical meaning, none per model or record."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from autodeploy.calibration.fit import FitParameter
from hardware_profiles.efficiencies import EFFICIENCY_TERMS

if TYPE_CHECKING:
    from collections.abc import Iterable


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    text = files("autodeploy.calibration").joinpath("parameters.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = YAML(typ="safe").load(text)
    return found


def _rows(rows: list[dict[str, Any]]) -> tuple[FitParameter, ...]:
    return tuple(FitParameter(**{**row, "multiplies": tuple(row["multiplies"])}) for row in rows)


_COMMON = _rows(_table()["common"])
PARAMETERS: dict[str, tuple[FitParameter, ...]] = {name: _rows(rows) for name, rows in _table()["families"].items()}

# What a fit holds as it is: few runs wait for the host long enough, or send small messages over large networks, to tell
# these numbers.
UNFITTED = tuple(
    FitParameter(name, multiplies, EFFICIENCY_TERMS[multiplies[0]].prior_sigma, EFFICIENCY_TERMS[multiplies[0]].meaning)
    for name, multiplies in (
        ("host_issue", ("host_issue",)),
        ("host_sync", ("host_sync",)),
        ("nodes", ("node_growth",)),
        ("small_messages", ("message_half_size",)),
        ("exchange_loss", ("dispatch_loss", "combine_loss")),
    )
)
# A network that no run has measured: rate of collectives on each of its tiers.
LINK_SIGMA = 0.30


def known_parameters(family: str) -> tuple[FitParameter, ...]:
    """Free parameters of a family; of one that was never fitted, those that all devices have."""
    return PARAMETERS.get(family, _COMMON)


def link_parameters(tiers: Iterable[str]) -> tuple[FitParameter, ...]:
    """One factor for each of these tiers, as uncertain as where nothing measured it."""
    return tuple(
        FitParameter(f"link_{tier}", (f"link_{tier}",), LINK_SIGMA, "rate of collectives on this tier")
        for tier in tiers
    )
