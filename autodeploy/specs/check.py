"""What a launch is held to, and what a check found."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.planset import Plan

GateName = Literal["memory", "slowdown", "baseline", "mfu"]

DEFAULT_REGRESSION = 0.05  # against a baseline, where no limit is given


class CheckLimits(Document):
    """Limits as shares of 1. `max_slowdown` holds against the baseline where there is one, else against the best."""

    max_memory: Annotated[float, Field(gt=0, le=1, description="of the card's usable memory")] = 1.0
    min_mfu: Annotated[float, Field(ge=0, le=1)] | None = None
    max_slowdown: Annotated[float, Field(ge=0, le=100)] | None = None


class Gate(Document):
    """One limit and the value held against it. Without a limit the value is only told."""

    name: GateName
    passed: bool
    value: float
    limit: float | None = None


class Compared(Document):
    """A plan the launch is compared with; `slowdown` is positive where the launch is slower a card."""

    plan: Plan
    slowdown: float
    status: str = ""


class Shortage(Document):
    """Where memory runs out: the fullest stage, its bytes and the part that takes most of them."""

    stage: int
    needed_bytes: int
    limit_bytes: int
    excess_bytes: int
    largest_part: str
    largest_part_bytes: int


class Remedy(Document):
    """A change of the strategy after which it fits. `changes`: its fields; `slowdown`: against the launch as is.

    `add_flags` and `drop_flags` say the same to the author of a script; a framework without flags has none.
    """

    names: tuple[str, ...]
    changes: dict[str, Any]
    add_flags: tuple[str, ...] = ()
    drop_flags: tuple[str, ...] = ()
    step_time_s: float
    peak_memory_gib: float
    slowdown: float


class CheckReport(Document):
    """Whether a launch passes, and why. Remedies are the cheapest first; there are none where it fits."""

    passed: bool
    source: str = "spec"
    engine_version: str
    spec: dict[str, Any]
    spec_hash: str
    limits: CheckLimits
    plan: Plan
    gates: tuple[Gate, ...]
    best: Compared | None = None
    baseline: Compared | None = None
    shortage: Shortage | None = None
    remedies: tuple[Remedy, ...] = ()
    broken_rules: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    unknown_flags: tuple[str, ...] = ()
