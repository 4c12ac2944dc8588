"""What a run of a cluster leaves uncertain about plans whose ranks have the same work: rehearsals and their plans.

The error that the model makes of the work itself is in both of their step times. A fit takes it for noise; of a plan
with the same work it is not, and what the fit has absorbed of it is known. So it is with numbers that no fit has, such
as those of large networks: as far as the runs exercised them, the fitted factors made up for their errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.covariances import covariance_document, covariance_of_matrix
from autodeploy.calibration.fit import prior_sigmas

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from autodeploy.calibration.fit import Fit, FitParameter
    from cost_models.arrays import Floats


def alike_runs(
    work: str,
    fit: Fit,
    noise: Floats,
    discrepancy: Floats,
    source: str,
    *,
    unfitted: Sequence[FitParameter] = (),
    exercised: Floats | None = None,
) -> dict[str, Any]:
    """The entry of an overlay's evidence for one kind of work.

    Parameters
    ----------
    work : its digest.
    noise : standard deviation of every residual [rows] as a plan with this work sees it: of the runs that had it only
        what repeats differ by, of the others the model's error of theirs too.
    discrepancy : by how much each residual moves with one unit of the model's log error of this work [rows].
    unfitted : factors of numbers that the fit does not move; exercised : slopes of the residuals [rows, unfitted].

    Notes
    -----
    The fit is linear near its optimum: log factors = K (measured), K = C G^T W with its covariance C, Jacobian G and
    weights W. For true log factors theta of prior covariance P, an error s of the work and noise N, the estimate is off
    by (K G - 1) theta + K d s + K n; hence the covariance (1 - K G) P (1 - K G)^T + K N K^T, and the factors that
    follow one unit of s, K d. Numbers that no fit has stay where they are, off by -u, and the estimate by K H u more,
    H their slopes: theta and u together are as a fit to G and H would leave them that has no gain for u.
    """
    gain = np.zeros((len(fit.parameters) + len(unfitted), len(noise)))
    gain[: len(fit.parameters)] = fit.covariance @ fit.jacobian.T * fit.weights
    jacobian = fit.jacobian if exercised is None else np.concatenate([fit.jacobian, exercised], axis=1)
    sigmas = [*prior_sigmas(fit.parameters, fit.log_factors), *(parameter.prior_sigma for parameter in unfitted)]
    left = np.eye(len(gain)) - gain @ jacobian
    matrix = left @ np.diag(np.square(sigmas)) @ left.T + (gain * noise**2) @ gain.T
    return {
        "work": work,
        "absorbed": [float(value) for value in gain @ discrepancy],
        "covariance": covariance_document(covariance_of_matrix((*fit.parameters, *unfitted), matrix, source)),
    }
