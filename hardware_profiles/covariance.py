"""Covariance of a fit's knowledge of a profile: that of the logarithms of its factors."""

from __future__ import annotations

import math
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from autodeploy.messages import Message
from cost_models.arrays import product
from hardware_profiles.older_names import renewed

MOST_FACTORS = 20  # a fit has at most twelve and two of the host, one more for each tier of a network that no run used
MOST_VARIANCE = 25.0  # a factor of e^5: nothing is known
SLACK = 1e-3  # of a correlation beyond one: entries are rounded to six digits

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]


class FittedFactor(BaseModel):
    """One factor and the efficiencies that it multiplies, by the names that `machine_of` reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    multiplies: Annotated[tuple[Annotated[Name, AfterValidator(renewed)], ...], Field(min_length=1, max_length=8)]


class Covariance(BaseModel):
    """Covariance of log factors: row i of the lower triangle holds the entries 0 to i, no unit.

    `in_residuals`: the part of a prediction's variance that these factors share with the residuals of other clusters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    source: Annotated[str, Field(min_length=1, max_length=2000)]
    factors: Annotated[tuple[FittedFactor, ...], Field(max_length=MOST_FACTORS)]
    log_covariance: Annotated[tuple[tuple[float, ...], ...], Field(max_length=MOST_FACTORS)]
    in_residuals: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_validator(mode="after")
    def _is_a_covariance(self) -> Self:
        if [len(row) for row in self.log_covariance] != list(range(1, len(self.factors) + 1)):
            raise ValueError(Message("profiles.lower_triangle"))
        names = [factor.name for factor in self.factors]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(Message("common.given_twice", name=repr(repeated[0])))
        variances = [row[-1] for row in self.log_covariance]
        if wrong := [variance for variance in variances if not 0.0 <= variance <= MOST_VARIANCE]:
            raise ValueError(Message("common.is_outside", value=wrong[0], range=f"[0, {MOST_VARIANCE:g}]"))
        for i, row in enumerate(self.log_covariance):
            for j, value in enumerate(row[:-1]):
                if abs(value) > (1.0 + SLACK) * math.sqrt(variances[i] * variances[j]):
                    raise ValueError(Message("profiles.correlation_beyond_a_single", row=i + 1, entry=j + 1))
        return self

    def matrix(self) -> npt.NDArray[np.float64]:
        """The whole symmetric matrix [factors, factors]."""
        count = len(self.factors)
        matrix = np.zeros((count, count))
        for i, row in enumerate(self.log_covariance):
            matrix[i, : i + 1] = matrix[: i + 1, i] = row
        return matrix

    def variance_of(self, slopes: npt.NDArray[np.float64]) -> float:
        """Variance of log step time: J C J^T for its slopes J = d log(step time) / d log(factor) [factors]."""
        return max(0.0, float(product(product(slopes, self.matrix()), slopes)))
