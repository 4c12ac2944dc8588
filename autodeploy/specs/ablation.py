"""What each feature buys: the rows that `ablate` answers with."""

from __future__ import annotations

from typing import Literal

from autodeploy.specs.base import Document
from autodeploy.specs.told import Text, Told

Mode = Literal["baseline", "alone", "cumulative", "leave_one_out", "published"]


class AblationRow(Document):
    """One measurement of one feature, or of one published effect.

    `predicted` is in `unit`. Of a spec's rows it is what the feature changes the throughput by: against the baseline
    (alone), against the row before (cumulative), or what the whole set loses without it (leave_one_out); null where one
    of both can't run at all, which `reason` says.
    """

    case: str
    feature: str
    mode: Mode
    step_time_s: float | None = None
    peak_memory_gib: float | None = None
    fits: bool | None = None
    predicted: float | None
    unit: str
    published: float | None = None
    tolerance: str | None = None
    within_tolerance: bool | None = None
    reason: Text | None = None
    moved: dict[str, float] = {}  # part of the breakdown -> seconds gained (+ slower), the largest first


class AblationReport(Told):
    """All rows, in the order they were asked for."""

    rows: tuple[AblationRow, ...]
    engine_version: str
