"""Resources of the service: made by it, sent as they are, read by its client. Moments are RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.planset import FINISHED, Breakdown, Plan, PlanSet
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from autodeploy.stack.software import Stack

AUTHOR = "name of the key that asked for it; empty without a key"
TEAM = "whose it is: keys of this team see and change it"
DEGREES = "degrees of the best plan (tp, pp, vpp, cp, ep, dp); null without a plan"
STALE = (
    "computed with an older profile than a search today would take; null: another version stored it, and this one "
    "cannot read its spec"
)


def iso(moment: datetime) -> str:
    """RFC 3339 in UTC with milliseconds: 2026-11-20T12:00:00.000Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _in_words(moment: Any) -> Any:
    return iso(moment) if isinstance(moment, datetime) else moment


Moment = Annotated[str, BeforeValidator(_in_words)]


def _absent(value: Any) -> bool:
    return not value


def _is_fresh(value: Any) -> bool:
    return value is False


class Resource(BaseModel):
    """A value that the service makes from what it stores; a client leaves out what a newer service says besides."""

    model_config = ConfigDict(frozen=True, from_attributes=True, defer_build=True)


class Listed(Resource):
    """An item of a list, which continues after its id."""

    id: str


Item = TypeVar("Item", bound=Listed)


class ListPage(Resource, Generic[Item]):
    """A piece of a list; `next` is the address of what follows."""

    items: tuple[Item, ...]
    has_more: bool
    next: str | None

    @property
    def after(self) -> str | None:
        """The id that the list continues after; None at its end."""
        return self.items[-1].id if self.has_more else None


class QueueDocument(Resource):
    """Place in the queue; times in seconds of this machine, null where nothing is known or nobody runs searches."""

    position: Annotated[int, Field(ge=1, description="1 is the next: keys take turns, short searches go first")]
    waiting: Annotated[int, Field(ge=1, description="searches that wait, of all keys")]
    slots: Annotated[int, Field(ge=0, description="searches that run at the same time, over all live workers")]
    expected_s: Annotated[float | None, Field(ge=0, description="how long the search itself will take")]
    expected_wait_s: Annotated[float | None, Field(ge=0, description="until it starts, if nobody asks for more")]


class SearchState(Resource):
    """A search beside its PlanSet: keys that are only there when they say something."""

    progress: Annotated[
        dict[str, Any] | None,
        Field(exclude_if=_absent, description="latest report of a running search: counts, best step time, bound, gap"),
    ] = None
    cached: Annotated[
        bool, Field(exclude_if=_absent, description="answered from an equal search that was planned before")
    ] = False
    cancel_requested: Annotated[bool, Field(exclude_if=_absent)] = False
    tags: Annotated[tuple[str, ...], Field(exclude_if=_absent)] = ()
    note: Annotated[str, Field(exclude_if=_absent)] = ""
    note_by: Annotated[str, Field(exclude_if=_absent, description="name of the key that wrote the note")] = ""
    author: Annotated[str, Field(exclude_if=_absent, description=AUTHOR)] = ""
    team: Annotated[str, Field(exclude_if=_absent, description=TEAM)] = ""
    stale: Annotated[bool | None, Field(exclude_if=_is_fresh, description=STALE)] = False
    no_live_worker: Annotated[
        bool, Field(exclude_if=_absent, description="the search waits, and no worker is there that would take it")
    ] = False
    queue: Annotated[
        QueueDocument | None, Field(exclude_if=_absent, description="of a search that waits, where it was looked up")
    ] = None


class SearchDocument(SearchState, PlanSet):
    """A search: exactly its PlanSet, and keys that are only there when they say something."""

    @classmethod
    def read(cls, body: dict[str, Any]) -> Self:
        """From the body of an answer."""
        return cls.model_validate({name: value for name, value in body.items() if name in cls.model_fields})

    @property
    def plan_set(self) -> PlanSet:
        """The PlanSet alone, without plans until the search is finished."""
        names = PlanSet.model_fields.keys()
        return PlanSet.model_construct(self.model_fields_set & names, **{name: getattr(self, name) for name in names})

    @property
    def id(self) -> str:
        return self.search.id

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED


class SearchItem(Listed):
    """One line of the list of searches. Times in seconds; throughput in tokens/s/card."""

    created_at: Moment
    finished_at: Moment | None
    status: str
    model: str
    profile: str
    num_npus: int | None
    seq_length: int
    global_batch_size: int
    num_plans: int
    best_plan_id: str | None
    best_step_time_s: float | None
    best_tokens_per_s_per_npu: float | None
    best_mfu: float | None
    gap: Annotated[float | None, Field(description="of the best plan to the proven bound; null: none was proven")]
    best_degrees: Annotated[dict[str, int] | None, Field(description=DEGREES)]
    cached: bool
    tags: tuple[str, ...]
    note: str
    author: Annotated[str, Field(description=AUTHOR)]
    team: Annotated[str, Field(description=TEAM)]
    stale: Annotated[bool | None, Field(description=STALE)]


class SearchList(ListPage[SearchItem]):
    """A piece of the list; `next` is the address of what follows."""


class PlanDocument(Plan):
    """A plan and the newest search that found it."""

    search_id: str
    stale: Annotated[bool | None, Field(exclude_if=_is_fresh, description=STALE)] = False


def plan_in(document: Any) -> Plan:
    """The plan alone of its document, with or without its search."""
    if isinstance(document, dict):
        document = {name: value for name, value in document.items() if name not in PlanDocument.__annotations__}
    return Plan.model_validate(document)


class BatchEntryDocument(Resource):
    """One search of a batch and its best plan. Times in seconds, memory in GiB, throughput in tokens/s/card."""

    search_id: str
    status: str
    error: str | None
    num_npus: int | None
    seq_length: int
    global_batch_size: int
    best_plan_id: Annotated[str | None, Field(description="null until the search is finished, and where nothing fits")]
    best_step_time_s: float | None
    best_tokens_per_s_per_npu: float | None
    best_mfu: float | None
    gap: Annotated[float | None, Field(description="of the best plan to the proven bound; null: none was proven")]
    peak_memory_gib: float | None
    tp: int | None
    pp: int | None
    vpp: int | None
    dp: int | None
    cp: int | None
    ep: int | None
    micro_batch_size: int | None
    schedule: str | None


class BatchDocument(Resource):
    """A batch: its searches by cards, sequence length and batch size, with the best plan of each."""

    id: str
    created_at: Moment
    status: Annotated[Literal["running", "finished"], Field(description="finished: every search is")]
    author: Annotated[str, Field(description="the name of the key that asked; empty without keys")]
    sweep: dict[str, list[int]]
    spec: dict[str, Any]
    items: tuple[BatchEntryDocument, ...]


class DeliveryDocument(Resource):
    """A webhook of a search and what became of it."""

    id: Annotated[str, Field(description="what the receiver sees in X-AutoDeploy-Delivery")]
    url: str
    status: Annotated[
        str,
        Field(description="waiting: for the search's end; due: it is being sent; delivered; failed: given up"),
    ]
    created_at: Moment
    next_at: Annotated[Moment | None, Field(description="when it is tried next")]
    attempts: int
    last_error: str | None


class DeliveryList(Resource):
    """The webhooks of a search."""

    items: tuple[DeliveryDocument, ...]


class ComparedPartDocument(Resource):
    """One part of the step as the profiler names it: seconds predicted and measured."""

    name: Annotated[str, Field(examples=["computing"])]
    predicted_s: float
    measured_s: float


class RunDocument(Listed):
    """A measurement beside what its plan had predicted. Errors are predicted / measured - 1, of throughput for time."""

    created_at: Moment
    plan_id: str
    cluster: str
    profile: str
    model: str
    num_npus: int
    measured: MeasuredRun
    measured_step_time_s: float | None
    predicted_step_time_s: float
    predicted_low_s: float
    predicted_high_s: float
    predicted_memory_gib: float
    error: Annotated[float | None, Field(description="positive: predicted too fast")]
    memory_error: float | None
    inside: Annotated[bool | None, Field(description="the measured step lies in the predicted 80 % interval")]
    strategy: Strategy
    breakdown: Breakdown
    profiler_parts: Annotated[
        tuple[ComparedPartDocument, ...], Field(description="of a profiler trace: its parts beside ours, summed alike")
    ] = ()
    profile_hash: str
    engine_version: str
    note: str
    author: Annotated[str, Field(description="name of the key that stored it; empty without a key")]
    team: str
    counts: Annotated[bool, Field(description="predictions follow it: a key with scope calibrate stored it")]
    tokens_per_step: Annotated[float, Field(exclude=True)] = 0.0


class RunList(ListPage[RunDocument]):
    """A piece of the ledger, newest first; `next` is the address of what follows."""


class ClusterDocument(Resource):
    """The overlay of a cluster, fitted to its runs, and what it does to their errors."""

    cluster: str
    profile: str
    updated_at: Moment
    num_runs: int
    team: Annotated[str, Field(description="whose runs it is fitted to, and whose searches start from it")]
    changed_by: Annotated[str, Field(description="name of the key that changed it last; empty without a key")]
    overlay: dict[str, Any]
    report: Annotated[dict[str, Any], Field(description="factors, and errors of the runs before and after")]


class ReestimatedDocument(Resource):
    """A stored plan as it was ranked, and as it is under its cluster's overlay."""

    search_id: str
    plan_id: str
    old_rank: int
    new_rank: int
    old_step_time_s: float
    new_step_time_s: float


class MovedDocument(Resource):
    """The plan's step time and 80 % interval before, and under its cluster's overlay."""

    plan_id: str
    old_step_time_s: float
    old_low_s: float
    old_high_s: float
    step_time_s: float
    low_s: float
    high_s: float
    moved_by: Annotated[
        dict[str, float], Field(description="what each factor alone changes log(step time) by, the largest first")
    ]
    old_p_fits: Annotated[float | None, Field(description="probability that it fits, before")] = None
    p_fits: Annotated[float | None, Field(description="and after")] = None


class RunOutcomeDocument(Resource):
    """A stored run, its cluster's overlay, and the cluster's stored plans in their new order."""

    run: RunDocument
    cluster: ClusterDocument | None
    reranked: tuple[ReestimatedDocument, ...]
    moved: Annotated[MovedDocument | None, Field(description="absent where there is no overlay")] = None
    told: Annotated[str, Field(description="what moved and why, in a paragraph")] = ""
    created: Annotated[bool, Field(exclude=True)] = False


class ClusterList(Resource):
    """Clusters that have an overlay."""

    items: tuple[ClusterDocument, ...]


class KeyDocument(Resource):
    """An API key as others may see it: never the key itself."""

    id: Annotated[str, Field(examples=["key_01m3xk7pq2w9a4fh"])]
    name: str
    team: str
    scope: str
    created_at: Moment
    last_used_at: Annotated[Moment | None, Field(description="noted once a minute at most")]
    expires_at: Moment | None
    revoked_at: Moment | None
    max_searches: Annotated[int | None, Field(description="that wait or run at once; null: the server's setting")]
    max_running: Annotated[int | None, Field(description="that run at once; null: as the server has slots")]
    own: Annotated[bool, Field(description="whether the request came with this key")]
    max_spec_bytes: Annotated[int | None, Field(exclude=True)] = None
    max_time_limit_s: Annotated[float | None, Field(exclude=True)] = None


class KeyList(Resource):
    """API keys, the oldest first."""

    items: tuple[KeyDocument, ...]


class AuditItem(Listed):
    """One change that somebody asked for."""

    created_at: Moment
    key_id: Annotated[str, Field(description="empty without a key")]
    author: Annotated[str, Field(description="name of the key; on the command line of the account")]
    team: str
    client: Annotated[str, Field(description="address that the request came from, or `command line`")]
    action: Annotated[str, Field(examples=["search.cancel"])]
    object_id: Annotated[str, Field(examples=["srch_01m3xk7pq2w9a4fh"])]
    status: Annotated[int, Field(description="how the request was answered; 0 on the command line")]
    detail: dict[str, Any] | None


class AuditList(ListPage[AuditItem]):
    """A piece of the log, newest first; `next` is the address of what follows."""


class StackItem(Resource):
    """A software stack: whose chips it runs on, the launch target that means it there, and its releases."""

    name: str
    title: str
    vendors: list[str]
    target: str | None
    default: bool
    releases: list[str]


class FactItem(Resource):
    """One fact of a stack: its section, value with conditions, kind and source."""

    section: str
    name: str
    value: str
    kind: str
    source: str


class StackDocument(StackItem):
    """A software stack with every fact, what it inherits included; `sources` explains their abbreviations."""

    as_of: str | None
    facts: list[FactItem]
    sources: dict[str, str]

    @classmethod
    def of(cls, stack: Stack) -> Self:
        """The document of a stack."""
        facts = [dict(zip(FactItem.model_fields, row, strict=True)) for row in stack.rows()]
        return cls.model_validate({name: getattr(stack, name) for name in cls.model_fields} | {"facts": facts})
