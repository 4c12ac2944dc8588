"""A plan of reinforcement learning beyond one of pre-training: its phases, its generation, its memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.message_table import Text

Devices = Literal["all", "generation", "training"]


class RlPhase(Document):
    """One phase of a step, from its start. exposed_s: what of it makes the step longer; that adds up to the step."""

    name: str
    start_s: float
    end_s: float
    exposed_s: float
    devices: Devices
    bound_by: str = ""


class BatchPoint(Document):
    """Sequences that decode at once until a moment of generation: on the fullest data-parallel rank, on a mean one."""

    until_s: float
    batch: float
    mean_batch: float


class RlGeneration(Document):
    """Generation of one step.

    tpot_ms: time per output token at the batch of the start. batch_per_replica: sequences that decode at once there.
    waves: responses a slot. kv_gib: of keys and values on a device. longest_s: of the longest response from its first
    token to its last. tail_share: of decoding, in which the last tenth of the responses runs alone.
    """

    tpot_ms: float
    batch_per_replica: float
    waves: float
    kv_gib: float
    longest_s: float
    tail_share: float
    tail_starts_s: Annotated[
        float, Field(description="of decoding, after which only the last tenth of the responses runs")
    ] = 0.0
    batch_over_time: tuple[BatchPoint, ...] = ()


class RlTokensPerS(Document):
    """Tokens a second of all cards by the three counting rules: prompts and responses at their mean length, at their
    greatest, responses alone.
    """

    mean: float
    max: float
    response: float


class RlPeakMemory(Document):
    """The fullest card while it generates, and while it trains [GiB]."""

    generation: float
    update: float


class RlPlan(Document):
    """A step of reinforcement learning: where its time and memory go."""

    phases: tuple[RlPhase, ...]
    generation: RlGeneration
    hand_over_s: float
    samples_in_flight: Annotated[float, Field(description="maximum number of responses started and not yet trained on")]
    blocked_s: Annotated[
        float,
        Field(description="in which everything waits for the longest response, because the staleness bound is reached"),
    ] = 0.0
    generation_npus: Annotated[int, Field(description="cards that generate; colocated: all")]
    training_npus: Annotated[int, Field(description="cards that train; colocated: all")]
    tokens_per_s: RlTokensPerS
    peak_memory_gib: RlPeakMemory
    notes: tuple[Text, ...] = ()
