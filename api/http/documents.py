"""Bodies that requests send and responses carry."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from autodeploy.service.store.base import iso, to_json
from autodeploy.service.store.tables import DEFAULT_TEAM
from autodeploy.specs.planset import Plan, PlanSet
from autodeploy.specs.presets import PresetInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autodeploy.service.batches import BatchView
    from autodeploy.service.searches.views import SearchPage, SearchSummary, SearchView, StoredPlan
    from autodeploy.service.webhooks.service import DeliveryView


AUTHOR = "name of the key that asked for it; empty without a key"
TEAM = "whose it is: keys of this team see and change it"
DEGREES = "degrees of the best plan (tp, pp, vpp, cp, ep, dp); null without a plan"
STALE = (
    "computed with an older profile than a search today would take; null: another version stored it, and this one "
    "cannot read its spec"
)


def _joined(document: str, more: Mapping[str, Any]) -> bytes:
    """A JSON object, which has at least one key, with further keys."""
    return (f"{document[:-1]},{to_json(more)[1:]}" if more else document).encode()


def _absent(value: Any) -> bool:
    return not value


def _is_fresh(value: Any) -> bool:
    return value is False


def _staleness(stale: bool | None) -> dict[str, bool | None]:
    return {} if stale is False else {"stale": stale}


class QueueDocument(BaseModel):
    """Place in the queue; times in seconds of this machine, null where nothing is known or nobody runs searches."""

    position: Annotated[int, Field(ge=1, description="1 is the next: keys take turns, short searches go first")]
    waiting: Annotated[int, Field(ge=1, description="searches that wait, of all keys")]
    slots: Annotated[int, Field(ge=0, description="searches that run at the same time, over all live workers")]
    expected_s: Annotated[float | None, Field(ge=0, description="how long the search itself will take")]
    expected_wait_s: Annotated[float | None, Field(ge=0, description="until it starts, if nobody asks for more")]


class SearchDocument(PlanSet):
    """A search: exactly its PlanSet, and keys that are only there when they say something."""

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

    @staticmethod
    def json_of(view: SearchView) -> bytes:
        """The document of a search, put together as text: the PlanSet in it is valid already."""
        said = {
            "progress": view.progress,
            "cached": view.cached,
            "cancel_requested": view.cancel_requested,
            "tags": view.tags,
            "note": view.note,
            "note_by": view.note_by,
            "author": view.author,
            "team": "" if view.team == DEFAULT_TEAM and not view.author else view.team,
            "no_live_worker": view.no_live_worker,
            "queue": None if view.queue is None else asdict(view.queue),
        }
        told = {name: value for name, value in said.items() if value}
        return _joined(view.stored.json(), told | _staleness(view.stale))


class SearchItem(BaseModel):
    """One line of the list of searches. Times in seconds; throughput in tokens/s/card."""

    id: str
    created_at: str
    finished_at: str | None
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


class SearchList(BaseModel):
    """A piece of the list; `next` is the address of what follows."""

    items: list[SearchItem]
    has_more: bool
    next: str | None

    @staticmethod
    def json_of(page: SearchPage, next_url: str | None) -> bytes:
        """The document of a page; its items are valid already."""
        items = [_item_values(item) for item in page.items]
        return to_json({"items": items, "has_more": page.has_more, "next": next_url}).encode()


def _item_values(item: SearchSummary) -> dict[str, Any]:
    values = {name: getattr(item, name) for name in SearchItem.model_fields}
    values["created_at"] = iso(item.created_at)
    values["finished_at"] = iso(item.finished_at) if item.finished_at else None
    return values


class PlanList(BaseModel):
    """The ranked plans of a search."""

    items: tuple[Plan, ...]

    @staticmethod
    def json_of(plans: Iterable[str]) -> bytes:
        """The document of these plans, which are JSON already."""
        return f'{{"items":[{",".join(plans)}]}}'.encode()


class PlanDocument(Plan):
    """A plan and the newest search that found it."""

    search_id: str
    stale: Annotated[bool | None, Field(exclude_if=_is_fresh, description=STALE)] = False

    @staticmethod
    def json_of(view: StoredPlan) -> bytes:
        """The document of a stored plan, put together as text."""
        said = {"search_id": view.search_id} | _staleness(view.stale)
        return _joined(view.text, said)


Tag = Annotated[str, Field(min_length=1, max_length=64)]


class Annotations(BaseModel):
    """Annotations of a search by people. A key that is absent stays as it is."""

    model_config = ConfigDict(extra="forbid")

    tags: Annotated[list[Tag] | None, Field(max_length=20, examples=[["v3", "baseline"]])] = None
    note: Annotated[str | None, Field(max_length=4000)] = None


class ProfileItem(BaseModel):
    """A hardware profile and its chip grades."""

    name: str
    title: str
    devices: list[str]


class ProfileList(BaseModel):
    """Hardware profiles."""

    items: list[ProfileItem]


class StackItem(BaseModel):
    """A software stack: whose chips it runs on, the launch target that means it there, and its releases."""

    name: str
    title: str
    vendors: list[str]
    target: str | None
    default: bool
    releases: list[str]


class StackList(BaseModel):
    """Software stacks."""

    items: list[StackItem]


class FactItem(BaseModel):
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


class ModelList(BaseModel):
    """Model presets."""

    items: list[PresetInfo]


class SchemaList(BaseModel):
    """Names under /v1/schemas/."""

    items: list[str]


class Version(BaseModel):
    """Version of the service."""

    name: str
    version: str


class Health(BaseModel):
    """Whether requests are answered, and each thing that takes.

    `degraded`: requests are answered, but searches wait for a worker or writes are refused.
    """

    status: str
    checks: dict[str, bool] = {}


# Bodies of batches and webhooks.
class BatchEntryDocument(BaseModel):
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


class BatchDocument(BaseModel):
    """A batch: its searches by cards, sequence length and batch size, with the best plan of each."""

    id: str
    created_at: str
    status: Annotated[Literal["running", "finished"], Field(description="finished: every search is")]
    author: Annotated[str, Field(description="the name of the key that asked; empty without keys")]
    sweep: dict[str, list[int]]
    spec: dict[str, Any]
    items: list[BatchEntryDocument]

    @classmethod
    def of(cls, view: BatchView) -> BatchDocument:
        return cls(
            id=view.id,
            created_at=iso(view.created_at),
            status="finished" if view.is_finished else "running",
            author=view.author,
            sweep=view.document["sweep"],
            spec=view.document["spec"],
            items=[BatchEntryDocument(**asdict(entry)) for entry in view.entries],
        )


class DeliveryDocument(BaseModel):
    """A webhook of a search and what became of it."""

    id: Annotated[str, Field(description="what the receiver sees in X-AutoDeploy-Delivery")]
    url: str
    status: Annotated[
        str,
        Field(description="waiting: for the search's end; due: it is being sent; delivered; failed: given up"),
    ]
    created_at: str
    next_at: Annotated[str | None, Field(description="when it is tried next")]
    attempts: int
    last_error: str | None

    @classmethod
    def of(cls, view: DeliveryView) -> DeliveryDocument:
        return cls(
            id=view.id,
            url=view.url,
            status=view.status,
            created_at=iso(view.created_at),
            next_at=None if view.next_at is None else iso(view.next_at),
            attempts=view.attempts,
            last_error=view.last_error,
        )


class DeliveryList(BaseModel):
    """The webhooks of a search."""

    items: list[DeliveryDocument]


class WebhookSecret(BaseModel):
    """Secret that signs the webhooks of one team."""

    team: str
    secret: str
