"""What the pages ask of the services: the one place that knows how these are called."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotation while the program runs

from api.ui.profile_page import ProfilePage, profile_page
from autodeploy.errors import NotFoundError, SpecError
from autodeploy.exporters.registry import FORMATS
from autodeploy.importers.documents import load_json, load_yaml
from autodeploy.services.access import ANYONE
from autodeploy.services.intake import read_network_spec
from autodeploy.specs.presets import list_presets
from autodeploy.store.clock import iso
from hardware_profiles import list_profiles, load_profile

if TYPE_CHECKING:
    from autodeploy.services import (
        ClusterView,
        Principal,
        ReestimatedPlan,
        RunPage,
        SearchSummary,
        SearchView,
        Services,
    )
    from autodeploy.store.searches import SearchFilter

PAGE_LENGTH = 50


@dataclass(frozen=True, slots=True)
class SearchRow:
    """A line of the table of past searches."""

    id: str
    created_at: str
    status: str
    model: str
    profile: str
    num_npus: int | None
    seq_length: int
    global_batch_size: int
    best_step_time_s: float | None
    tokens_per_s_per_npu: float | None
    mfu: float | None
    gap: float | None
    stale: bool


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A line of the table of hardware profiles."""

    name: str
    title: str
    devices: tuple[str, ...]


class Views:
    """The services as the pages need them."""

    def __init__(self, services: Services, principal: Principal = ANYONE) -> None:
        self._services = services
        self._principal = principal

    @classmethod
    def of(cls, request: Request) -> Views:
        """Those of the app that the request came to."""
        return cls(cast("Services", request.app.state.services), getattr(request.state, "principal", ANYONE))

    def searches(self, where: SearchFilter, after: str | None) -> tuple[list[SearchRow], str | None]:
        """A page of past searches, newest first, and what continues it."""
        page = self._services.searches.list(where, limit=PAGE_LENGTH, after=after)
        return [_row(item) for item in page.items], page.next_after

    def search(self, search_id: str) -> SearchView:
        """One search.

        Raises
        ------
        NotFoundError
            when there is none of that id.
        """
        return self._services.searches.get(search_id)

    def reranked(self, search_id: str) -> tuple[ReestimatedPlan, ...]:
        """Plans of a search in the order that its cluster's runs give them."""
        return self._services.runs.reranked_of_search(search_id)

    def runs(self, cluster: str | None, after: str | None) -> RunPage:
        """A page of the ledger, newest first."""
        return self._services.runs.list(cluster=cluster, limit=PAGE_LENGTH, after=after)

    def clusters(self) -> tuple[ClusterView, ...]:
        """Clusters whose runs have given them an overlay."""
        return self._services.runs.clusters()

    def reranked_of_cluster(self, cluster: str) -> tuple[ReestimatedPlan, ...]:
        """Stored plans of a cluster in their new order."""
        return self._services.runs.reranked(cluster)

    def cancel(self, search_id: str) -> None:
        """Stops a search; a finished one is refused with ConflictError."""
        self._services.searches.cancel(search_id)

    def submit(self, document: Any) -> str:
        """Starts a search and returns its id.

        Raises
        ------
        SpecError
            with every bad field.
        """
        _refuse_unstorable(document)
        spec = read_network_spec(document, self._services.planner)
        return self._services.searches.submit(spec, principal=self._principal).search.id

    def submit_text(self, text: str) -> str:
        """Starts the search that a pasted YAML or JSON document asks for; errors as `submit`."""
        document = load_json(text) if text.lstrip().startswith("{") else load_yaml(text)
        if not isinstance(document, dict):
            raise SpecError("a spec is a mapping with model, cluster and training", hint="see the examples")
        return self.submit(document)

    def models(self) -> list[tuple[str, str]]:
        """Names and titles of the model presets."""
        return [(preset.name, preset.title) for preset in list_presets()]

    def profiles(self) -> list[ProfileRow]:
        """The hardware profiles that come with the product."""
        documents = [load_profile(name).document for name in list_profiles()]
        return [ProfileRow(document.name, document.title, tuple(document.devices)) for document in documents]

    def profile(self, name: str) -> ProfilePage:
        """One profile with all its numbers; only those that come with the product have a page.

        Raises
        ------
        NotFoundError
            when there is none of that name.
        """
        if name not in list_profiles():
            raise NotFoundError(f"there is no hardware profile {name[:100]!r}")
        return profile_page(load_profile(name).document.model_dump(mode="json"))

    def profile_title(self, name: str) -> str:
        """What a person calls the profile; an own profile has its name."""
        return load_profile(name).title if name in list_profiles() else name

    def export_formats(self) -> tuple[str, ...]:
        """What a plan can be exported to."""
        return tuple(FORMATS)


def _row(item: SearchSummary) -> SearchRow:
    return SearchRow(
        id=item.id,
        created_at=iso(item.created_at),
        status=item.status,
        model=item.model,
        profile=item.profile,
        num_npus=item.num_npus,
        seq_length=item.seq_length,
        global_batch_size=item.global_batch_size,
        best_step_time_s=item.best_step_time_s,
        tokens_per_s_per_npu=item.best_tokens_per_s_per_npu,
        mfu=item.best_mfu,
        gap=item.gap,
        stale=item.stale,
    )


def _refuse_unstorable(document: Any) -> None:
    """Text that no database keeps: NUL characters and halves of surrogate pairs."""
    text = json.dumps(document, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError("the text has half a surrogate pair") from error
    if "\\u0000" in text:
        raise SpecError("the text has a NUL character")
