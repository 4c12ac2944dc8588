"""Evidence of the runs of one cluster beyond its fitted numbers: how far memory was off, how far times scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from autodeploy.messages import Message
from cost_models.arrays import product
from hardware_profiles.covariance import MOST_FACTORS, Covariance

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_SEEN = 100
MOST_LOG = 5.0  # a factor of 150 between predicted and met
MOST_SCALE = 10.0
MOST_ABSORBED = 1000.0  # log of a factor over log error of a work: a number that a step hardly knows follows it far

Digest = Annotated[str, Field(min_length=16, max_length=16, pattern=r"^[0-9a-f]{16}$")]
LogRatio = Annotated[float, Field(ge=-MOST_LOG, le=MOST_LOG)]


class MemorySeen(BaseModel):
    """Evidence of one run on its peak of memory, as log(met / predicted).

    `family`, `configuration`: digests of the family of its model and of how it ran, so that an overlay names neither.
    `at_least`: it ran out of memory, so that the ratio is at least this; else it is `log_ratio`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    family: Digest
    configuration: Digest
    log_ratio: LogRatio
    at_least: bool = False


class AlikeRuns(BaseModel):
    """Uncertainty that timed runs leave about plans whose ranks have the same work, as a rehearsal's have its plan's.

    `work`: digest of it. `covariance`: of the fitted factors, as far as repeats of these runs and the work of other
    runs leave them uncertain, and of numbers that no fit has with what the runs told of them. `absorbed`: by how much
    each log factor follows the model's log error of this work.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    work: Digest
    covariance: Covariance
    absorbed: Annotated[
        tuple[Annotated[float, Field(ge=-MOST_ABSORBED, le=MOST_ABSORBED)], ...], Field(max_length=MOST_FACTORS)
    ]

    @model_validator(mode="after")
    def _has_one_share_a_factor(self) -> Self:
        if len(self.absorbed) != len(self.covariance.factors):
            raise ValueError(
                Message(
                    "common.place",
                    place="absorbed",
                    message=Message(
                        "common.entries_expected", count=len(self.covariance.factors), found=len(self.absorbed)
                    ),
                )
            )
        return self

    def variance_of(self, slopes: Mapping[str, float], of_work: float) -> float:
        """Variance of log step time of a plan with this work: J C J^T + s^2 (1 - J a)^2.

        Parameters
        ----------
        slopes : J, d log(step time) / d log(factor) by the factor's name. of_work : s^2, variance of the model's log
            error of a work before any run of it.
        """
        slope = np.array([slopes.get(factor.name, 0.0) for factor in self.covariance.factors])
        return self.covariance.variance_of(slope) + of_work * (1.0 - float(product(slope, self.absorbed))) ** 2


class Evidence(BaseModel):
    """`time_scale`: factor on the spread of predicted times; 1 where runs lie in their intervals as they should.

    `timed`: digests of the families of models of which a step was timed here: what the errors of all plans of such a
    model on this cluster have in common is known. `alike`: of which work of a rank a step was timed here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    memory: Annotated[tuple[MemorySeen, ...], Field(max_length=MOST_SEEN)] = ()
    time_scale: Annotated[float, Field(ge=1, le=MOST_SCALE)] = 1.0
    timed: Annotated[tuple[Digest, ...], Field(max_length=MOST_SEEN)] = ()
    alike: Annotated[tuple[AlikeRuns, ...], Field(max_length=MOST_SEEN)] = ()
