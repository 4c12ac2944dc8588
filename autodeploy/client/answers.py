"""What the service answers, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autodeploy.specs.planset import FINISHED, PlanSet


@dataclass(frozen=True, slots=True)
class Search:
    """A search: its PlanSet, without plans until it is finished, and what the service knows besides."""

    plan_set: PlanSet
    progress: dict[str, Any] | None = None
    cached: bool = False
    cancel_requested: bool = False
    tags: tuple[str, ...] = ()
    note: str = ""
    stale: bool = False
    note_by: str = ""
    author: str = ""
    team: str = "default"
    no_live_worker: bool = False
    queue: dict[str, Any] | None = None

    @classmethod
    def read(cls, body: dict[str, Any]) -> Search:
        """From a response's body; what a newer service says besides is left out."""
        extra = ("progress", "cached", "cancel_requested", "note", "stale", "note_by", "author", "team")
        fields = {name: body[name] for name in (*extra, "no_live_worker", "queue") if name in body}
        document = {name: value for name, value in body.items() if name in PlanSet.model_fields}
        return cls(PlanSet.model_validate(document), tags=tuple(body.get("tags", ())), **fields)

    @property
    def id(self) -> str:
        return self.plan_set.search.id

    @property
    def status(self) -> str:
        return self.plan_set.status

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED


@dataclass(frozen=True, slots=True)
class SearchItem:
    """One line of the list of searches."""

    id: str
    created_at: str
    status: str
    model: str
    profile: str
    num_npus: int | None
    best_plan_id: str | None
    best_step_time_s: float | None
    best_tokens_per_s_per_npu: float | None
    tags: tuple[str, ...]
    note: str
    author: str = ""
    team: str = "default"
    best_degrees: dict[str, int] | None = None

    @classmethod
    def read(cls, body: dict[str, Any]) -> SearchItem:
        """From a line of the list; what a newer service says besides is left out."""
        values = {name: body[name] for name in cls.__dataclass_fields__ if name in body}
        return cls(**values | {"tags": tuple(values["tags"])})


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A piece of the list, newest first; `after` continues it, None at the end."""

    items: tuple[SearchItem, ...]
    after: str | None

    @classmethod
    def read(cls, body: dict[str, Any]) -> SearchPage:
        """From a response's body."""
        items = tuple(SearchItem.read(item) for item in body["items"])
        return cls(items, items[-1].id if body["has_more"] else None)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a search: `kind` is "status" or "progress"; `seq` counts from 1."""

    seq: int
    kind: str
    data: dict[str, Any]

    @property
    def is_last(self) -> bool:
        return self.kind == "status" and self.data.get("status") in FINISHED
