"""What a fit becomes without some of its records: the linear model around its estimate, solved again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.families import family_of
from autodeploy.calibration.fit import covariance_at, prior_sigmas, refit

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from autodeploy.calibration.fit import Fit
    from autodeploy.calibration.profile_fit import Calibration
    from cost_models.arrays import Floats


def part_of(fit: Fit, inside: npt.NDArray[np.bool_]) -> Fit:
    """The linear model of some of the records, around the same estimate."""
    return replace(fit, residuals=fit.residuals[inside], jacobian=fit.jacobian[inside], weights=fit.weights[inside])


def variances_of(calibration: Calibration) -> Floats:
    """`parameter_variances` of the records of a calibration, by the families of their models [records]."""
    return parameter_variances(calibration.fit, [family_of(record) for record in calibration.records])


def parameter_variances(result: Fit, groups: Sequence[str]) -> Floats:
    """Variance of every record's log prediction from the parameters of a fit to the records of all other groups.

    J C J^T with the covariance C that the fit has without the record's group: the part of the left-out residuals that
    the uncertainty of the parameters explains.
    """
    labels = np.asarray(groups)
    variances = np.empty(len(labels))
    for label in np.unique(labels):
        inside = labels == label
        variances[inside] = projected(result.jacobian[inside], refit_covariance(result, ~inside))
    return variances


def refit_covariance(result: Fit, fitted: npt.NDArray[np.bool_]) -> Floats:
    """Covariance of the log factors under a fit to the records marked `fitted`."""
    prior = prior_sigmas(result.parameters, result.log_factors)
    return covariance_at(result.jacobian[fitted], result.weights[fitted], prior)


def projected(jacobian: Floats, covariance: Floats) -> Floats:
    """J C J^T of every row of the Jacobian."""
    return np.asarray(np.einsum("ni,ij,nj->n", jacobian, covariance, jacobian))


def refit_residuals(result: Fit, fitted: npt.NDArray[np.bool_], predicted: npt.NDArray[np.int64]) -> Floats:
    """Residuals of the records at `predicted` under a fit to the records marked `fitted`."""
    return np.asarray(result.residuals[predicted] + result.jacobian[predicted] @ refit(result, fitted))
