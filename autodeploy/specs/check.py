"""What a launch is held to, and what a check found."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.broken_rule import BrokenRule
from autodeploy.specs.message_table import Text, Told
from autodeploy.specs.planset import Plan

GateName = Literal["legality", "memory", "slowdown", "baseline", "mfu"]

DEFAULT_REGRESSION = 0.05  # against a baseline, where no limit is given


class CheckLimits(Document):
    """Limits as shares of 1. `max_slowdown` holds against the baseline where there is one, else against the best.

    `allow_rules` are rules that a launch may break, `allow_flags` flags of a fork that its release does not register.
    """

    max_memory: Annotated[
        float, Field(ge=1e-6, le=100, description="of the card's usable memory; above 1: it need not fit")
    ] = 1.0
    min_mfu: Annotated[float, Field(ge=0, le=1)] | None = None
    max_slowdown: Annotated[float, Field(ge=0, le=100)] | None = None
    allow_rules: tuple[Annotated[str, Field(max_length=100)], ...] = ()
    allow_flags: tuple[Annotated[str, Field(max_length=200)], ...] = ()


class Gate(Document):
    """One limit and the value held against it. Without a limit the value is only told.

    The value of `legality` is the number of broken rules.
    """

    name: GateName
    passed: bool
    value: float
    limit: float | None = None


class Compared(Document):
    """A plan the launch is compared with; `slowdown` is positive where the launch is slower a card."""

    plan: Plan
    slowdown: float
    status: str = ""


class FieldChange(Document):
    """A flag of a script, or a field of the strategy, before and after; None where it is not there."""

    name: str
    before: str | None = None
    after: str | None = None


class MovedPart(Document):
    """A part of a step before and after, s."""

    part: str
    before_s: float
    after_s: float


class Changes(Document):
    """What differs from the baseline, and why the step takes longer or shorter.

    `moved`: parts of a step, those that moved most first. `cause` is empty where one of the two has no prediction.
    """

    name: str = ""
    fields: tuple[FieldChange, ...] = ()
    moved: tuple[MovedPart, ...] = ()
    cause: Text = ""


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


class CheckReport(Told):
    """Whether a launch passes, and why. Remedies are the cheapest first; there are none where it fits.

    A launch whose degrees contradict each other has no `plan`, and one whose file can't be read as a spec no `spec`:
    `unpredicted` says why. `release` is what its flags were held against, `flags` are those of its script,
    `unmodelled` those that change the result and that no prediction knows, `assumptions` what the file leaves open.
    """

    passed: bool
    source: str = "spec"
    engine_version: str
    spec: dict[str, Any] = {}
    spec_hash: str = ""
    limits: CheckLimits
    release: str = ""
    plan: Plan | None = None
    unpredicted: Text = ""
    gates: tuple[Gate, ...]
    best: Compared | None = None
    baseline: Compared | None = None
    changes: Changes | None = None
    shortage: Shortage | None = None
    remedies: tuple[Remedy, ...] = ()
    broken_rules: tuple[BrokenRule, ...] = ()
    unmodelled: tuple[Text, ...] = ()
    assumptions: tuple[Text, ...] = ()
    contradictions: tuple[Text, ...] = ()
    unknown_flags: tuple[Text, ...] = ()
    flags: dict[str, str] | None = None
