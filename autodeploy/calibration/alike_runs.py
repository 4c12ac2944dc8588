"""What a run of a cluster leaves uncertain about plans whose ranks have the same work: rehearsals and their plans.

The error that the model makes of the work itself is in both of their step times. A fit takes it for noise; of a plan
with the same work it is not, and what the fit has absorbed of it is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.covariances import covariance_document, covariance_of_matrix
from autodeploy.calibration.fit import prior_sigmas

if TYPE_CHECKING:
    from typing import Any

    from autodeploy.calibration.fit import Fit
    from cost_models.arrays import Floats


def alike_runs(work: str, fit: Fit, noise: Floats, discrepancy: Floats, source: str) -> dict[str, Any]:
    """The entry of an overlay's evidence for one kind of work.

    Parameters
    ----------
    work : its digest.
    noise : standard deviation of every residual [rows] as a plan with this work sees it: of the runs that had it only
        what repeats differ by, of the others the model's error of theirs too.
    discrepancy : by how much each residual moves with one unit of the model's log error of this work [rows].

    Notes
    -----
    The fit is linear near its optimum: log factors = K (measured), K = C G^T W with its covariance C, Jacobian G and
    weights W. For true log factors of prior covariance P, an error s of the work and noise N, the estimate is off by
    (K G - 1) theta + K d s + K n; hence the covariance (1 - K G) P (1 - K G)^T + K N K^T, and the factors that follow
    one unit of s, K d.
    """
    gain = fit.covariance @ fit.jacobian.T * fit.weights
    prior = np.diag(prior_sigmas(fit.parameters, fit.log_factors) ** 2)
    left = np.eye(len(prior)) - gain @ fit.jacobian
    matrix = left @ prior @ left.T + (gain * noise**2) @ gain.T
    return {
        "work": work,
        "absorbed": [float(value) for value in gain @ discrepancy],
        "covariance": covariance_document(covariance_of_matrix(fit.parameters, matrix, source)),
    }
