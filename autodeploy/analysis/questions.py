"""Questions about specs and launches, as a process alone answers them; services know overlays and other processes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from autodeploy.analysis.ablation.feature_ablation import ablate
from autodeploy.analysis.launch_checks.launch_check import check
from autodeploy.analysis.what_if.clusters import on_offer, points_on, side_by_side
from autodeploy.analysis.what_if.improve import improve
from autodeploy.analysis.what_if.recommend import recommend
from autodeploy.analysis.what_if.scaling import scaling
from autodeploy.search.planner import Planner
from autodeploy.specs.spec import no_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.analysis.launch_checks.baseline import Baseline
    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.specs.answers import (
        CheckLimits,
        CheckReport,
        ClusterComparison,
        ClusterOffer,
        ImproveReport,
        Recommendation,
        ScalingReport,
        WhyNot,
    )
    from autodeploy.specs.plan_details import AblationReport
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Questions:
    """Answers that are stored nowhere, each under the overlay that is known of the spec's cluster.

    Every method raises SpecError when a spec or strategy can't be run on the cluster, and those that search when there
    would be too many strategies to look at.
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

    def check(self, launch: Launch, limits: CheckLimits, baseline: Baseline | None = None) -> CheckReport:
        """Holds a launch against limits, the best plan and perhaps a baseline."""
        if baseline is not None and baseline.launch is not None:
            baseline = replace(baseline, launch=self._known(baseline.launch))
        return self._call(check, self._known(launch), limits, planner=self.planner, baseline=baseline)

    def _known(self, launch: Launch) -> Launch:
        """The launch with what the database knows of its cluster."""
        return replace(launch, spec=self._with_overlay(launch.spec))

    def why_not_of(self, spec: Spec, strategy: Strategy) -> WhyNot:
        """Reasons for which a strategy is not the best plan of a spec, which is searched."""
        self._refuse_enormous(spec)
        return self._search(self.planner.why_not, self._with_overlay(spec), strategy)

    def improve(self, launch: Launch) -> ImproveReport:
        """The best single changes of a launch."""
        self._refuse_enormous(launch.spec.model_copy(update={"strategy": None}))
        return self._search(improve, self._known(launch), planner=self.planner)

    def recommend(
        self,
        spec: Spec,
        *,
        days: float | None = None,
        npu_hours: float | None = None,
        tokens: float | None = None,
        max_npus: int | None = None,
    ) -> Recommendation:
        """The cards that train so many tokens in so many days, or for so many card-hours.

        Raises SpecError also when there is no number of tokens.
        """
        self._refuse_enormous(spec)
        asked = {"days": days, "npu_hours": npu_hours, "tokens": tokens}
        spec = self._with_overlay(spec)
        return self._search(recommend, spec, planner=self.planner, max_npus=max_npus, **asked)

    def compare_clusters(
        self,
        spec: Spec,
        offers: Sequence[ClusterOffer],
        *,
        days: float,
        tokens: float | None = None,
        max_npus: int | None = None,
    ) -> ClusterComparison:
        """Cost of the same training on each of several clusters, one after the other."""
        specs = [on_offer(spec, offer) for offer in offers]
        for each in specs:
            self._refuse_enormous(each)
        with self._one_search():
            answers = [
                self._call_searcher(
                    points_on,
                    self._with_overlay(each),
                    offer,
                    planner=self.planner,
                    days=days,
                    tokens=tokens,
                    max_npus=max_npus,
                )
                for each, offer in zip(specs, offers, strict=True)
            ]
        return side_by_side(answers, days)


class Alone(Questions):
    """Answers of this process, without a database."""

    planner = Planner()
