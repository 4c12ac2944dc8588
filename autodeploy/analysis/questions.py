"""Questions about specs and launches, as a process alone answers them; services know overlays and other processes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from autodeploy.analysis.ablation.feature_ablation import ablate
from autodeploy.analysis.intake import best_of, read_network_spec, with_checkpoints
from autodeploy.analysis.launch_checks.baseline import Baseline
from autodeploy.analysis.launch_checks.launch import Launch
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.analysis.launch_checks.legality import refuse_unknown_rules
from autodeploy.analysis.launch_requests import (
    baseline_in,
    launch_in,
    read_baseline,
    read_check,
    read_offers,
    read_strategy,
)
from autodeploy.analysis.what_if.clusters import on_offer, points_on, side_by_side
from autodeploy.analysis.what_if.improve import improve
from autodeploy.analysis.what_if.recommend import budget_in_hours, recommend
from autodeploy.analysis.what_if.scaling import scaling
from autodeploy.kit.errors import NotFoundError
from autodeploy.messages import Message
from autodeploy.reports.comparison import compare_plans
from autodeploy.specs.questions import LaunchRequest, read_request
from autodeploy.specs.spec import no_strategy, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.search.planner import Planner
    from autodeploy.specs.answers import (
        CheckReport,
        ClusterComparison,
        ImproveReport,
        Recommendation,
        ScalingReport,
        WhyNot,
    )
    from autodeploy.specs.plan_details import AblationReport, Comparison
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.questions import (
        CheckRequest,
        CompareClustersRequest,
        CompareRequest,
        ImproveRequest,
        RecommendRequest,
        SpecRequest,
        WhyNotRequest,
    )
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Questions:
    """Answers that are stored nowhere, each under the overlay that is known of the spec's cluster.

    A method of the name of a row of `autodeploy.specs.questions` answers its request; its docstring is what the API
    says of it. Every method raises SpecError when a request names a file or can't be read, when a spec or strategy
    can't be run on the cluster, and those that search when there would be too many strategies to look at;
    NotFoundError where no plan of an id is stored.
    """

    __slots__ = ()
    planner: Planner

    def _call(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Runs what takes no search."""
        return function(*args, **kwargs)

    def _call_searcher(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Runs what searches, inside `_one_search`."""
        return function(*args, **kwargs)

    def _search(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        with self._one_search():
            return self._call_searcher(function, *args, **kwargs)

    def _one_search(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _refuse_enormous(self, spec: Spec) -> None:
        """Raises before anything is computed; here searches themselves do."""

    def _with_overlay(self, spec: Spec) -> Spec:
        return spec

    def read(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Result of a reader of a text of the caller's."""
        return function(*args, **kwargs)

    def stored(self, plan_id: str) -> tuple[PlanSet, Plan]:
        """A plan by its id, with the PlanSet that holds it; NotFoundError without a database."""
        raise NotFoundError(Message("common.there_is_no", name=plan_id, what=Message("label.plan")))

    def planned_before(self, spec: Spec) -> PlanSet | None:
        """The answer to an equal spec that is stored; without a database none is."""
        return None

    def _spec_in(self, asked: SpecRequest | WhyNotRequest) -> Spec:
        return asked.read_spec or read_network_spec(asked.spec, self.planner)

    def estimate(self, spec: Spec) -> Plan:
        """Predicts the one strategy of the spec."""
        if spec.strategy is None:
            raise no_strategy()
        return self._call(self.planner.estimate, self._with_overlay(spec))

    def ablate(self, spec: Spec, order: Sequence[str] = ()) -> AblationReport:
        """Gain of each feature of the spec's strategy, or of its best plan's.

        Raises SpecError when no plan fits, or `order` names a feature that the strategy does not use.
        """
        if spec.strategy is None:
            self._refuse_enormous(spec)
        return self._search(ablate, self._with_overlay(spec), order=tuple(order))

    def scale(self, spec: Spec, best: Plan) -> ScalingReport:
        """Scaling of the spec's training around its best plan."""
        return self._search(scaling, self._with_overlay(spec), best, planner=self.planner)

    def check(self, asked: CheckRequest) -> CheckReport:
        """Can it start, will it fit, how far is it from the best plan, is it slower than a baseline. `passed: false` is
        a result, too, also where a broken rule leaves nothing to predict. Launch scripts are read, never run. Nothing
        is stored."""
        refuse_unknown_rules(asked.limits.allow_rules)
        baseline = None if asked.baseline is None else self._baseline(asked, asked.baseline)
        read = self.read(read_check, self.planner, asked, baseline)
        if not isinstance(read, Launch):
            return read
        if baseline is not None and baseline.launch is not None:
            baseline = replace(baseline, launch=self._known(baseline.launch))
        return self._call(check, self._known(read), asked.limits, planner=self.planner, baseline=baseline)

    def _baseline(self, asked: CheckRequest, given: str | dict[str, Any]) -> Baseline:
        """Of a check: the id of a stored plan, a document, or the launch before a change."""
        if isinstance(given, str):
            return Baseline(plan=self.stored(given)[1], name=given)
        local = asked.local_baseline
        if "file" not in given:
            return baseline_in(given, "" if local is None else local.path.name)
        # The same cluster and variables.
        own = asked.model_dump(include={"variables", "cluster", "device", "num_npus"}, exclude_none=True)
        before = read_request(LaunchRequest, own | given, "/baseline")
        if local is not None:
            before = LaunchRequest.about_file(local, **before.model_dump(exclude_none=True))
        return self.read(read_baseline, self.planner, before)

    def _known(self, launch: Launch) -> Launch:
        """The launch with what the database knows of its cluster."""
        return replace(launch, spec=self._with_overlay(launch.spec))

    def compare(self, asked: CompareRequest) -> Comparison:
        """Only the fields in which 2 to 5 plans differ."""
        pairs = [
            self.stored(named) if isinstance(named, str) else best_of(named, f"/plans/{index}")
            for index, named in enumerate(asked.plans)
        ]
        return with_checkpoints(compare_plans(pairs), pairs)

    def why_not(self, asked: WhyNotRequest) -> WhyNot:
        """The rule it breaks and the nearest legal strategy, the memory it lacks, or what it costs against the best
        plan. With a spec instead of a plan absent axes are those of the best plan with the given ones, and the best
        plan of all is searched for, which takes seconds. Nothing is stored."""
        if asked.plan_id is not None:
            plan_set, plan = self.stored(asked.plan_id)
            return self.why_not_plan(plan_set, read_strategy(asked.strategy, plan.strategy))
        spec, strategy = self._spec_in(asked), read_strategy(asked.strategy)
        self._refuse_enormous(spec)
        best = self.planned_before(spec)
        return self._search(self.planner.why_not, self._with_overlay(spec), strategy, best=best)

    def why_not_plan(self, found: PlanSet, strategy: Strategy) -> WhyNot:
        """Reasons for which a strategy is not the plan of a search that found others."""
        return self._call(self.planner.why_not, spec_of(found.search), strategy, best=found)

    def improve(self, asked: ImproveRequest) -> ImproveReport:
        """Three changes by gain, and which of them keep the checkpoint's layout. Takes seconds; launch scripts are
        read, never run. Nothing is stored."""
        launch = self.read(launch_in, self.planner, asked)
        self._refuse_enormous(launch.spec.model_copy(update={"strategy": None}))
        return self._search(improve, self._known(launch), planner=self.planner)

    def recommend(self, asked: RecommendRequest) -> Recommendation:
        """With the plan that meets it, and throughput by number of cards. Takes seconds to a minute. Nothing is
        stored."""
        spec = self._spec_in(asked)
        asked = asked.model_copy(update={"npu_hours": asked.npu_hours or budget_in_hours(spec, asked.cost)})
        self._refuse_enormous(spec)
        return self._search(recommend, self._with_overlay(spec), asked, planner=self.planner)

    def compare_clusters(self, asked: CompareClustersRequest) -> ClusterComparison:
        """The fewest cards of each cluster that meet it, days and cost of the plans, and which of these none beats in
        both. Takes up to a minute for each cluster. Nothing is stored."""
        spec = self._spec_in(asked)
        if asked.read_spec is None:
            read_offers(spec, asked.clusters, self.planner)
        specs = [on_offer(spec, offer) for offer in asked.clusters]
        for each in specs:
            self._refuse_enormous(each)
        with self._one_search():
            answers = [
                self._call_searcher(points_on, self._with_overlay(each), offer, asked, planner=self.planner)
                for each, offer in zip(specs, asked.clusters, strict=True)
            ]
        return side_by_side(answers, asked.days)
