"""Every call of the API as a value: what is sent, and how the answer is read. Sending is somebody else's work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

from autodeploy.specs.answers import CheckReport, ClusterComparison, ImproveReport, Recommendation, WhyNot
from autodeploy.specs.plan_details import Comparison, OperatorReport
from autodeploy.specs.planset import FINISHED, Plan, PlanSet
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    import httpx


# What the service answers, as values.
@dataclass(frozen=True, slots=True)
class Search:
    """A search: its PlanSet, without plans until it is finished, and what the service knows besides."""

    plan_set: PlanSet
    progress: dict[str, Any] | None = None
    cached: bool = False
    cancel_requested: bool = False
    tags: tuple[str, ...] = ()
    note: str = ""
    stale: bool | None = False
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


Answer = TypeVar("Answer", covariant=True)
SpecLike = Spec | Mapping[str, Any]

# The longest single wait; a longer one is made of several, so that no proxy loses patience.
WAIT_STEP_S = 25.0
# A run makes the service fit its cluster's overlay and predict the cluster's stored plans again.
RUN_FIT_S = 120.0
# A check searches, at most for so long (`autodeploy.analysis.launch_checks`).
CHECK_S = 60.0


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request. `repeatable`: sending it twice does what sending it once does."""

    method: str
    path: str
    read: Callable[[httpx.Response], Answer]
    params: dict[str, str | int | float] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    json: Any = None
    repeatable: bool = True
    extra_time_s: float = 0.0


def _search(response: httpx.Response) -> Search:
    return Search.read(response.json())


def _document(spec: SpecLike) -> Any:
    return spec.model_dump(mode="json") if isinstance(spec, Spec) else dict(spec)


def submit(spec: SpecLike, *, wait_s: float, idempotency_key: str | None, reuse: bool) -> Call[Search]:
    """POST /v1/searches. Without a key of the caller's a fresh one makes repeating safe."""
    headers = {"Idempotency-Key": idempotency_key or uuid4().hex}
    if wait_s > 0:
        headers["Prefer"] = f"wait={round(min(wait_s, WAIT_STEP_S))}"
    if not reuse:
        headers["Cache-Control"] = "no-cache"
    return Call("POST", "/v1/searches", _search, headers=headers, json=_document(spec), extra_time_s=WAIT_STEP_S)


def get(search_id: str, *, wait_s: float = 0.0) -> Call[Search]:
    """GET /v1/searches/{id}; with `wait_s` the answer comes when the search is finished."""
    params: dict[str, str | int | float] = {"wait": min(wait_s, WAIT_STEP_S)} if wait_s > 0 else {}
    return Call("GET", f"/v1/searches/{search_id}", _search, params=params, extra_time_s=WAIT_STEP_S)


def list_page(filters: Mapping[str, str | None], *, limit: int, after: str | None) -> Call[SearchPage]:
    """GET /v1/searches."""
    given = {**filters, "after": after}
    params: dict[str, str | int | float] = {"limit": limit}
    params |= {name: value for name, value in given.items() if value is not None}
    return Call("GET", "/v1/searches", lambda response: SearchPage.read(response.json()), params=params)


def annotate(search_id: str, *, tags: list[str] | None, note: str | None) -> Call[Search]:
    """PATCH /v1/searches/{id}."""
    return Call("PATCH", f"/v1/searches/{search_id}", _search, json={"tags": tags, "note": note})


def cancel(search_id: str) -> Call[Search]:
    """POST /v1/searches/{id}/cancel."""
    return Call("POST", f"/v1/searches/{search_id}/cancel", _search)


def delete(search_id: str) -> Call[None]:
    """DELETE /v1/searches/{id}."""
    return Call("DELETE", f"/v1/searches/{search_id}", lambda response: None, repeatable=False)


def plan(plan_id: str) -> Call[Plan]:
    """GET /v1/plans/{id}."""

    def read(response: httpx.Response) -> Plan:
        return Plan.model_validate(
            {key: value for key, value in response.json().items() if key not in {"search_id", "stale"}}
        )

    return Call("GET", f"/v1/plans/{plan_id}", read)


def _json(response: httpx.Response) -> dict[str, Any]:
    answer: dict[str, Any] = response.json()
    return answer


def add_run(plan_id: str, document: Mapping[str, Any], rehearse: str | None) -> Call[dict[str, Any]]:
    """POST /v1/plans/{id}/runs; the same measurement sent twice is one run."""
    path = f"/v1/plans/{plan_id}/runs"
    params: dict[str, str | int | float] = {} if rehearse is None else {"rehearse": rehearse}
    return Call("POST", path, _json, json=dict(document), params=params, extra_time_s=RUN_FIT_S)


def runs(filters: Mapping[str, str | None], *, limit: int, after: str | None) -> Call[dict[str, Any]]:
    """GET /v1/runs."""
    params: dict[str, str | int | float] = {"limit": limit}
    params |= {name: value for name, value in {**filters, "after": after}.items() if value is not None}
    return Call("GET", "/v1/runs", _json, params=params)


def delete_run(run_id: str) -> Call[None]:
    """DELETE /v1/runs/{id}."""
    path = f"/v1/runs/{run_id}"
    return Call("DELETE", path, lambda response: None, repeatable=False, extra_time_s=RUN_FIT_S)


def export(plan: str | SpecLike, to: str, lang: str | None, rehearse: str | None) -> Call[str]:
    """GET /v1/plans/{id}/export; of a spec with a strategy POST /v1/exports."""
    given = {"to": to, "lang": lang, "rehearse": rehearse}
    params: dict[str, str | int | float] = {name: value for name, value in given.items() if value is not None}
    if isinstance(plan, str):
        return Call("GET", f"/v1/plans/{plan}/export", lambda response: response.text, params=params)
    return Call("POST", "/v1/exports", lambda response: response.text, params=params, json=_document(plan))


def operators(plan_id: str) -> Call[OperatorReport]:
    """GET /v1/plans/{plan_id}/operators."""
    path = f"/v1/plans/{plan_id}/operators"
    return Call("GET", path, lambda response: OperatorReport.model_validate(response.json()))


def estimate(spec: SpecLike) -> Call[Plan]:
    """POST /v1/estimates."""
    return Call("POST", "/v1/estimates", lambda response: Plan.model_validate(response.json()), json=_document(spec))


def check(request: Mapping[str, Any]) -> Call[CheckReport]:
    """POST /v1/checks; the service searches for the best plan, which takes seconds."""

    def read(response: httpx.Response) -> CheckReport:
        return CheckReport.model_validate(response.json())

    return Call("POST", "/v1/checks", read, json=dict(request), extra_time_s=CHECK_S)


def compare(plans: Sequence[str | Mapping[str, Any]]) -> Call[Comparison]:
    """POST /v1/compare."""

    def read(response: httpx.Response) -> Comparison:
        return Comparison.model_validate(response.json())

    return Call("POST", "/v1/compare", read, json={"plans": list(plans)})


def why_not(request: Mapping[str, Any]) -> Call[WhyNot]:
    """POST /v1/why-not; of a spec the service searches for the best plan, which takes seconds."""

    def read(response: httpx.Response) -> WhyNot:
        return WhyNot.model_validate(response.json())

    return Call("POST", "/v1/why-not", read, json=dict(request), extra_time_s=CHECK_S)


def improve(request: Mapping[str, Any]) -> Call[ImproveReport]:
    """POST /v1/improve; the service predicts dozens of changes, which takes seconds."""

    def read(response: httpx.Response) -> ImproveReport:
        return ImproveReport.model_validate(response.json())

    return Call("POST", "/v1/improve", read, json=dict(request), extra_time_s=CHECK_S)


def recommend(request: Mapping[str, Any]) -> Call[Recommendation]:
    """POST /v1/recommend; the service plans for several numbers of cards, up to a minute."""

    def read(response: httpx.Response) -> Recommendation:
        return Recommendation.model_validate(response.json())

    return Call("POST", "/v1/recommend", read, json=dict(request), extra_time_s=CHECK_S)


def compare_clusters(request: Mapping[str, Any]) -> Call[ClusterComparison]:
    """POST /v1/compare-clusters; the service plans on one cluster after the other."""

    def read(response: httpx.Response) -> ClusterComparison:
        return ClusterComparison.model_validate(response.json())

    patience_s = CHECK_S * max(1, len(request.get("clusters", ())))
    return Call("POST", "/v1/compare-clusters", read, json=dict(request), extra_time_s=patience_s)


def events_path(search_id: str) -> str:
    """The address of a search's event stream."""
    return f"/v1/searches/{search_id}/events"
