"""Measured runs beside their predictions, as rows: of training, of serving and of post-training."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.generation import ServedMeasured
from autodeploy.specs.generation_layout import EngineMode
from autodeploy.specs.planset import MemoryInterval
from autodeploy.specs.record import Measured
from autodeploy.specs.rl_record import RlMeasured
from autodeploy.specs.told import Text


class ComparedRow(Document):
    """One record: measured, predicted, error, the parts that matter, and what is to say.

    Errors are predicted / measured - 1, of times on the speeds that they are.
    """

    id: str
    model: str
    measured: Any
    predicted: Any = None
    error: Any = None
    parts: Annotated[dict[str, float], Field(description="shares of the time")] = Field(default_factory=dict)
    diagnoses: Annotated[tuple[Text, ...], Field(description="what was read otherwise than it was written")] = ()
    warnings: tuple[Text, ...] = ()
    skipped: Text | None = None


class Predicted(Document):
    """The prediction of one run of training, in the terms of what it measured."""

    tokens_per_s_per_npu: float
    step_time_s: float
    step_time_interval_s: Annotated[tuple[float, float], Field(description="80 %")]
    peak_memory_gib: Annotated[float, Field(description="counted as measured.peak_memory_gib is")]
    memory_interval: MemoryInterval


class Errors(Document):
    """`time` on tokens per second where they are published."""

    time: float | None = None
    memory: float | None = None


class Row(ComparedRow):
    """One run of training; `fits`: the model says that it fits its card."""

    measured: Measured
    predicted: Predicted | None = None
    error: Errors = Errors()
    counts_for_time: bool = True
    fits: bool | None = None


class ServedPredicted(Document):
    """The prediction of one measurement, in the terms of what it measured."""

    tpot_ms: float
    tpot_interval_ms: Annotated[tuple[float, float], Field(description="80 %")]
    ttft_ms: float
    decode_tokens_per_s_per_die: float
    running: Annotated[float, Field(description="requests that decode at once on a data-parallel rank")]
    mode: EngineMode


class ServedErrors(Document):
    """`tpot` of 1 / TPOT, `time` of tokens per second, `ttft` of 1 / TTFT."""

    tpot: float | None = None
    time: float | None = None
    ttft: float | None = None


class ServedRow(ComparedRow):
    """One measurement of serving; parts of a step of decoding."""

    kind: str = "generation"
    measured: ServedMeasured
    predicted: ServedPredicted | None = None
    error: ServedErrors = ServedErrors()

    @property
    def speed_error(self) -> float | None:
        """Of the time per output token, where it was measured; else of tokens per second."""
        return self.error.tpot if self.error.tpot is not None else self.error.time


class RlPredicted(Document):
    """The prediction of one step, in the terms of what was measured of it."""

    step_time_s: float
    step_time_interval_s: Annotated[tuple[float, float], Field(description="80 %")]
    tokens_per_s_per_npu: Annotated[float, Field(description="counted as the record's are")]
    generation_s: float
    log_probabilities_s: float
    reference_s: float | None = None
    update_s: float
    hand_over_s: float
    tpot_ms: float
    tail_share: float
    peak_memory_gib: float
    generation_npus: Annotated[int | None, Field(description="cards that generate; null: all")] = None
    mode: EngineMode


class RlErrors(Document):
    """`time` of tokens per second where they are published, else of 1 / step time."""

    time: float | None = None


class RlRow(ComparedRow):
    """One measured step of post-training; autodeploy/post_training fills it."""

    kind: Literal["rl_post_training"] = "rl_post_training"
    measured: RlMeasured
    predicted: RlPredicted | None = None
    error: RlErrors = RlErrors()
