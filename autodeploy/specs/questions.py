"""Questions that the service answers and stores nowhere: the document that asks each, its answer, its route.

Both clients, the routes and the list of what changes nothing are made of these rows; `Questions` of
`autodeploy.analysis.questions` has a method of each name, whose docstring describes the route.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, Self, TypeVar, overload

from pydantic import BaseModel, Field, PrivateAttr, ValidationError, model_validator

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.answers import (
    MAX_CLUSTERS,
    CheckLimits,
    CheckReport,
    ClusterComparison,
    ClusterOffer,
    ImproveReport,
    Recommendation,
    WhyNot,
)
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import MAX_NPUS
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.plan_details import Comparison
from autodeploy.specs.spec import Spec
from hardware_profiles.magnitudes import Days, TokenCount

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

Asked = TypeVar("Asked", bound=Document)
Answer = TypeVar("Answer", bound=BaseModel)
# A question searches, at most for so long (`autodeploy.analysis.launch_checks`).
SEARCH_S = 60.0
Text = Annotated[str, Field(max_length=200)]


def read_request(kind: type[Asked], document: Any, prefix: str = "") -> Asked:
    """The request in a body, or at a place in one.

    Raises SpecError with every bad field.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix=prefix, model=kind)) from error


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this machine, which may name others, and the release that it is read for."""

    path: Path
    release: str | None = None


class LaunchRequest(Document):
    """A launch: `spec` with a strategy, or `file` with the text of a launch script, a framework's YAML or a spec."""

    spec: Annotated[dict[str, Any] | None, Field(description="a spec with a strategy")] = None
    file: Annotated[str | None, Field(max_length=1_000_000)] = None
    filename: Annotated[Text | None, Field(description="helps where the text alone does not tell")] = None
    variables: Annotated[dict[Text, str] | None, Field(description="variables that a launch script expects")] = None
    cluster: Annotated[Text | None, Field(description="hardware profile, where the file names no chip")] = None
    device: Text | None = None
    num_npus: Annotated[int | None, Field(ge=1, le=200_000)] = None
    _local: LocalFile | None = PrivateAttr(None)

    @classmethod
    def about_file(cls, local: LocalFile, /, **asked: Any) -> Self:
        """The request of whoever has the file of its text: read here it is that file, sent to a server the text.

        Raises SpecError with every bad field.
        """
        request = read_request(cls, {"filename": local.path.name, **asked})
        request._local = local
        return request

    @property
    def local(self) -> LocalFile | None:
        """The file of its text; None in a request from elsewhere."""
        return self._local

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.spec is None) == (self.file is None):
            raise ValueError(Message("common.give_either", one="spec", other="file"))
        return self


class CheckRequest(LaunchRequest):
    """A launch to check, and the limits it is held against."""

    limits: CheckLimits = CheckLimits()
    baseline: Annotated[
        str | dict[str, Any] | None,
        Field(
            description="a plan id, a plan, a PlanSet (its best plan), a CheckReport, or the launch before a change: "
            "{file, filename}"
        ),
    ] = None
    _local_baseline: LocalFile | None = PrivateAttr(None)

    def against_file(self, baseline: LocalFile) -> Self:
        """The request of whoever has the file of its baseline, too."""
        self._local_baseline = baseline
        return self

    @property
    def local_baseline(self) -> LocalFile | None:
        """The file of its baseline; None in a request from elsewhere."""
        return self._local_baseline


class ImproveRequest(LaunchRequest):
    """A launch to improve: `spec` with a strategy, or `file` with the text of a launch script or a framework's YAML."""


MAX_COMPARED = 5


class CompareRequest(Document):
    """Two to five plans: the id of a stored plan, or a PlanSet, whose best plan is taken."""

    plans: Annotated[tuple[str | dict[str, Any], ...], Field(min_length=2, max_length=MAX_COMPARED)]


class AboutSpec(Document):
    """A request about a spec."""

    _read: Spec | None = PrivateAttr(None)

    @classmethod
    def about(cls, spec: Spec, **asked: Any) -> Self:
        """The request of whoever has read its spec already, which may name files that no other machine has.

        Raises SpecError with every bad field.
        """
        request = read_request(cls, {"spec": spec.model_dump(mode="json"), **asked})
        request._read = spec
        return request

    @property
    def read_spec(self) -> Spec | None:
        """The spec as it was read here; None in a request from elsewhere."""
        return self._read


class WhyNotRequest(AboutSpec):
    """A strategy, and what it is not the plan of: `spec`, or `plan_id` of a stored plan, whose strategy it changes.

    Absent axes are those of the best plan with the given ones, of a plan its own; what follows from a changed axis, and
    layers and memory with it, is chosen anew.
    """

    plan_id: Annotated[str | None, Field(max_length=200)] = None
    spec: dict[str, Any] | None = None
    strategy: Annotated[dict[str, Any], Field(min_length=1, description="fields of a strategy, such as tp")]

    @model_validator(mode="after")
    def _one_subject(self) -> Self:
        if (self.plan_id is None) == (self.spec is None):
            raise ValueError(Message("common.give_either", one="plan_id", other="spec"))
        return self


class SpecRequest(AboutSpec):
    """A spec, and what is asked of it."""

    spec: dict[str, Any]


class Budget(Document):
    """Limits of a training: time, cards or cost."""

    days: Days | None = None
    npu_hours: Annotated[float | None, Field(ge=1e-3, le=1e12, description="budget in card-hours")] = None
    cost: Annotated[float | None, Field(ge=1e-3, le=1e15, description="budget in the spec's currency")] = None
    tokens: TokenCount | None = None
    max_npus: Annotated[int | None, Field(ge=1, le=MAX_NPUS, description="default: 16 times the spec's cards")] = None


class RecommendRequest(Budget, SpecRequest):
    """A deadline, a budget or both; `tokens` by default those of the spec."""


class CompareClustersRequest(RecommendRequest):
    """The deadline, and one to four clusters with their prices on which the spec is planned in place of its own."""

    days: Days
    clusters: Annotated[tuple[ClusterOffer, ...], Field(min_length=1, max_length=MAX_CLUSTERS)]


class Asks(Protocol):
    """A client that sends a question and waits for its answer."""

    def _ask(self, question: Question[Asked, Answer], request: Mapping[str, Any] | Asked) -> Answer: ...


class AsksLater(Protocol):
    """One whose answers are awaited."""

    def _ask(
        self, question: Question[Asked, Answer], request: Mapping[str, Any] | Asked
    ) -> Coroutine[Any, Any, Answer]: ...


@dataclass(frozen=True, slots=True)
class Question(Generic[Asked, Answer]):
    """A question: of a client the method that asks it.

    searches : for how many searches it waits at the most, besides the ordinary time limit; of a name, one for each
        entry of the request's list of that name.
    refusals : statuses that it may be refused with besides those of every question.
    """

    path: str
    operation_id: str
    summary: str
    request: type[Asked]
    answer: type[Answer]
    tag: str = "what-if"
    searches: int | str = 1
    refusals: tuple[int, ...] = ()

    def patience_s(self, request: Mapping[str, Any]) -> float:
        """Time that its searches may take."""
        count = max(1, len(request.get(self.searches, ()))) if isinstance(self.searches, str) else self.searches
        return SEARCH_S * count

    @overload
    def __get__(self, client: None, kind: type[Any]) -> Self: ...
    @overload
    def __get__(self, client: Asks, kind: type[Any]) -> Callable[[Mapping[str, Any] | Asked], Answer]: ...
    @overload
    def __get__(
        self, client: AsksLater, kind: type[Any]
    ) -> Callable[[Mapping[str, Any] | Asked], Coroutine[Any, Any, Answer]]: ...
    def __get__(self, client: Asks | AsksLater | None, kind: type[Any]) -> Any:
        return self if client is None else partial(client._ask, self)


class Asking:
    """Questions of both clients."""

    check = Question(
        "/v1/checks", "create_check", "Hold a launch against limits", CheckRequest, CheckReport, "plans", 1, (404,)
    )
    why_not = Question(
        "/v1/why-not", "why_not", "What speaks against a strategy", WhyNotRequest, WhyNot, refusals=(404,)
    )
    improve = Question(
        "/v1/improve", "improve_launch", "The best single changes of a launch", ImproveRequest, ImproveReport
    )
    recommend = Question(
        "/v1/recommend", "recommend_cards", "Cards for a deadline, a budget or both", RecommendRequest, Recommendation
    )
    compare_clusters = Question(
        "/v1/compare-clusters",
        "compare_clusters",
        "What a deadline costs on several clusters",
        CompareClustersRequest,
        ClusterComparison,
        searches="clusters",
    )


# Clients give the plans alone.
COMPARE = Question(
    "/v1/compare", "compare_plans", "What differs between plans", CompareRequest, Comparison, "plans", 0, (404,)
)
QUESTIONS: dict[str, Question[Any, Any]] = {
    **{name: each for name, each in vars(Asking).items() if isinstance(each, Question)},
    "compare": COMPARE,
}
