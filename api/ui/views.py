"""Questions of the pages to the services: the one place that knows how these are called."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotation while the program runs

from api.ui.clusters import request_of
from api.ui.search_page import MAX_SAMPLED_STRATEGIES
from autodeploy.analysis.intake import pasted_document, read_network_spec, refuse_unstorable
from autodeploy.analysis.launch_requests import read_offers
from autodeploy.analysis.rehearsal.rehearse import launches_before
from autodeploy.formats.registry import formats_of
from autodeploy.kit.errors import FieldError, NotFoundError, SpecError
from autodeploy.messages import Message, joined
from autodeploy.messages.message import recovered
from autodeploy.service.requests.callers import ANYONE
from autodeploy.service.runner.planning import load_planner
from autodeploy.specs.field_errors import did_you_mean
from autodeploy.specs.presets import list_presets
from autodeploy.specs.questions import CompareRequest
from autodeploy.specs.reading import common_mistakes
from autodeploy.specs.spec import Spec, spec_of
from autodeploy.specs.strategy import Strategy
from autodeploy.stack.frameworks import launchers
from hardware_profiles import KINDS, ProfileError, list_profiles, load_profile, no_profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.formats.common.import_result import ImportResult
    from autodeploy.service.searches.views import PlanView, SearchView
    from autodeploy.service.session import Services
    from autodeploy.service.store.search_list import SearchFilter
    from autodeploy.specs.answers import ClusterComparison, ScalingReport, StrategyBounds
    from autodeploy.specs.plan_details import AblationReport, Comparison, PipelineTimeline
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.resources import RunList, SearchList
    from hardware_profiles import Profile, Quantity


# A hardware profile as a page shows it.
@dataclass(frozen=True, slots=True)
class Number:
    """One number: its dotted name in the profile, value, unit, kind and source."""

    name: str
    value: float
    unit: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class ProfilePage:
    """A profile and all its numbers by the section of the profile that they stand in; loose ones are in that of ''."""

    name: str
    title: str
    by_kind: tuple[tuple[str, int], ...]
    groups: tuple[tuple[str, tuple[Number, ...]], ...]


def profile_page(profile: Profile) -> ProfilePage:
    """The page of a profile: each chip grade and each level of the interconnect is a section of its own."""
    numbers = sorted(
        (_number(profile, name, each) for name, each in profile.quantities.items()),
        key=lambda number: bool(_section(number)),
    )
    kinds = Counter(number.kind for number in numbers)
    return ProfilePage(
        profile.name,
        profile.title,
        tuple((kind, kinds[kind]) for kind in KINDS if kinds[kind]),
        tuple((section, tuple(members)) for section, members in groupby(numbers, key=_section)),
    )


def _section(number: Number) -> str:
    """`devices.910C` of `devices.910C.peak_tflops.bf16`, `ub` of `ub.latency_us`."""
    *sections, _ = number.name.split(".")
    return ".".join(sections[: 2 if sections[:1] == ["devices"] else 1])


def _number(profile: Profile, name: str, quantity: Quantity) -> Number:
    sources = profile.document.sources
    titles = (
        Message.of_record(f"source.{key}", sources[key].title) if key in sources else recovered(key, NOTES)
        for key in quantity.source
    )
    notes = [recovered(quantity.note, NOTES)] if quantity.note else []
    named = joined((*titles, *notes), "semicolon")
    return Number(name, quantity.value, quantity.unit, quantity.kind, named)


NOTES = ("profile_note",)
PAGE_LENGTH = 50
# Each has up to some ten thousand slots.
KEPT_TIMELINES = 32


@lru_cache(maxsize=KEPT_TIMELINES)
def _timeline(planner: str, spec: str, strategy: str) -> PipelineTimeline:
    """A plan's page is opened again and again, for another language or a question; its pipeline stays the same."""
    return load_planner(planner).timeline(Spec.model_validate_json(spec), Strategy.model_validate_json(strategy))


class DoubtfulSpec(SpecError):
    """The spec looks like a slip; the user may be sure of it."""


class Views:
    """Questions about what an address or a form names; all others are asked of `services`."""

    def __init__(self, services: Services) -> None:
        self.services = services

    @classmethod
    def of(cls, request: Request) -> Views:
        """Those of the app that the request came to, as whoever sent it may use them."""
        services = cast("Services", request.app.state.services)
        return cls(services.for_caller(getattr(request.state, "principal", ANYONE)))

    @property
    def sees_all_teams(self) -> bool:
        """Whether searches of other teams than one's own are shown."""
        return bool(self.services.principal.key_id) and self.services.principal.own_team is None

    def searches(self, where: SearchFilter, after: str | None, sort: str) -> SearchList:
        """A page of past searches."""
        return self.services.searches.list(where, limit=PAGE_LENGTH, after=after, sort=sort)

    def search(self, search_id: str) -> SearchView:
        """One search.

        Raises NotFoundError when there is none of that id.
        """
        return self.services.searches.get(_storable_id(search_id))

    def runs(self, cluster: str | None, after: str | None) -> RunList:
        """A page of the ledger, newest first."""
        return self.services.runs.list(cluster=cluster, limit=PAGE_LENGTH, after=after)

    def cancel(self, search_id: str) -> None:
        """Stops a search; a finished one is refused with ConflictError."""
        self.services.searches.cancel(_storable_id(search_id))

    def submit(self, document: Any, *, sure: bool = True) -> str:
        """Starts a search and returns its id.

        sure : whether also what looks like a slip is searched.

        Raises DoubtfulSpec with what looks like a slip, where the user is not sure; SpecError with every bad field.
        """
        refuse_unstorable(document)
        spec = read_network_spec(document, self.services.planner)
        doubtful = () if sure else common_mistakes(spec)
        if doubtful:
            raise DoubtfulSpec(errors=tuple(FieldError(each.path, each.message) for each in doubtful))
        return self.services.searches.submit(spec).search.id

    def submit_text(self, text: str, beside: Mapping[str, str] | None = None, *, sure: bool = True) -> str:
        """Starts the search that a pasted file asks for; `beside` as in `pasted_document`; errors as `submit`."""
        return self.submit(self.services.read(pasted_document, text, beside or {})[0], sure=sure)

    def read_text(self, text: str, beside: Mapping[str, str]) -> tuple[ImportResult, tuple[str, ...]]:
        """Contents of a pasted file and what looks like a slip in it, if a search could be made of it.

        Raises SpecError with line and column, or with every bad or missing field.
        """
        document, imported = self.services.read(pasted_document, text, beside)
        refuse_unstorable(document)
        spec = read_network_spec(document, self.services.planner)
        return imported, tuple(each.message for each in common_mistakes(spec))

    def plan(self, plan_id: str) -> PlanView:
        """A plan with the newest search that found it; NotFoundError when there is none."""
        return self.services.searches.plan(_storable_id(plan_id))

    def stages(self, view: PlanView) -> PipelineTimeline | None:
        """The simulated pipeline of a plan without its slots; None where its profile or schedule is no longer known."""
        try:
            return self.services.stages(view)
        except (SpecError, ProfileError):
            return None

    def timeline(self, view: PlanView) -> PipelineTimeline | None:
        """The simulated pipeline of a plan; None where its profile or schedule is no longer known."""
        spec = spec_of(view.plan_set.search)
        try:
            return _timeline(self.services.planner_module, spec.model_dump_json(), view.plan.strategy.model_dump_json())
        except (SpecError, ProfileError):
            return None

    def keep(self, view: PlanView, spec: Spec, plan: Plan) -> str:
        """Stores an estimate beside a plan as a plan of its own; its id."""
        kept = self.services.searches.keep(view.plan_set, spec, plan, note=f"{view.plan.plan_id}")
        return kept.plans[0].plan_id

    def ablate(self, view: PlanView) -> AblationReport:
        """Gain of each feature of a plan."""
        spec = spec_of(view.plan_set.search)
        return self.services.ablate(spec.model_copy(update={"strategy": view.plan.strategy}))

    def strategy_bounds(self, plan_set: PlanSet) -> StrategyBounds:
        """Strategies of a finished search at their bounds; SpecError where they can't be swept (any more)."""
        return self.services.strategy_bounds(spec_of(plan_set.search), MAX_SAMPLED_STRATEGIES)

    def scale(self, plan_set: PlanSet) -> ScalingReport | None:
        """Scaling of a finished search with its cards; None without a plan."""
        if not plan_set.plans:
            return None
        return self.services.scale(spec_of(plan_set.search), plan_set.plans[0])

    def compare(self, plan_ids: Sequence[str]) -> Comparison:
        """In what plans differ; NotFoundError when one of them is not there."""
        return self.services.compare(CompareRequest(plans=tuple(_storable_id(plan_id) for plan_id in plan_ids)))

    def compare_clusters(self, values: Mapping[str, str]) -> ClusterComparison:
        """Cost of a plan's training on the clusters of a sent form.

        Raises NotFoundError when there is no such plan; SpecError with every bad field.
        """
        view = self.services.searches.plan(_storable_id(values.get("plan", "")))
        spec = spec_of(view.plan_set.search)
        asked = request_of(spec, values)
        read_offers(spec, asked.clusters, self.services.planner)
        return self.services.compare_clusters(asked)

    def annotate(self, search_id: str, tags: Sequence[str], note: str) -> None:
        """Replaces tags and note; SpecError when they are too many or too long."""
        self.services.searches.annotate(_storable_id(search_id), tags=tags, note=note)

    def models(self) -> list[tuple[str, str]]:
        """Names and titles of the model presets."""
        return [(preset.name, preset.title) for preset in list_presets()]

    def profiles(self) -> list[Profile]:
        """The hardware profiles that come with the product."""
        return [load_profile(name) for name in list_profiles()]

    def profile(self, name: str) -> ProfilePage:
        """One profile with all its numbers; only those that come with the product have a page.

        Raises NotFoundError when there is none of that name.
        """
        if name not in list_profiles():
            hint = did_you_mean(name[:100], list_profiles())
            raise NotFoundError(no_profile(name), hint=hint)
        return profile_page(load_profile(name))

    def export_formats(self, plan: Plan, profile: str) -> tuple[str, ...]:
        """Formats to which a plan for the chips of a profile can be exported."""
        strategy, vendor = plan.strategy, load_profile(profile).vendor if profile in list_profiles() else None
        parts, stages = strategy.tp * strategy.pp, strategy.pp
        return formats_of(
            strategy.schedule, post_trains=strategy.rl is not None, parts=parts, stages=stages, vendor=vendor
        )

    def rehearsals(self, plan_set: PlanSet, plan: Plan) -> tuple[str, ...]:
        """On how many nodes the plan can be rehearsed, as `?rehearse=` takes it; none where its profile is gone."""
        try:
            return launches_before(plan_set, plan)
        except ProfileError:
            return ()

    def launch_format(self, plan: Plan | None, spec: Mapping[str, Any]) -> str | None:
        """The launch file to offer first: of the framework that the search was for, else of one that can launch it."""
        offered = () if plan is None else self.export_formats(plan, spec["cluster"]["profile"])
        return next(
            (name for name in (spec["search"]["target"], *launchers()) if name in offered and name in launchers()), None
        )


def _storable_id(text: str) -> str:
    """The id in an address, which may hold anything; NotFoundError where no database could keep it."""
    if not text.isprintable():
        raise NotFoundError
    return text
