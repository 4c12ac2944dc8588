"""Answers to "what if": why not another strategy, what would improve a launch, how many cards a deadline takes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.planset import NearestChange, Plan
from autodeploy.specs.told import Text, Told


class WhyNot(Told):
    """The rule or the memory that rules a strategy out, or what it costs against the best plan.

    `broken_rules`: every rule it breaks, `rule` first. `nearest`: for an illegal strategy the nearest legal one (fewest
    axes changed, then the least sum of |log2 ratio|); where no strategy with the given axes is legal and fits, the
    nearest values of them with which one is and does. `fitting`: of a strategy that lacks memory as it stands, the
    fastest with its degrees and its layers, recomputation and swap chosen anew; time and percent are then of that.
    `completed`: of a strategy of which only some axes are given, the best plan that has them. `against_best_pct`: how
    much longer a step takes than the recommended plan's; `against_fastest_pct`: than that of the plan that is fastest
    by the predicted times alone.
    """

    rule: str | None = None
    message: Text
    broken_rules: tuple[Text, ...] = ()
    step_time_s: float | None = None
    against_best_pct: float | None = None
    against_fastest_pct: float | None = None
    nearest: tuple[NearestChange, ...] = ()
    fitting: Plan | None = None
    completed: Plan | None = None


class Improvement(Document):
    """One change of a launch and what it would take then.

    `changes`: the strategy's fields that differ. `gain_pct`: more tokens a second and card, in percent.
    `keeps_checkpoint_layout`: shards stay where they are: no degree, and no layer's place, changes. `add_flags` and
    `drop_flags` say the changes to the author of a script; a framework without flags has none.
    """

    name: str
    changes: dict[str, Any]
    add_flags: tuple[str, ...] = ()
    drop_flags: tuple[str, ...] = ()
    gain_pct: float
    step_time_s: float
    peak_memory_gib: float
    keeps_checkpoint_layout: bool
    plan: Plan


class ImproveReport(Told):
    """The launch as it is, and the best single changes, the largest gain first."""

    plan: Plan
    improvements: tuple[Improvement, ...]
    keeping_layout: Annotated[
        tuple[Improvement, ...], Field(description="the best changes that keep existing checkpoints loadable")
    ] = ()
    tried: Annotated[int, Field(description="changes that were predicted")]
    best_gain_pct: Annotated[
        float | None, Field(description="of the best plan of a search with nothing pinned; null: none fits")
    ] = None
    broken_rules: tuple[Text, ...] = ()
    spec: dict[str, Any]
    spec_hash: str
    engine_version: str


class CardCount(Document):
    """What so many cards would do: the best plan found for them, or the estimate of the sweep."""

    num_npus: int
    tokens_per_s: float
    days: float | None = None
    npu_hours: float | None = None
    efficiency: Annotated[
        float, Field(description="tokens per second per card, relative to the row with the fewest cards")
    ]
    estimated: Annotated[bool, Field(description="estimated by the sweep; false: a solved plan")] = True


class Recommendation(Told):
    """The fewest cards that train so many tokens in so many days.

    `num_npus` is null where no number of cards that was looked at meets the deadline.
    """

    tokens: float
    days: float
    num_npus: int | None = None
    plan: Plan | None = None
    scaling: tuple[CardCount, ...] = ()
    message: Text
    spec: dict[str, Any]
    engine_version: str
