"""What a run of weeks takes and costs: part of a plan."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.told import Text


class Prior(Document):
    """A number that the spec left open, and where the one taken instead comes from."""

    name: str
    value: float
    unit: str
    kind: Literal["datasheet", "measured", "fitted", "assumed"]
    source: str
    note: str = ""


class RunPhase(Document):
    """A phase under the layout it runs with. `batches`: first and last global batch; times are of steps alone."""

    seq_length: int
    batches: tuple[int, int]
    tokens: float
    steps: float | None = None
    step_time_s: float | None = None
    days: float | None = None
    peak_memory_gib: float | None = None
    problem: Text | None = None
    strategy: Strategy | None = None
    layout_change_s: float = 0.0


class TrainingRun(Document):
    """A run from its first step to its last, restarts included.

    `training_days`, `checkpoint_days`, `lost_work_days`, `restart_days` and `layout_change_days` are expected
    values and add up to `days`; `goodput` is the first over the sum. Cards that are held count: used ones and spares. A
    phase's `strategy` is absent where it is the plan's own; with a `problem` there is no total.
    """

    phases: tuple[RunPhase, ...]
    days: float | None = None
    npu_hours: float | None = None
    goodput: float | None = None
    training_days: float | None = None
    checkpoint_days: float | None = None
    lost_work_days: float | None = None
    restart_days: float | None = None
    layout_change_days: float | None = None
    failures: float | None = None
    failure_interval_h: float
    checkpoint_gb: float
    checkpoint_s: float
    checkpoint_interval_s: float
    restart_s: float
    recovery: Annotated[
        Literal["none", "ttp", "ttp+reboot"],
        Field(
            description="how failures are met, by the plan's features: back to a checkpoint, with the states that are "
            "saved at the failure, or with failed processes alone started again",
            exclude_if=lambda value: value == "none",
        ),
    ] = "none"
    cost: float | None = None
    energy_mwh: float | None = None
    energy_cost: float | None = None
    currency: str = ""
    priors: tuple[Prior, ...] = ()
