"""Bodies that requests send and responses carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from autodeploy.specs.planset import Plan, PlanSet
from autodeploy.specs.presets import PresetInfo
from autodeploy.store.clock import iso

if TYPE_CHECKING:
    from autodeploy.services import SearchPage, SearchSummary, SearchView


STALE = "computed with an older profile than a search today would take"


def _absent(value: Any) -> bool:
    return not value


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
    stale: Annotated[bool, Field(exclude_if=_absent, description=STALE)] = False

    @classmethod
    def of(cls, view: SearchView) -> SearchDocument:
        """The document of a search; the PlanSet in it is valid already."""
        return cls.model_construct(
            **dict(view.plan_set),
            progress=view.progress,
            cached=view.cached,
            cancel_requested=view.cancel_requested,
            tags=view.tags,
            note=view.note,
            stale=view.stale,
        )


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
    gap: float | None
    cached: bool
    tags: tuple[str, ...]
    note: str
    stale: Annotated[bool, Field(description=STALE)]

    @classmethod
    def of(cls, summary: SearchSummary) -> SearchItem:
        values = {name: getattr(summary, name) for name in cls.model_fields}
        values["created_at"] = iso(summary.created_at)
        values["finished_at"] = iso(summary.finished_at) if summary.finished_at else None
        return cls(**values)


class SearchList(BaseModel):
    """A piece of the list; `next` is the address of what follows."""

    items: list[SearchItem]
    has_more: bool
    next: str | None

    @classmethod
    def of(cls, page: SearchPage, next_url: str | None) -> SearchList:
        return cls(items=[SearchItem.of(item) for item in page.items], has_more=page.has_more, next=next_url)


class PlanList(BaseModel):
    """The ranked plans of a search."""

    items: tuple[Plan, ...]


class PlanDocument(Plan):
    """A plan and the newest search that found it."""

    search_id: str
    stale: Annotated[bool, Field(exclude_if=_absent, description=STALE)] = False

    @classmethod
    def of(cls, plan: Plan, search_id: str, *, stale: bool = False) -> PlanDocument:
        return cls.model_construct(**dict(plan), search_id=search_id, stale=stale)


class Annotations(BaseModel):
    """What people add to a search. A key that is absent stays as it is."""

    model_config = ConfigDict(extra="forbid")

    tags: Annotated[list[str] | None, Field(max_length=20, examples=[["v3", "baseline"]])] = None
    note: Annotated[str | None, Field(max_length=4000)] = None


class ProfileItem(BaseModel):
    """A hardware profile and its chip grades."""

    name: str
    title: str
    devices: list[str]


class ProfileList(BaseModel):
    """Hardware profiles."""

    items: list[ProfileItem]


class ModelList(BaseModel):
    """Model presets."""

    items: list[PresetInfo]


class SchemaList(BaseModel):
    """Names under /v1/schemas/."""

    items: list[str]


class Version(BaseModel):
    """What answers."""

    name: str
    version: str


class Health(BaseModel):
    """Whether requests are answered, and each thing that takes."""

    status: str
    checks: dict[str, bool] = {}
