"""A commissioning as a document: the launches before a plan's own, what each predicts, tells apart and decides."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.diagnostics import Text
from autodeploy.specs.strategy import Strategy

Cause = Literal["kernels", "software", "host", "exchange_inside", "exchange_across", "imbalance", "memory"]
"""Sources of a prediction's error; exchanges inside a node and across nodes."""


LAUNCH: Final = r"^[1-9][0-9]{0,4}nodes?$"
"""A launch on fewer nodes by its name: 1node, 8nodes."""


STOP: Final = 0.99
"""Probability that a step stays below the time from which a launch is no longer uncertain but broken."""


class PredictedPart(Document):
    """One part of a step as a profiler splits it, with its 80 % interval, s."""

    name: str
    seconds: float
    low_s: float
    high_s: float


class Doubt(Document):
    """Standard deviation that a cause leaves in the logarithm of the whole plan's step time, of `memory` in that of its
    peak: before a launch, and after one that comes out as predicted.
    """

    cause: Cause
    before: float
    after: float


class CommissioningLaunch(Document):
    """One launch before the whole plan's: its prediction, and what the whole plan's becomes where it comes true.

    name: as `--rehearse` takes it. changed: axis or field, in the plan and here. Within `low_s` and `high_s` the next
    launch may follow; above `stop_above_s`, which one run in a hundred exceeds, something is broken. `whole_low_s` and
    `whole_high_s`: 80 % interval of the whole plan after it. measured_s: what came back of it; null: nothing yet.
    """

    name: str
    num_npus: int
    strategy: Strategy
    changed: dict[str, tuple[int, int]]
    step_time_s: float
    low_s: float
    high_s: float
    stop_above_s: float
    peak_memory_gib: float
    memory_low_gib: float
    memory_high_gib: float
    memory_limit_gib: float
    p_fits: float | None = None
    parts: tuple[PredictedPart, ...]
    doubts: tuple[Doubt, ...]
    whole_low_s: float
    whole_high_s: float
    measured_s: float | None = None
    out_of_memory: Annotated[bool, Field(description="a run of it ran out of memory")] = False


class Commissioning(Document):
    """The launches before a plan's own, smallest first; `whole_*`: the plan's own prediction as of now.

    skipped: launches that cannot be made, and why.
    """

    plan_id: str
    num_npus: int
    step_time_s: float
    low_s: float
    high_s: float
    launches: tuple[CommissioningLaunch, ...]
    skipped: tuple[Text, ...] = ()
