"""Requests of what-if questions: why not this strategy, what would improve a launch, the cards of a deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from autodeploy.errors import SpecError
from autodeploy.importers.bounds import refuse_long_key
from autodeploy.messages import Message
from autodeploy.services.check_intake import LaunchRequest
from autodeploy.services.intake import placed_in_spec, refuse_profile
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import MAX_NPUS
from autodeploy.specs.clusters import MAX_CLUSTERS, ClusterOffer
from autodeploy.specs.following import LAID_OUT, of_plan
from autodeploy.specs.generation_layout import GenerationLayout
from autodeploy.specs.rl import RlStrategy
from autodeploy.specs.rl_axes import NOTHING_OFFLOADED
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.validation import field_errors
from autodeploy.what_if import on_offer
from hardware_profiles.magnitudes import Days, TokenCount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.errors import FieldError
    from autodeploy.jobs.planning import Planner
    from autodeploy.specs.spec import Spec

Model = TypeVar("Model", bound=Document)


class WhyNotRequest(Document):
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


class ImproveRequest(LaunchRequest):
    """What to improve: `spec` with a strategy, or `file` with the text of a launch script or a framework's YAML."""


class RecommendRequest(Document):
    """The deadline; `tokens` by default those of the spec."""

    spec: dict[str, Any]
    days: Days
    tokens: TokenCount | None = None
    max_npus: Annotated[int | None, Field(ge=1, le=MAX_NPUS, description="default: 16 times the spec's cards")] = None


class CompareClustersRequest(RecommendRequest):
    """The deadline, and one to four clusters with their prices on which the spec is planned in place of its own."""

    clusters: Annotated[tuple[ClusterOffer, ...], Field(min_length=1, max_length=MAX_CLUSTERS)]


def read_offers(spec: Spec, offers: Sequence[ClusterOffer], planner: Planner) -> None:
    """Whether the spec can be planned on every cluster.

    Raises
    ------
    SpecError
        with the place of the offer: no profile that comes with the product, no grade of it, or a spec that it refuses.
    """
    errors: list[FieldError] = []
    for index, offer in enumerate(offers):
        try:
            refuse_profile(offer.profile)
            with placed_in_spec():
                planner.prepare(on_offer(spec, offer))
        except SpecError as error:
            errors += [replace(each, path=_in_offer(each.path, index)) for each in error.errors]
    if errors:
        raise SpecError(errors=tuple(errors))


def _in_offer(path: str, index: int) -> str:
    """The place of a complaint about a cluster in the list of clusters; others are about the spec."""
    head, _, name = path.rpartition("/")
    return f"/clusters/{index}/{name}" if head == "/cluster" and name in ClusterOffer.model_fields else f"/spec{path}"


def read_strategy(document: Mapping[str, Any], base: Strategy | None = None) -> Strategy:
    """A strategy as written; with a base that one with some fields changed, as of `of_plan`.

    Raises
    ------
    SpecError
        with every bad field.
    """
    fields = _nested(document)
    given, kept = frozenset(fields), {}
    if base is not None:
        kept = base.model_dump(mode="json", exclude_none=True, exclude={"dp", *LAID_OUT})
        if isinstance(of_base := kept.get("rl"), dict) and isinstance(changed := fields.get("rl", {}), dict):
            fields["rl"] = merged(_without_replicas(of_base), changed)
    if isinstance(how := fields.get("rl"), dict):
        fields["rl"] = _partly_given(how)
    read = _validated(Strategy, kept | fields, "/strategy")
    if base is None:
        return read
    laid_out = {name: getattr(base, name) for name in LAID_OUT if name not in given}
    return of_plan(base, read.model_copy(update=laid_out), given | ({"rl"} & fields.keys()))


def _validated(model: type[Model], fields: Mapping[str, Any], prefix: str) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix=prefix, model=model)) from error


def _nested(document: Mapping[str, Any]) -> dict[str, Any]:
    """Axes with dotted names, such as `rl.generation.tp`, in the documents that they are of."""
    tree: dict[str, Any] = {}
    for name, value in document.items():
        refuse_long_key(name, "/strategy")
        inner = value
        for part in reversed(name.split(".")[1:]):
            inner = {part: inner}
        tree = merged(tree, {name.split(".")[0]: inner})
    return tree


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two documents, the second's values over the first's, inside their documents too."""
    both = dict(first)
    for name, value in second.items():
        before = both.get(name)
        both[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return both


def _without_replicas(how: Mapping[str, Any]) -> dict[str, Any]:
    """Where and how a plan generates, but for the replicas that follow from its cards and their tensor parallelism."""
    generation = {name: value for name, value in how["generation"].items() if name not in ("dp", "ep")}
    return {**how, "generation": generation}


def _partly_given(how: Mapping[str, Any]) -> RlStrategy:
    """Where and how to generate, of which some fields are given: `model_fields_set` has those, in `generation` too."""
    given = how.get("generation", {})
    if isinstance(given, Mapping):
        given = _validated(GenerationLayout, given, "/strategy/rl/generation")
    states = how.get("offload")
    words = {"offload": [] if states == NOTHING_OFFLOADED else states.split("+")} if isinstance(states, str) else {}
    layout = _validated(RlStrategy, {**how, **words, "generation": given}, "/strategy/rl")
    if "generation" not in how:
        layout.model_fields_set.discard("generation")
    return layout
