"""A fit without some of its records: the same linear model, solved again, with all that follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import left_out_residuals, refit
from autodeploy.calibration.profile_fit import Calibration, fitted_together, overlay_of
from autodeploy.calibration.shipped.left_out_widths import part_of, refit_covariance
from autodeploy.calibration.shipped.tables import carried_overlay

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.specs.record import Record
    from cost_models.arrays import Floats


def without(calibration: Calibration, out: Callable[[Record], bool]) -> Calibration:
    """The calibration that the other records give, linearised at the full fit."""
    fitted = np.array([not out(record) for record in calibration.records], dtype=bool)
    every = calibration.fit
    change = refit(every, fitted)
    kept = replace(
        part_of(every, fitted),
        log_factors=every.log_factors + change,
        residuals=(every.residuals + every.jacobian @ change)[fitted],
        covariance=refit_covariance(every, fitted),
    )
    records = tuple(r for r, mark in zip(calibration.records, fitted, strict=True) if mark)
    return Calibration(calibration.profile, records, kept, left_out_residuals(kept, [family_of(r) for r in records]))


def residuals_without(calibration: Calibration, out: Callable[[Record], bool]) -> Floats:
    """Residuals of all records under a fit without some [records]."""
    fitted = np.array([not out(record) for record in calibration.records], dtype=bool)
    return np.asarray(calibration.fit.residuals + calibration.fit.jacobian @ refit(calibration.fit, fitted))


def overlays_of(*fitted: Calibration) -> dict[str, dict[str, Any]]:
    """The overlays of these fits and of the profiles that take their factors, by name."""
    return {
        name: overlay_of(each) if name == each.profile.name else carried_overlay(each, profile)
        for each in fitted
        for name, profile in fitted_together(each.profile.name).items()
    }
