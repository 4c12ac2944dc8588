"""A growing log against the prediction of the launch that writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autodeploy.specs.base import Document

Verdict = Literal["waiting", "inside", "faster", "slower", "stop", "out_of_memory"]


class FollowedPart(Document):
    """One part of the step, s: as the framework times it on its slowest rank, and as predicted; ranks: least, most."""

    name: Literal["pipeline", "after_pipeline"]
    predicted_s: float
    measured_s: float
    ranks_s: tuple[float, float]


class Following(Document):
    """A launch so far. verdict: `stop` above the time that one run in a hundred exceeds."""

    plan_id: str
    num_npus: int
    iterations: int = 0
    step_time_s: float | None = None
    predicted_s: float
    low_s: float
    high_s: float
    stop_above_s: float
    peak_memory_gib: float | None = None
    predicted_gib: float
    parts: tuple[FollowedPart, ...] = ()
    verdict: Annotated[Verdict, Field(description="where the step lies")] = "waiting"
