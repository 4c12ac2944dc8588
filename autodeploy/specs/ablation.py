"""What each feature buys: the rows that `ablate` answers with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from autodeploy.messages import Message
from autodeploy.specs.base import Document
from autodeploy.specs.message_table import Text, Told


# A published effect as data.
class Tolerance(Document):
    """How far the prediction may be off: exactly one of the four."""

    points: Annotated[float, Field(ge=0)] | None = None  # of the metric's own unit, both ways
    relative_pct: Annotated[float, Field(ge=0)] | None = None  # of the published value, both ways
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _one(self) -> Tolerance:
        if sum(value is not None for value in self.model_dump().values()) != 1:
            raise ValueError(Message("common.one_of", names="points, relative_pct, at_least, at_most"))
        return self

    def holds(self, predicted: float, published: float) -> bool:
        """Whether a prediction is within it."""
        if self.points is not None:
            return abs(predicted - published) <= self.points
        if self.relative_pct is not None:
            return abs(predicted - published) <= self.relative_pct / 100.0 * abs(published)
        return predicted >= self.at_least if self.at_least is not None else predicted <= (self.at_most or 0.0)

    def __str__(self) -> str:
        if self.points is not None:
            return f"± {self.points:g} points"
        if self.relative_pct is not None:
            return f"± {self.relative_pct:g} %"
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


class Side(Document):
    """One of the two runs compared, as changes of the case.

    `strategy` and `spec` are laid over the case's. With `search` the run is the best plan of a search under these
    settings instead of the estimate of one strategy.
    """

    features: tuple[str, ...] = ()
    strategy: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    search: dict[str, Any] | None = None


class Effect(Document):
    """One figure that was published."""

    feature: str
    metric: str
    baseline: Side = Side()
    variant: Side
    published: float
    unit: str
    tolerance: Tolerance
    beside: tuple[str, ...] = ()  # further metrics, shown and not judged
    reason: str | None = None  # of a miss: what the mechanism does not reproduce


class Case(Document):
    """A published effect: the spec, what both sides share, and its figures."""

    case: str
    title: str
    source: str
    assumes: str | None = None
    spec: dict[str, Any] = {}
    features: tuple[str, ...] = ()
    strategy: dict[str, Any] = {}
    effects: tuple[Effect, ...]


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
