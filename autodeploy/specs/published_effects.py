"""Published effects as documents: figures in their sources' words, the origin of each input, and predictions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from autodeploy.messages import Message
from autodeploy.specs.base import Document
from autodeploy.specs.diagnostics import TranslatedDocument

System = Literal[
    "strategy_search",
    "hierarchical_alltoall",
    "adaptive_pipe",
    "edpb",
    "adaptive_pipe_edpb",
    "operators",
    "host",
    "selective_recompute",
    "pretraining_ladder",
    "post_training_ladder",
    "tensor_overlap",
    "exchange_overlap",
    "parameter_copies",
    "activation_recompute",
    "host_optimizer",
    "fused_operators",
    "cube_vector",
    "extra_warm_up",
    "mutual_routing",
    "swap_attention",
    "hybrid_context",
    "moe_edp",
    "pangu_pro_moe",
    "pangu_ultra_bubble",
    "overview_layers",
]
"""Systems of Huawei's articles on training with Ascend and of MindSpeed's overview, in the order of README's table."""

Verdict = Literal["met", "missed", "not_countable"]


class Band(Document):
    """Range of predictions that meet a figure: two-sided."""

    points: Annotated[float, Field(gt=0)] | None = None  # of the metric's own unit, both ways
    relative_pct: Annotated[float, Field(gt=0)] | None = None  # of the published value, both ways
    between: tuple[float, float] | None = None  # where the source's words bound it

    @model_validator(mode="after")
    def _one(self) -> Band:
        if sum(value is not None for value in (self.points, self.relative_pct, self.between)) != 1:
            raise ValueError(Message("common.one_of", names="points, relative_pct, between"))
        return self

    def ends(self, published: float) -> tuple[float, float]:
        """Lowest and highest prediction that meets a figure."""
        if self.between is not None:
            return self.between
        width = self.points if self.points is not None else (self.relative_pct or 0.0) / 100.0 * abs(published)
        return published - width, published + width

    def holds(self, predicted: float, published: float) -> bool:
        """Whether a prediction meets a figure."""
        low, high = self.ends(published)
        return low <= predicted <= high

    def __str__(self) -> str:
        if self.between is not None:
            return f"{self.between[0]:g} .. {self.between[1]:g}"
        return f"± {self.points:g} points" if self.points is not None else f"± {self.relative_pct:g} %"


class Side(Document):
    """One of the two runs compared, as changes of the case.

    `strategy` and `spec` are laid over the case's. With `search` the run is the best plan of a search under these
    settings instead of the estimate of one strategy.
    """

    features: tuple[str, ...] = ()
    strategy: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    search: dict[str, Any] | None = None


class Input(Document):
    """Origin of what a case says under a path: where it is published, or how far it may lie to either side.

    low, high : what stands there instead, or factors of it where `factor`. why : of an assumed value, its ground.
    """

    source: str | None = None
    low: Any = None
    high: Any = None
    factor: bool = False
    why: str | None = None

    @model_validator(mode="after")
    def _sourced_or_assumed(self) -> Input:
        assumed = self.low is not None and self.high is not None
        if (self.source is None) != assumed:
            raise ValueError(Message("common.one_of", names="source, low + high"))
        return self

    @property
    def is_assumed(self) -> bool:
        """Whether nobody published it."""
        return self.source is None


class Flip(Document):
    """The one input whose other value would meet a figure that is missed, and why that value is likely."""

    input: str
    value: Any
    factor: bool = False
    why: str


class Effect(Document):
    """One figure, or a claim without one.

    says : the figure in its source's own words. published : null where the source has none, which then does not count.
    """

    system: System
    feature: str
    says: str
    metric: str
    baseline: Side = Side()
    variant: Side
    published: float | None
    unit: str
    band: Band | None = None
    beside: tuple[str, ...] = ()  # further metrics, shown and not judged
    cause: Flip | None = None  # of a miss

    @model_validator(mode="after")
    def _countable(self) -> Effect:
        if (self.published is None) != (self.band is None):
            raise ValueError(Message("common.one_of", names="published + band, published: null"))
        return self


class Case(Document):
    """A published comparison: the spec, what both sides share, where each input is from, and its figures.

    own_features : its features are all that both sides share, not beside those that it assumes.
    """

    case: str
    title: str
    source: str
    assumes: str | None = None
    inputs: dict[str, Input] = {}
    spec: dict[str, Any] = {}
    features: tuple[str, ...] = ()
    own_features: bool = False
    strategy: dict[str, Any] = {}
    effects: tuple[Effect, ...]


class Outcome(Document):
    """A row's figure where one input is another. predicted : null where nothing can run so."""

    input: str
    value: Any
    predicted: float | None
    met: bool


class PublishedRow(Document):
    """One figure predicted. ends : at both ends of each assumed input. flip : of a miss, what its cause gives."""

    case: str
    system: System
    feature: str
    says: str
    predicted: float
    unit: str
    published: float | None
    band: str
    verdict: Verdict
    step_time_s: float
    peak_memory_gib: float
    fits: bool
    beside: dict[str, float] = {}
    ends: tuple[Outcome, ...] = ()
    flip: Outcome | None = None
    why: str = ""  # of the flip

    @property
    def has_confirmed_cause(self) -> bool:
        """Whether the flip of one named input explains the miss."""
        return self.flip is not None and self.flip.met


class SystemVerdict(Document):
    """A system's figures together: met where all that count are, and at least one does."""

    system: System
    verdict: Verdict
    met: int
    counted: int
    confirmed: int


class PublishedReport(TranslatedDocument):
    """All figures in the order of the cases, and the systems in the order of README's table."""

    rows: tuple[PublishedRow, ...]
    systems: tuple[SystemVerdict, ...]
    engine_version: str
