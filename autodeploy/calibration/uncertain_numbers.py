"""The uncertain numbers of a spec, each with a width: those that a fit found, and those of `prior_widths.yaml`; and the
cause of `causes.yaml` that each belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.fit import (
    COMMON,
    PARAMETERS,
    PRIOR_WIDTHS,
    UNFITTED,
    link_parameters,
    meaning_of,
    measured_elsewhere,
    source_of,
)
from autodeploy.calibration.overlays import covariance_of_fitted
from autodeploy.costs.inputs.expert_balance import persistent_shares
from autodeploy.costs.prediction_spread import coverage
from autodeploy.costs.steps.scenarios import PERSISTENT, SHIFTED, base_value, reads
from autodeploy.messages import Message
from hardware_profiles.efficiencies import EFFICIENCY_TERMS
from hardware_profiles.loader import load_profile, shipped_profiles
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.specs.commissioning import Cause
    from autodeploy.specs.planset import Measurement
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

_NO_RUN = Message("calibration.prior_of_unused_network")
AS_BEFORE = 0.95  # of its prior's width: a number of which the runs say nothing
KNOWN_KINDS = frozenset({"measured", "fitted"})


@dataclass(frozen=True, slots=True)
class Uncertain:
    """One uncertain number.

    multiplies : numbers of the profile, or of the experts' loads, that its factor multiplies. log_sigma : standard
        deviation of the factor's logarithm; where it is one of `worlds.SHIFTED`, of a shift in its own unit.
    basis : what the width rests on.
    """

    name: str
    meaning: str
    multiplies: tuple[str, ...]
    log_sigma: float
    basis: str


# A number has this name, too.
ROUTER_BASIS = {"grouped": "grouped_router"}


def fitted_numbers(profile: Profile, context: Context) -> tuple[tuple[Uncertain, ...], Floats]:
    """Factors of the profile's fit that the spec reads, and their covariance [numbers, numbers].

    Where left-out residuals ask for a larger width than the fit says itself, that one counts, and the factor is as
    correlated with the others as before. Factors of links that no run of the fit used come with it and are priors.
    """
    covariance, left_out = covariance_of_fitted(profile), _left_out_widths(profile)
    places = [place for place, factor in enumerate(covariance.factors) if _moves(context, factor.multiplies)]
    matrix = covariance.matrix()[np.ix_(places, places)]
    own = np.sqrt(np.diag(matrix))
    of_family = PARAMETERS.get(_origin(profile).family, COMMON)
    links = link_parameters(profile.tiers)
    parameters = {p.name: p for p in (*of_family, *UNFITTED, *links)}
    rows = {row["name"]: row for row in PRIOR_WIDTHS}
    numbers = []
    for place, sigma in zip(places, own.tolist(), strict=True):
        factor = covariance.factors[place]
        name, row, parameter = factor.name, rows.get(factor.name), parameters.get(factor.name)
        basis, width = covariance.source, sigma
        if _unused(profile, factor.multiplies):
            basis = _NO_RUN
        elif parameter is not None and sigma >= AS_BEFORE * parameter.prior_sigma:
            source = source_of(row) if row else "parameters.yaml"
            basis = Message("calibration.prior_not_narrowed", source=source)
        elif name in left_out:
            basis = Message("calibration.held_out_residuals", count=left_out[name]["n"])
            width = max(sigma, left_out[name]["log_sigma"])
        meaning = meaning_of(row) if row else parameter.meaning if parameter else name
        numbers.append(Uncertain(name, meaning, factor.multiplies, width, basis))
    widths = np.array([number.log_sigma for number in numbers], dtype=np.float64)
    grown = np.divide(widths, own, out=np.ones_like(own), where=own > 0.0)
    return tuple(numbers), matrix * np.outer(grown, grown)


def _left_out_widths(profile: Profile) -> Mapping[str, Mapping[str, float]]:
    """Widths of the coverage table by factor, of the fit whose factors the profile has; none of a cluster's own fit."""
    if profile.covariance is None or profile.name not in shipped_profiles():
        return {}
    usual = load_profile(profile.name)
    if usual.covariance is None or usual.covariance.source != profile.covariance.source:
        return {}
    widths: Mapping[str, Mapping[str, float]] = coverage().get("widths", {}).get(_origin(profile).family, {})
    return widths


def _origin(profile: Profile) -> Profile:
    """The profile whose fit this one's factors are of."""
    name = profile.document.calibration.factors_of
    return load_profile(name) if name else profile


def prior_numbers(profile: Profile, context: Context) -> tuple[Uncertain, ...]:
    """Numbers with priors of their own that the spec reads and no fit knows, and links that none knows."""
    measured = measured_elsewhere(profile)
    measured |= {name for number in fitted_numbers(profile, context)[0] for name in number.multiplies}
    rows = [each for row in PRIOR_WIDTHS if row["of"] == "time" for each in _of_tiers(row, context)]
    numbers = [_of_row(row, profile, context) for row in rows if _moves(context, tuple(row["multiplies"]))]
    links = (p for p in link_parameters(profile.tiers) if _moves(context, p.multiplies))
    numbers += [Uncertain(p.name, p.meaning, p.multiplies, p.prior_sigma, _NO_RUN) for p in links]
    return tuple(number for number in numbers if not measured.intersection(number.multiplies))


def numbers_of_memory(profile: Profile, context: Context) -> tuple[Uncertain, ...]:
    """Numbers that move the peak of memory alone."""
    return tuple(_of_row(row, profile, context) for row in PRIOR_WIDTHS if row["of"] == "memory")


def _unused(profile: Profile, names: tuple[str, ...]) -> bool:
    """Whether a factor is of a link that no run of the fit used: it came with the fit all the same."""
    tiers = [name.removeprefix("link_") for name in names if name.startswith("link_")]
    return any(profile.quantity(f"{tier}.efficiency").kind != "fitted" for tier in tiers)


def _of_row(row: dict[str, Any], profile: Profile, context: Context) -> Uncertain:
    first, source, router = row["multiplies"][0], source_of(row), context.loads.router
    if first == PERSISTENT:
        prior = persistent_shares()[router]
        sigma = prior.sigma
        source = Message.of_record(f"uncertain_basis.{ROUTER_BASIS.get(router, router)}", prior.source)
    else:
        sigma = row["log_sigma"] if "log_sigma" in row else EFFICIENCY_TERMS[first].prior_sigma
    if "when_measured" in row and profile.quantity(f"efficiency.{first}").kind in KNOWN_KINDS:
        sigma = row["when_measured"]
    basis = Message("calibration.prior", source=source)
    return Uncertain(row["name"], meaning_of(row), tuple(row["multiplies"]), float(sigma), basis)


def _of_tiers(row: dict[str, Any], context: Context) -> list[dict[str, Any]]:
    """A row for each tier where it names one."""
    assert context.profile is not None
    if "{tier}" not in row["name"]:
        return [row]
    rows = []
    for name in (tier.name for tier in context.profile.tiers):
        multiplied = [each.format(tier=name) for each in row["multiplies"]]
        rows.append({**row, "name": row["name"].format(tier=name), "record": row["name"], "multiplies": multiplied})
    return rows


def _moves(context: Context, names: tuple[str, ...]) -> bool:
    """Whether a factor on these numbers changes anything in the spec: it reads one of them, and that is not zero."""
    return any(
        reads(context, name) and _spanned(context, name) and (name in SHIFTED or base_value(context, name) != 0.0)
        for name in names
    )


def _spanned(context: Context, name: str) -> bool:
    """Whether the cluster has what the number is of: the tier of a link, several nodes for what grows with them."""
    profile = context.profile
    assert profile is not None
    if name == "device_scatter":
        return context.world > profile.ranks_per_node
    inside = 1
    for tier in profile.tiers:
        if name in (f"link_{tier.name}", f"exchange_{tier.name}"):
            return context.world > inside
        inside = tier.ranks or inside
    return True


# Causes of wrong predictions.
_CAUSES: Mapping[Cause, dict[str, Any]] = shipped("autodeploy.calibration", "causes.yaml")
SETTLED_BY: Mapping[Cause, Measurement] = {cause: row["settled_by"] for cause, row in _CAUSES.items()}


def cause_of(multiplies: Sequence[str], profile: Profile) -> Cause:
    """The cause that an uncertain number belongs to, by what it multiplies."""
    for cause, row in _CAUSES.items():
        if any(name in row.get("numbers", ()) or name.startswith(row.get("begin", "-")) for name in multiplies):
            return cause
    tiers = {name.partition("_")[2] for name in multiplies if name.startswith(("link_", "exchange_"))}
    for tier in profile.tiers:
        if tier.name in tiers:
            return "exchange_inside" if tier.ranks and tier.ranks <= profile.ranks_per_node else "exchange_across"
    return "kernels"
