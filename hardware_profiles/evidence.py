"""What the runs of one cluster have shown beyond its fitted numbers: how far memory was off, how far times scatter."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_SEEN = 100
MOST_LOG = 5.0  # a factor of 150 between predicted and met
MOST_SCALE = 10.0

Digest = Annotated[str, Field(min_length=16, max_length=16, pattern=r"^[0-9a-f]{16}$")]
LogRatio = Annotated[float, Field(ge=-MOST_LOG, le=MOST_LOG)]


class MemorySeen(BaseModel):
    """What one run said of its peak of memory, as log(met / predicted).

    `family`, `configuration`: digests of the family of its model and of how it ran, so that an overlay names neither.
    `at_least`: it ran out of memory, so that the ratio is at least this; else it is `log_ratio`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    family: Digest
    configuration: Digest
    log_ratio: LogRatio
    at_least: bool = False


class Evidence(BaseModel):
    """`time_scale`: factor on the spread of predicted times; 1 where runs lie in their intervals as they should.

    `timed`: digests of the families of models of which a step was timed here: what the errors of all plans of such a
    model on this cluster have in common is known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    memory: Annotated[tuple[MemorySeen, ...], Field(max_length=MOST_SEEN)] = ()
    time_scale: Annotated[float, Field(ge=1, le=MOST_SCALE)] = 1.0
    timed: Annotated[tuple[Digest, ...], Field(max_length=MOST_SEEN)] = ()
