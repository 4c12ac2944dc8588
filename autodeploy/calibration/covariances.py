"""The uncertainty of fitted numbers as it ships with them, and where no fit gave one: that of the priors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.overlay_numbers import rounded
from autodeploy.calibration.parameters import UNFITTED, known_parameters, link_parameters, measured_elsewhere
from hardware_profiles.covariance import Covariance, FittedFactor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.calibration.fit import Fit, FitParameter
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

OF_LINKS = ("node_growth", "dispatch_loss", "combine_loss")  # efficiencies that measurements of the chip may tell
OF_THE_DEVICE = ("link_", "release_")  # factors that say nothing of another device


def covariance_of(profile: Profile) -> Covariance:
    """Covariance of a profile's factors: what ships with it or its overlay, else that of the priors.

    The numbers of the host and of large networks are as uncertain as before any run where no fit had them and nobody
    measured them; what was measured since the fit is known.
    """
    found = covariance_of_fitted(profile)
    added = unfitted_beside(profile, found.factors)
    if not added:
        return found
    zeros = (0.0,) * len(found.factors)
    rows = tuple((*zeros, *(0.0,) * n, p.prior_sigma**2) for n, p in enumerate(added))
    factors = tuple(FittedFactor(name=p.name, multiplies=p.multiplies) for p in added)
    return found.model_copy(
        update={"factors": (*found.factors, *factors), "log_covariance": (*found.log_covariance, *rows)}
    )


def covariance_of_fitted(profile: Profile) -> Covariance:
    """Of what a fit had; where there was none, of what it would have."""
    return _without(profile.covariance or _of_priors(profile), measured_elsewhere(profile))


def unfitted_beside(profile: Profile, factors: Iterable[FittedFactor | FitParameter]) -> tuple[FitParameter, ...]:
    """Factors of the numbers that a fit of these ones does not have, and nobody has measured."""
    named = measured_elsewhere(profile) | {name for factor in factors for name in factor.multiplies}
    named |= {name for name in OF_LINKS if profile.quantity(f"efficiency.{name}").kind in {"measured", "fitted"}}
    return tuple(parameter for parameter in UNFITTED if not named.intersection(parameter.multiplies))


def covariance_to_ship(profile: Profile, fit: Fit, source: str, *, carried: bool) -> Covariance:
    """What ships with the numbers of a fit.

    Carried over to another device, the factors of links stay behind: the marginal covariance of the others, and every
    tier of the device as uncertain as before any run.
    """
    if not carried:
        return covariance_of_matrix(fit.parameters, fit.covariance, source)
    kept = [n for n, p in enumerate(fit.parameters) if not p.multiplies_any("link_")]
    links = link_parameters(tier.name for tier in profile.tiers)
    matrix = np.diag([0.0] * len(kept) + [p.prior_sigma**2 for p in links])
    matrix[: len(kept), : len(kept)] = fit.covariance[np.ix_(kept, kept)]
    return covariance_of_matrix((*(fit.parameters[n] for n in kept), *links), matrix, source)


def _without(covariance: Covariance, names: frozenset[str]) -> Covariance:
    """Without the factors of these numbers alone."""
    kept = [n for n, factor in enumerate(covariance.factors) if not names.issuperset(factor.multiplies)]
    if len(kept) == len(covariance.factors):
        return covariance
    rows = tuple(tuple(covariance.log_covariance[i][j] for j in kept[: n + 1]) for n, i in enumerate(kept))
    factors = tuple(covariance.factors[n] for n in kept)
    return covariance.model_copy(update={"factors": factors, "log_covariance": rows})


def _of_priors(profile: Profile) -> Covariance:
    own = tuple(p for p in known_parameters(profile.family) if not any(map(p.multiplies_any, OF_THE_DEVICE)))
    parameters = (*own, *link_parameters(tier.name for tier in profile.tiers))
    return covariance_of_matrix(
        parameters, np.diag([p.prior_sigma**2 for p in parameters]), "prior: parameters.yaml, no run was fitted"
    )


def covariance_of_matrix(
    parameters: Sequence[FitParameter], matrix: Floats, source: str, *, in_residuals: float = 0.0
) -> Covariance:
    """Covariance of the log factors of these parameters, six significant digits."""
    return Covariance(
        source=source,
        factors=tuple(FittedFactor(name=p.name, multiplies=p.multiplies) for p in parameters),
        log_covariance=tuple(
            tuple(rounded(float(value)) for value in row[: number + 1]) for number, row in enumerate(matrix)
        ),
        in_residuals=rounded(in_residuals),
    )
