"""The run of weeks that a plan is for: its phases, what interrupts it and what it costs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from autodeploy.messages import Message
from autodeploy.specs.base import Document, omitted
from autodeploy.specs.diagnostics import Text
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.training import Sequences
from hardware_profiles.magnitudes import GigabytesPerSecond, Hours, Interval, TokenCount, Watts
from hardware_profiles.schema import Kind

MAX_PHASES = 16
MAX_RAMP_STEPS = 64


class BatchRamp(Document):
    """A batch that grows at the start of a phase, as Megatron's `--rampup-batch-size start increment samples`.

    Every batch from `start` in steps of `increment` up to below the phase's own sees the same share of `tokens`.
    """

    start: Sequences
    increment: Sequences
    tokens: TokenCount


class Phase(Document):
    """A stretch of training with one sequence length. What is absent is as in `training`."""

    tokens: Annotated[TokenCount, Field(examples=[1e12])]
    seq_length: Annotated[int, Field(ge=1, le=16_777_216, examples=[32768])] | None = None
    global_batch_size: Sequences | None = None
    ramp: BatchRamp | None = None

    @model_validator(mode="after")
    def _ramp_lies_inside(self) -> Self:
        if self.ramp is not None and self.ramp.tokens > self.tokens:
            raise ValueError(
                Message("common.exceeds", one=f"ramp.tokens {self.ramp.tokens:g}", other=f"tokens {self.tokens:g}")
            )
        return self


class RunSpec(Document):
    """Phases, failures, checkpoints, price and power of the run. What is absent is a stated prior; prices have none."""

    phases: Annotated[
        tuple[Phase, ...],
        Field(max_length=MAX_PHASES, description="in order; absent: `training.tokens` as one phase"),
    ] = ()
    layout_changes: Annotated[
        Literal["never", "allowed"],
        Field(
            description="allowed: each phase is searched; the layout changes if that outweighs checkpoint and restart"
        ),
    ] = "never"
    npu_failure_interval_h: Annotated[
        Hours | None, Field(description="mean time between failures of one card that stop the job, in hours")
    ] = None
    failure_interval_h: Annotated[
        Hours | None, Field(description="the same for the whole job, instead of per card")
    ] = None
    restart_s: Annotated[
        Annotated[float, Field(ge=0, le=1e7)] | None,
        Field(description="from a failure to loading the checkpoint: detection, replacement, start-up"),
    ] = None
    recovered_share: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None,
        omitted("share of failures after which high availability finds a copy of every state"),
    ] = None
    reboot_s: Annotated[
        Annotated[float, Field(ge=0, le=1e7)] | None,
        omitted("from a failure to the next step if only failed processes restart"),
    ] = None
    storage_gb_per_s: Annotated[GigabytesPerSecond | None, Field(description="of all cards together, each way")] = None
    checkpoint: Annotated[
        Literal["synchronous", "asynchronous"],
        Field(description="asynchronous: training waits only for the copy to the host"),
    ] = "synchronous"
    checkpoint_format: Annotated[
        Literal["torch", "torch_dist"] | None,
        omitted("as --ckpt-format; absent: the release's own, or the one that is written beside training"),
    ] = None
    checkpoint_interval_s: Annotated[Interval | None, Field(description="absent: the optimum after Young and Daly")] = (
        None
    )
    price_per_npu_hour: Annotated[float, Field(ge=0, le=1e9)] | None = None
    currency: Annotated[str, Field(max_length=8)] = ""
    npu_power_w: Annotated[Watts | None, Field(description="of a card with its share of the node")] = None
    power_usage_effectiveness: Annotated[float, Field(ge=1, le=10)] = 1.0
    price_per_kwh: Annotated[float, Field(ge=0, le=1e6)] | None = None

    @model_validator(mode="after")
    def _interval_is_given_once(self) -> Self:
        if self.npu_failure_interval_h is not None and self.failure_interval_h is not None:
            raise ValueError(Message("common.give_either", one="npu_failure_interval_h", other="failure_interval_h"))
        if self.checkpoint == "asynchronous" and self.checkpoint_format == "torch":
            raise ValueError(
                Message(
                    "common.place",
                    place="checkpoint: asynchronous",
                    message=Message("common.it_needs_field", name="checkpoint_format: torch_dist"),
                )
            )
        if self.price_per_kwh is not None and self.npu_power_w is None:
            raise ValueError(
                Message("common.place", place="npu_power_w", message=Message("common.needs_it", what="price_per_kwh"))
            )
        return self


def ramp_error(phase: Phase, global_batch: int) -> Message | None:
    """Fault of the ramp of a phase whose batch is known."""
    ramp = phase.ramp
    if ramp is None:
        return None
    rise = global_batch - ramp.start
    if rise <= 0:
        return Message("specs.ramp_starts_above", start=ramp.start, batch=global_batch)
    if rise % ramp.increment:
        return Message(
            "specs.ramp_no_multiple", rise=rise, start=ramp.start, batch=global_batch, increment=ramp.increment
        )
    if rise // ramp.increment > MAX_RAMP_STEPS:
        return Message("specs.ramp_too_long", steps=rise // ramp.increment, most=MAX_RAMP_STEPS)
    return None


# What a run of weeks takes and costs.
class Prior(Document):
    """A number that the spec left open, and where the one taken instead comes from."""

    name: str
    value: float
    unit: str
    kind: Kind
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


RecoveryName = Literal["none", "ttp", "ttp+reboot"]


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
        RecoveryName,
        omitted(
            "how failures are met, by the plan's features: back to a checkpoint, with the states that are "
            "saved at the failure, or with failed processes alone started again",
            at="none",
        ),
    ] = "none"
    cost: float | None = None
    energy_mwh: float | None = None
    energy_cost: float | None = None
    currency: str = ""
    priors: tuple[Prior, ...] = ()
