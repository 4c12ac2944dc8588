"""Answers of comparisons, checks and "what if" questions, as documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from autodeploy.specs.base import Answer, omitted
from autodeploy.specs.diagnostics import BrokenRule, Text, TranslatedDocument
from autodeploy.specs.plan_details import LEAST_CHANCE
from autodeploy.specs.planset import NearestChange, Plan
from autodeploy.specs.strategy import Strategy
from hardware_profiles.loader import list_profiles, load_profile
from hardware_profiles.magnitudes import Price

GateName = Literal["legality", "memory", "slowdown", "baseline", "mfu"]

DEFAULT_REGRESSION = 0.05  # against a baseline, where no limit is given


class CheckLimits(Answer):
    """Limits as shares of 1. `max_slowdown` holds against the baseline where there is one, else against the best.

    `allow_rules` are rules that a launch may break, `allow_flags` flags of a fork that its release does not register.
    """

    max_memory: Annotated[
        float, Field(ge=1e-6, le=100, description="of the card's usable memory; above 1: it need not fit")
    ] = 1.0
    min_p_fits: Annotated[
        float, Field(ge=0, le=1, description="lowest probability that the peak stays within max_memory")
    ] = LEAST_CHANCE
    min_mfu: Annotated[float, Field(ge=0, le=1)] | None = None
    max_slowdown: Annotated[float, Field(ge=0, le=100)] | None = None
    allow_rules: tuple[Annotated[str, Field(max_length=100)], ...] = ()
    allow_flags: tuple[Annotated[str, Field(max_length=200)], ...] = ()


class Gate(Answer):
    """One limit and the value held against it. Without a limit the value is only told.

    The value of `legality` is the number of broken rules.
    """

    name: GateName
    passed: bool
    value: float
    limit: float | None = None
    chance: Annotated[float | None, omitted("of memory: the probability that it is kept", ge=0, le=1)] = None
    up_to_tokens: Annotated[
        int | None, omitted("of memory, where samples are not padded: it is kept by samples of at most so many tokens")
    ] = None


class Compared(Answer):
    """A plan the launch is compared with; `slowdown` is positive where the launch is slower a card."""

    plan: Plan
    slowdown: float
    status: str = ""


class FieldChange(Answer):
    """A flag of a script, or a field of the strategy, before and after; None where it is not there."""

    name: str
    before: str | None = None
    after: str | None = None


class MovedPart(Answer):
    """A part of a step before and after, s."""

    part: str
    before_s: float
    after_s: float


class Changes(Answer):
    """Differences from the baseline, and why the step takes longer or shorter.

    `moved`: parts of a step, those that moved most first. `cause` is empty where one of the two has no prediction.
    """

    name: str = ""
    fields: tuple[FieldChange, ...] = ()
    moved: tuple[MovedPart, ...] = ()
    cause: Text = ""


class Shortage(Answer):
    """Shortage of memory: the fullest stage, its bytes and the part that takes most of them."""

    stage: int
    needed_bytes: int
    limit_bytes: int
    excess_bytes: int
    largest_part: str
    largest_part_bytes: int


class Remedy(Answer):
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


class CheckReport(TranslatedDocument):
    """Whether a launch passes, and why. Remedies are the cheapest first; there are none where full sequences fit.

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


class WhyNot(TranslatedDocument):
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


class GainAt(Answer):
    """A setting of the launch that no strategy changes, and what another value of it would bring."""

    value: int
    gain_pct: Annotated[float, Field(description="more tokens a second and card, in percent")]


class Improvement(Answer):
    """One change of a launch and what it would take then.

    `changes`: the strategy's fields that differ. `gain_pct`: more tokens a second and card, in percent, by this change;
    `memory_gain_pct`: beside it, by layers, recomputation and swap chosen anew, which the change alone does not need.
    `keeps_checkpoint_layout`: shards stay where they are: no degree, and no layer's place, changes. `add_flags` and
    `drop_flags` say the changes to the author of a script; a framework without flags has none.
    """

    name: str
    changes: dict[str, Any]
    add_flags: tuple[str, ...] = ()
    drop_flags: tuple[str, ...] = ()
    gain_pct: float
    memory_gain_pct: float = 0.0
    step_time_s: float
    peak_memory_gib: float
    keeps_checkpoint_layout: bool
    plan: Plan


class ImproveReport(TranslatedDocument):
    """The launch as it is, and the best single changes, the largest gain first."""

    plan: Plan
    improvements: tuple[Improvement, ...]
    keeping_layout: Annotated[
        tuple[Improvement, ...], Field(description="the best changes that keep existing checkpoints loadable")
    ] = ()
    tried: Annotated[int, Field(description="changes that were predicted")]
    batch: Annotated[
        GainAt | None, Field(description="a larger global batch, where the launch's own leaves the pipeline idle")
    ] = None
    fewer_cards: Annotated[GainAt | None, Field(description="half of the cards with the same batch, a card")] = None
    best_gain_pct: Annotated[
        float | None, Field(description="of the best plan of a search with nothing pinned; null: none fits")
    ] = None
    broken_rules: tuple[Text, ...] = ()
    spec: dict[str, Any]
    spec_hash: str
    engine_version: str


class CardCount(Answer):
    """Result of a number of cards: the best plan found for them, or the estimate of the sweep."""

    num_npus: int
    tokens_per_s: float
    days: float | None = None
    npu_hours: float | None = None
    efficiency: Annotated[
        float, Field(description="tokens per second per card, relative to the row with the fewest cards")
    ]
    estimated: Annotated[bool, Field(description="estimated by the sweep; false: a solved plan")] = True
    note: Annotated[Text | None, Field(exclude_if=lambda value: value is None)] = None


class Recommendation(TranslatedDocument):
    """The fewest cards that train so many tokens in so many days, or the most that a budget of card-hours pays for.

    `num_npus` is null where no number of cards that was looked at keeps deadline and budget.
    """

    tokens: float
    days: float | None = None
    npu_hours: Annotated[float | None, Field(description="the budget", exclude_if=lambda value: value is None)] = None
    num_npus: int | None = None
    plan: Plan | None = None
    scaling: tuple[CardCount, ...] = ()
    message: Text
    spec: dict[str, Any]
    engine_version: str


# How a training scales.
class ScalingRow(Answer):
    """One number of cards. Without figures nothing fits; `efficiency` is speed a card against the spec's own."""

    num_npus: int
    strategy: Strategy | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_npu: float | None = None
    efficiency: float | None = None
    mfu: float | None = None
    peak_memory_gib: float | None = None
    days: float | None = None


class ScalingReport(Answer):
    """Rows by number of cards, with the same global batch."""

    rows: tuple[ScalingRow, ...]
    engine_version: str


# Strategies of a search at what is proven of them, without solving any.
class StrategyBound(Answer):
    """A strategy that is legal and may fit. No layout and no memory choice of it takes less time or memory than this.

    axes: as `search.fix` writes them. mfu: at that time, the most it can reach.
    """

    axes: dict[str, int | str]
    dp: int
    num_npus: int
    step_time_s: float
    peak_memory_gib: float
    mfu: float


class StrategyBounds(Answer):
    """A sample of the strategies of a search. total: how many there are."""

    total: int
    sample: tuple[StrategyBound, ...] = ()


# The same training on several clusters at their prices.
MAX_CLUSTERS = 4  # of one comparison


class ClusterOffer(Answer):
    """Cards that can be had: a profile, perhaps a chip grade, and the price of a card and hour in any currency."""

    profile: Annotated[str, Field(min_length=1, max_length=4096, description="by name")]
    device: Annotated[str, Field(max_length=64)] | None = None
    price_per_npu_hour: Annotated[Price, Field(description="of a card as the vendor counts them")]

    @property
    def title(self) -> str:
        """Common name of the cluster: `CloudMatrix 384`, with its grade where one was asked for."""
        title = load_profile(self.profile).title if self.profile in list_profiles() else self.profile
        return title if self.device is None else f"{title} {self.device}"


class ClusterPoint(Answer):
    """So many cards of a cluster with the best plan that a short search finds for them.

    `days_low` to `days_high`: the 80 % interval of the step time. `cost`: card-hours at the price of the offer, in its
    currency. `on_front`: no plan of the comparison is sooner for as little or cheaper and as soon.
    """

    num_npus: int
    strategy: Strategy
    step_time_s: float
    mfu: float
    peak_memory_gib: float
    days: float
    days_low: float
    days_high: float
    npu_hours: float
    cost: float
    meets_deadline: bool
    on_front: bool = False


class ClusterAnswer(Answer):
    """One offer: the fewest cards that meet the deadline (null: none of the counts), and its plans by cards."""

    offer: ClusterOffer
    num_npus: int | None = None
    tokens: float
    message: Text
    points: tuple[ClusterPoint, ...] = ()

    @property
    def cheapest(self) -> ClusterPoint | None:
        """The plan that meets the deadline for least."""
        in_time = [point for point in self.points if point.meets_deadline]
        return min(in_time, key=lambda point: (point.cost, point.days), default=None)


class ClusterComparison(TranslatedDocument):
    """Offers in the order that they were given in; `cheapest` is the index of the one that meets the deadline for
    least, with `num_npus` cards.
    """

    days: float
    clusters: tuple[ClusterAnswer, ...]
    cheapest: int | None = None
    num_npus: int | None = None
    message: Text
    engine_version: str

    @property
    def best(self) -> ClusterPoint | None:
        """The cheapest plan in time of all clusters."""
        return None if self.cheapest is None else self.clusters[self.cheapest].cheapest
