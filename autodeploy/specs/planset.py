"""The answer of a search. The same schema in the database, the API, the files and the pages."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from autodeploy.specs.base import Document, omitted
from autodeploy.specs.diagnostics import BrokenRule, Text, TranslatedDocument
from autodeploy.specs.plan_details import LEAST_CHANCE, MemoryInterval, RlPlan, SpareRow
from autodeploy.specs.spec import spec_hash
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.training import RouterKind
from autodeploy.specs.training_run import TrainingRun
from hardware_profiles.schema import Kind

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec


# Names that documents of earlier versions have, which are read without them.
RETIRED_OF_PLAN = frozenset({"measured_mfu", "robustness"})
RETIRED_OF_PLAN_SET = frozenset({"robust"})


def _without(document: Any, retired: frozenset[str]) -> Any:
    """A stored document without fields that are no more."""
    if not isinstance(document, dict) or not retired.intersection(document):
        return document
    return {name: value for name, value in document.items() if name not in retired}


Status = Literal["queued", "running", "optimal", "feasible", "infeasible", "cancelled", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)

# A bound of 0, and so a gap of 1, was not proven: documents of earlier versions have them.
Bound = Annotated[float | None, AfterValidator(lambda bound: bound or None)]
Gap = Annotated[float | None, AfterValidator(lambda gap: None if gap == 1.0 else gap)]

FINISHED: frozenset[str] = frozenset({"optimal", "feasible", "infeasible", "cancelled", "failed"})


class Breakdown(Document):
    """Parts of a step's time, on the rank that sets the pace. All parts >= 0; their sum is the step time."""

    compute_s: float = 0.0
    exposed_tp_s: float = 0.0
    exposed_ep_s: float = 0.0
    exposed_cp_s: float = 0.0
    exposed_dp_s: float = 0.0
    exposed_pp_s: float = 0.0
    pipeline_bubble_s: float = 0.0
    recompute_s: float = 0.0
    exposed_swap_s: float = 0.0
    host_bound_s: float = 0.0
    optimizer_s: float = 0.0
    imbalance_s: float = 0.0
    uneven_stages_s: Annotated[float, Field(description="compute of this stage beyond that of the mean stage")] = 0.0
    generation_s: Annotated[float, omitted("of rl_post_training", at=0.0)] = 0.0
    hand_over_s: Annotated[float, omitted("of rl_post_training", at=0.0)] = 0.0

    @property
    def step_time_s(self) -> float:
        """Their sum."""
        return float(sum(getattr(self, part) for part in PARTS))


PARTS: tuple[str, ...] = tuple(Breakdown.model_fields)


class StageMemory(Document):
    """GiB on the card of one pipeline stage, by what occupies it."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    workspace: float
    communication_buffers: float
    runtime: float


class Stage(Document):
    """One pipeline stage: its layers (per virtual stage), times of one micro batch and memory."""

    layers: tuple[int, ...]
    holds: tuple[str, ...] = ()
    forward_s: float
    backward_s: float
    in_flight: float
    memory_gib: StageMemory
    total_gib: float
    start_gib: Annotated[float | None, Field(description="peak before the first step")] = None


class Hidden(Document):
    """Shares of communication that run behind computation, of the total of its kind.

    ep_share_steady is the share inside pairs of a forward and a backward; ep_share_step that of the whole step, which
    grows with the number of micro batches. paired_share: forwards that run in a pair.
    """

    ep_share_steady: float = 0.0
    ep_share_step: float = 0.0
    paired_share: float = 0.0
    tp_share: float = 0.0
    cp_share: float = 0.0
    dp_share: float = 0.0


class Operators(Document):
    """Shares of the time of a layer's operators by class, and how much sorting runs beside matrix work."""

    flash_attention: float = 0.0
    matmul: float = 0.0
    sorting: float = 0.0
    vector: float = 0.0
    sorting_hidden_share: float = 0.0


class HostLine(Document):
    """The host that issues operators: mean of a layer, synchronisations of a micro batch, and what it all exposes."""

    operators_per_layer: float = 0.0
    issue_ms_per_layer: float = 0.0
    synchronisations: float = 0.0
    event_ms: float = 0.0
    free_share: float = 0.0


class MemoryItem(Document):
    """One memory choice on one kind of layer: GiB freed and ms paid per layer and micro batch, and its use."""

    layers: str
    choice: str
    kind: Literal["recompute", "swap"]
    saved_gib: float
    added_ms: float
    gib_per_ms: float | None = None
    used_layers: int = 0


class Loss(Document):
    """Seconds of a step beyond the model's FLOPs at peak, in one part of the breakdown.

    mfu_points: what MFU gains when this loss alone is gone. mfu_up_to_here: MFU when it and all larger ones are.
    """

    part: str
    seconds: float
    mfu_points: float
    mfu_up_to_here: float


class Uncertainty(Document):
    """An 80 % interval of the step time and what it rests on.

    `sensitivity`: d log(step time) / d log(factor) by factor of the calibration; with the factors' covariance it gives
    `parameter_log_sigma`, the standard deviation of log step time that the fitted numbers alone leave.
    """

    low_s: float
    high_s: float
    basis: Text
    nearest_record: str | None = None
    extrapolated: tuple[Text, ...] = ()
    parameter_log_sigma: float = 0.0
    sensitivity: dict[str, float] = {}

    def quantile_s(self, probability: float) -> float:
        """The step time that a run stays below with this probability, log-normal about the interval."""
        middle = 0.5 * math.log(self.low_s * self.high_s)
        half = 0.5 * math.log(self.high_s / self.low_s)
        normal = NormalDist()
        return math.exp(middle + half * normal.inv_cdf(probability) / normal.inv_cdf(0.9))


class MeasuredMfu(Document):
    """The highest MFU among published runs on the same chips: dense or with experts, of one number format, and on 64
    cards and more or on fewer, as the plan.
    """

    highest: float
    runs: int
    record: str


class CountOn(Document):
    """The step time that measured runs speak for, where it lies outside the interval of the predicted one; and why."""

    step_time_s: float
    why: Text


class Evidence(Document):
    """Published runs of one axis or feature of a plan.

    axis: a degree, `schedule`, `moe_dispatcher` or `feature`. runs: on chips of the family, with the feature, or with
    the degree within a factor of two. nearest_record: of them, or of all where there are none, the one that ran most
    alike; error: its predicted over its measured step time, less one, from a fit without it.
    """

    axis: str
    value: int | str
    runs: int
    nearest_record: str | None = None
    error: float | None = None


class Bet(Document):
    """A condition that the fastest plan rests on and the recommended one does not.

    kind: `unproven` (no run has the feature or degree), `memory` (it may not fit), `number` (a number of the error box
    at its bad end costs it more). cost_pct: how much longer its step is where the bet is lost, against winning it.
    """

    kind: Literal["unproven", "memory", "number"]
    name: str
    text: Text
    cost_pct: float | None = None


class Fastest(Document):
    """The plan that is fastest by prediction alone, and what it depends on. `rank`: where it is recommended."""

    plan_id: str
    rank: int | None = None
    step_time_s: float
    p_fits: float
    strategy: Strategy
    bets: tuple[Bet, ...] = ()


class Valley(Document):
    """Plans near the fastest one: how many are within a small share of its time.

    layouts: strategies whose estimated step is within this share of the fastest one's. shared: axes and values that all
    of them have. fewest_unproven: of the plans among them, the one that rests on the fewest unproven features.
    """

    layouts: int
    within: float
    shared: dict[str, int | str] = {}
    fewest_unproven: str | None = None


class Counterfactual(Document):
    """The recommended plan with one axis a step away, placed anew with memory choices of its own, as `why-not` answers.

    change: `EP32 instead of EP8`. effect: on the step time. why: the parts of the step that it goes to. axes: what
    `why-not` is asked; axes that follow are free.
    """

    axes: dict[str, int | str]
    strategy: Strategy
    change: Text
    effect: Text
    why: Text
    step_time_s: float
    expected_step_time_s: float | None = None
    p_fits: Annotated[float | None, Field(ge=0, le=1)] = None


Measurement = Literal["probe", "probe_across", "launch", "expert_load_file"]
"""Measurements from the cheapest on: of one node's kernels, host and links, of two nodes' network, a launch on one
node, the loads of experts that a run logs.
"""


class BoxNumber(Document):
    """One uncertain number: factors on it at its 10th and 90th percentile, and what its width rests on.

    influence: how much it alone changes the ratio of two of the compared plans' step times, at most, as a share.
    regret_pct: what the recommended plan costs at the worse end above the best plan there, beyond what it costs as
    predicted; absent where no other plan is best there. instead: axes in which that one differs. settled_by: the
    cheapest measurement that tells the number.
    """

    name: str
    meaning: Text
    low: float
    high: float
    basis: Text
    influence: float = 0.0
    regret_pct: Annotated[float, Field(exclude_if=lambda value: not value)] = 0.0
    instead: Annotated[dict[str, bool | int | str], Field(exclude_if=lambda value: not value)] = {}
    settled_by: Annotated[Measurement | None, Field(exclude_if=lambda value: value is None)] = None


class RiskRanking(Document):
    """The ranking's cost: the expected cost of a step over shared draws of the error box, failed launches and
    restarts included, among plans that fit with at least this probability.

    compared: plans. draws: 0 where there was no time for any. proven_share: of the predicted gain of a feature or
    degree that no run has, the share that came true on records that were left out; its standard deviation.
    failed_launch_hours, restart_hours, run_days: what a plan that does not start costs and what an out-of-memory later,
    in a run of this length; absent in rankings of earlier versions, which were by regret. instead: the plan to launch
    where the first does not start; absent where it surely enough does.
    """

    risk: Literal["averse", "neutral"]
    compared: int
    draws: int
    least_p_fits: float
    proven_share: float | None = None
    proven_share_sigma: float | None = None
    failed_launch_hours: float | None = None
    restart_hours: float | None = None
    run_days: float | None = None
    instead: str | None = None
    box: tuple[BoxNumber, ...] = ()


class Rescaled(Document):
    """A measured run of this model and cluster that the model misses: every predicted time is multiplied by the ratio
    of its measured over its predicted step time.
    """

    ratio: float
    measured_step_time_s: float
    predicted_step_time_s: float
    run: str
    source: Text


class ExpertImbalance(Document):
    """Imbalance of experts that a plan assumes: tokens of the busiest rank against the mean.

    ep: ranks that the factors are of, as experts are placed before any are moved or copied. time_factor: sustained, in
    the step time. memory_factor: of one layer at its worst moment. memory_factor_of_stage: of a rank's layers together,
    in the activations of a stage. router: what balances it. forced: tokens are dealt evenly.
    from_file: the factors are of a file of loads.
    """

    ep: int
    time_factor: float
    memory_factor: float
    memory_factor_of_stage: float
    router: RouterKind
    forced: bool = False
    from_file: bool = False


class Plan(TranslatedDocument):
    """One deployment plan, ready to be exported to a launch script."""

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, document: Any) -> Any:
        return _without(document, RETIRED_OF_PLAN)

    rank: int
    plan_id: str
    strategy: Strategy
    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_npu: float
    mfu: float
    mfu_convention: str
    best_measured_mfu: MeasuredMfu | None = None
    count_on: Annotated[CountOn | None, omitted("where measured runs contradict the prediction")] = None
    peak_memory_gib: float
    allocator_peak_gib: float
    memory_limit_gib: float
    memory_interval: Annotated[
        MemoryInterval | None, Field(description="of peak_memory_gib; absent in plans of earlier versions")
    ] = None
    fits: Annotated[bool, Field(description="whether the predicted peak does; p_fits says how sure that is")] = True
    fits_to_tokens: Annotated[
        int | None, omitted("of estimates: the longest sample with which it fits, where samples are not padded")
    ] = None
    p_fits: Annotated[
        float | None, Field(ge=0, le=1, description="probability that the peak stays within memory_limit_gib")
    ] = None
    p_starts: Annotated[
        float | None,
        omitted("the same of the first steps: what is left of p_fits is chance later in the run", ge=0, le=1),
    ] = None
    expected_step_time_s: Annotated[
        float | None,
        Field(description="mean over draws, unproven gains scaled by the realised share, failed launches included"),
    ] = None
    regret_p80_pct: Annotated[
        float | None,
        Field(
            description="80th percentile, over draws of the error box, of the excess over the best plan of each draw"
        ),
    ] = None
    evidence: tuple[Evidence, ...] = ()
    oom_imbalance: float | None = None
    experts: ExpertImbalance | None = None
    num_npus_used: int
    micro_batches: int
    days: float | None = None
    npu_hours: float | None = None
    run: TrainingRun | None = None
    breakdown: Breakdown
    hidden: Hidden
    operators: Operators = Operators()
    host: HostLine = HostLine()
    memory_menu: tuple[MemoryItem, ...] = ()
    stages: tuple[Stage, ...]
    headroom: tuple[Loss, ...] = ()
    uncertainty: Uncertainty
    gap: Annotated[
        Gap, Field(description="how much better any plan could be, by the proven bound of the search's objective")
    ] = None
    tie_with: int | None = None
    label: str | None = None
    rescaled: Annotated[Rescaled | None, omitted("its times are multiplied")] = None
    rl: Annotated[RlPlan | None, omitted("rl_post_training only: the phases of the step")] = None
    explanation: Text = ""
    assumptions: tuple[Text, ...] = ()
    broken_rules: Annotated[
        tuple[BrokenRule, ...], omitted("of estimates: what the target refuses of the strategy", at=())
    ] = ()
    provenance: Kind = "assumed"

    @property
    def may_fit(self) -> bool:
        """Whether it may fit: it does, its interval has the limit in it, or samples of `fits_to_tokens` do."""
        return self.fits or self.fits_to_tokens is not None or self.p_within(self.memory_limit_gib) >= LEAST_CHANCE

    def p_within(self, limit_gib: float) -> float:
        """The probability that it stays within a limit: `p_fits`, of another than its own by its 80 % interval."""
        if limit_gib == self.memory_limit_gib and self.p_fits is not None:
            return self.p_fits
        interval, ratio = self.memory_interval, math.log(limit_gib / self.highest_gib)
        return float(ratio >= 0.0) if interval is None else interval.at_most(ratio)

    @property
    def start_gib(self) -> float:
        """Peak of the fullest stage before the first step; 0 where it is not known."""
        return max((stage.start_gib or 0.0 for stage in self.stages), default=0.0)

    @property
    def highest_gib(self) -> float:
        """Peak of a step, or before the first where that is higher: what has to fit."""
        return max(self.peak_memory_gib, self.start_gib)

    @property
    def save_steps(self) -> int | None:
        """Steps from one checkpoint of the planned run to the next; None where no run is planned."""
        return None if self.run is None else max(1, round(self.run.checkpoint_interval_s / self.step_time_s))


class Optimality(Document):
    """Proof of the best plan's quality, within this model."""

    objective: str
    bound: Bound = None
    relaxation: Text = ""
    gap: Annotated[Gap, Field(description="of the plan that is best by predicted times alone, see `fastest`")] = None
    proved: bool = False
    not_searched: Annotated[
        tuple[str, ...],
        Field(
            description="flags and keys of the release that no axis or feature stands for: the proof is without them"
        ),
    ] = ()


class Counts(Document):
    """Numbers of candidates by their outcome."""

    enumerated: int = 0
    rejected: dict[str, int] = {}
    too_big: int = 0
    pruned: int = 0
    solved: int = 0


class Timing(Document):
    """Wall-clock seconds. The only part of a PlanSet that differs between equal searches."""

    enumerate_s: float = 0.0
    solve_s: float = 0.0
    total_s: float = 0.0


class Unrestricted(Document):
    """Cost of the target framework's launch rules: the best step without them."""

    best_step_time_s: float | None = None
    price_pct: float | None = None


class NearestChange(Document):
    """A change of the spec that would make it fit, and what it brings."""

    change: Text
    effect: Text


class Infeasible(Document):
    """Why there is no plan."""

    binding_rules: tuple[Text, ...]
    nearest: tuple[NearestChange, ...] = ()


class SearchInfo(Document):
    """The search a PlanSet answers."""

    id: str
    spec: dict[str, Any]
    spec_hash: str
    profile_hash: str
    engine_version: str
    created_at: str


class ParetoPoint(Document):
    """A plan that no other beats in tokens a second, memory and cards at once. `rank`: where it is among the plans."""

    plan_id: str
    rank: int | None = None
    strategy: Strategy
    step_time_s: float
    tokens_per_s: float
    peak_memory_gib: float
    num_npus: int


class SolvedStrategies(Document):
    """Strategies that the search solved and that fit: columns of one length, the best first by the predicted objective.

    axes: values of each axis as `why-not` takes them, null where it means nothing. Strategies that differ only in how
    optimizer states are kept count as one: the best of them. mfu: as a share. Plans that are ranked by risk, with more
    room in memory, are in `plans` alone.
    """

    axes: dict[str, tuple[int | str | None, ...]] = {}
    dp: tuple[int, ...] = ()
    num_npus: tuple[int, ...] = ()
    step_time_s: tuple[float, ...] = ()
    peak_memory_gib: tuple[float, ...] = ()
    mfu: tuple[float, ...] = ()


class PlanSet(TranslatedDocument):
    """The result of a search: ranked plans, how good they are proven to be and what was rejected.

    `optimality` and `fastest` are of the ranking by predicted times alone.
    """

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, document: Any) -> Any:
        return _without(document, RETIRED_OF_PLAN_SET)

    search: SearchInfo
    status: Status
    reproducible: bool = True
    optimality: Optimality
    counts: Counts = Counts()
    timing: Timing = Timing()
    plans: tuple[Plan, ...] = ()
    reference: Annotated[
        Plan | None,
        Field(description="for comparison; its label is public recipe, your script, proven features or 1F1B"),
    ] = None
    unrestricted: Unrestricted = Unrestricted()
    pareto: tuple[ParetoPoint, ...] = ()
    solved: SolvedStrategies = SolvedStrategies()
    risk: RiskRanking | None = None
    fastest: Fastest | None = None
    valley: Valley | None = None
    counterfactuals: Annotated[
        tuple[Counterfactual, ...],
        omitted("what a step of the axes that matter most would cost; absent where there was no time", at=()),
    ] = ()
    rescaled: Rescaled | None = None
    spares: Annotated[
        tuple[SpareRow, ...], omitted("plans with fewer nodes, as asked by `search.spare_nodes`", at=())
    ] = ()
    features_off: Annotated[
        dict[str, Text], Field(description="features switched off in this search, each with its reason")
    ] = {}
    warnings: tuple[Text, ...] = ()
    infeasible: Infeasible | None = None
    error: Text | None = None

    def to_rows(self) -> list[dict[str, Any]]:
        """A row a plan: layout, times [s], memory [GiB], chances and parts of the step."""
        from autodeploy.specs.plan_table import plan_rows

        return plan_rows(self)


# A plan that no search found, as exporters and records take it.
def plan_set_of_one(of: SearchInfo, spec: Spec, plan: Plan, objective: str) -> PlanSet:
    """A PlanSet of this plan alone for another spec; it keeps a search's releases and has no id."""
    changed = {"id": "", "spec": spec.model_dump(mode="json"), "spec_hash": spec_hash(spec)}
    search = of.model_copy(update=changed)
    return PlanSet(search=search, status="feasible", optimality=Optimality(objective=objective), plans=(plan,))
