"""Measured steps of post-training beside their prediction, as rows; autodeploy/post_training fills them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.generation_layout import EngineMode
from autodeploy.specs.rl_record import RlMeasured
from autodeploy.specs.told import Text


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
    """predicted / measured - 1 of speeds: tokens per second where they are published, else 1 / step time."""

    time: float | None = None


class RlRow(Document):
    """One measured step of post-training: measured, predicted, error, parts of the step, and what is to say."""

    id: str
    kind: Literal["rl_post_training"] = "rl_post_training"
    model: str
    measured: RlMeasured
    predicted: RlPredicted | None = None
    error: RlErrors = RlErrors()
    parts: dict[str, float] = Field(default_factory=dict)
    diagnoses: Annotated[tuple[Text, ...], Field(description="what was read otherwise than it was written")] = ()
    warnings: tuple[Text, ...] = ()
    skipped: Text | None = None
