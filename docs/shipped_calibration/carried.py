"""Overlays of profiles that take the factors of another one's fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.fit import link_parameters
from autodeploy.calibration.overlays import covariance_of_matrix, overlay_numbers
from autodeploy.calibration.profile_fit import source_of

if TYPE_CHECKING:
    from autodeploy.calibration.profile_fit import Calibration
    from hardware_profiles.profile import Profile


def carried_overlay(calibration: Calibration, target: Profile) -> dict[str, Any]:
    """The overlay of another profile that the factors of a fit are carried over to.

    Its numbers are assumed, not fitted, where no record ran on it. The factors of links stay behind: the marginal
    covariance of the others, and every tier of the device as uncertain as before any run.
    """
    fit, source, kind = calibration.fit, source_of(calibration), "fitted"
    if not any(record.cluster.profile == target.name for record in calibration.records):
        source, kind = f"carried over from {calibration.profile.name}: {source}", "assumed"
    kept = [n for n, p in enumerate(fit.parameters) if not p.multiplies_any("link_")]
    links = link_parameters(tier.name for tier in target.tiers)
    matrix = np.diag([0.0] * len(kept) + [p.prior_sigma**2 for p in links])
    matrix[: len(kept), : len(kept)] = fit.covariance[np.ix_(kept, kept)]
    covariance = covariance_of_matrix((*(fit.parameters[n] for n in kept), *links), matrix, source)
    moved = fit.moved()
    return {
        "profile": target.name,
        **overlay_numbers(target, (moved[n] for n in kept), kind=kind, source=source),
        "covariance": covariance.model_dump(mode="json", exclude_defaults=True),
    }
