"""What services answer with: values, never rows, so that nothing is read after a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autodeploy.service.store.tables import DEFAULT_TEAM
from autodeploy.specs.planset import FINISHED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from autodeploy.service.runner.forecast import QueuePlace
    from autodeploy.service.store.plan_rows import StoredSearch
    from autodeploy.specs.planset import Plan, PlanSet


@dataclass(frozen=True)
class SearchView:
    """One search: its PlanSet (without plans until it is finished) and what is known besides.

    `stale`: its plans rest on an older profile than a search today would; None: this version cannot
    read their spec. `author`, `note_by`: names of the keys that
    asked for it and wrote its note; empty without a key.

    `no_live_worker`: it waits, and nobody is there who would take it.
    `queue`: where it waits, of a queued one that was looked up.

    `progress` is the latest report of a running search, in the fields of `autodeploy.search.planner.Progress`.
    """

    stored: StoredSearch
    progress: dict[str, Any] | None = None
    cached: bool = False
    cancel_requested: bool = False
    tags: tuple[str, ...] = ()
    note: str = ""
    stale: bool | None = False
    note_by: str = ""
    author: str = ""
    team: str = DEFAULT_TEAM
    no_live_worker: bool = False
    queue: QueuePlace | None = None

    @cached_property
    def plan_set(self) -> PlanSet:
        """Read when it is asked for: whoever only sends it on needs its text, `stored.json()`."""
        return self.stored.plan_set()

    @property
    def id(self) -> str:
        return self.stored.id

    @property
    def status(self) -> str:
        return self.stored.status

    @property
    def updated_at(self) -> datetime:
        return self.stored.updated_at

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """One line of a list of searches."""

    id: str
    created_at: datetime
    finished_at: datetime | None
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
    best_degrees: Mapping[str, int] | None
    cached: bool
    tags: tuple[str, ...]
    note: str
    stale: bool | None
    author: str
    team: str


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A piece of the list. `next_after` continues it."""

    items: tuple[SearchSummary, ...]
    has_more: bool

    @property
    def next_after(self) -> str | None:
        return self.items[-1].id if self.has_more else None


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan and the PlanSet that holds it."""

    plan: Plan
    plan_set: PlanSet
    stale: bool | None = False


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan as JSON text, and the newest search that found it."""

    search_id: str
    text: str
    stale: bool | None
