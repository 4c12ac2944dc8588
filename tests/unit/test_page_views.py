"""What the pages ask of the services."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from api.ui.views import Views
from autodeploy.kit.errors import SpecError
from tests import factories

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.service.searches.views import PlanView

pytestmark = pytest.mark.unit

NUMBERS = itertools.count()


class CountingPlanner:
    """Simulates nothing, and counts how often it is asked to."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.asked = 0
        self.name = f"counting {next(NUMBERS)}"  # what a planner of another test answered is still remembered
        self._refusal = refusal

    def timeline(self, _spec: Any, _strategy: Any) -> object:
        self.asked += 1
        if self._refusal is not None:
            raise self._refusal
        return object()


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> Callable[[CountingPlanner], Views]:
    def of(planner: CountingPlanner) -> Views:
        monkeypatch.setattr("api.ui.views.load_planner", lambda _name: planner)
        return Views(cast("Any", SimpleNamespace(planner_module=planner.name)))

    return of


def view(rank: int) -> PlanView:
    plan_set = factories.plan_set(2)
    return cast("PlanView", SimpleNamespace(plan_set=plan_set, plan=plan_set.plans[rank]))


def test_the_pipeline_of_a_plan_is_simulated_once(views: Callable[[CountingPlanner], Views]) -> None:
    planner = CountingPlanner()
    first = views(planner).timeline(view(0))
    assert views(planner).timeline(view(0)) is first
    assert planner.asked == 1
    assert views(planner).timeline(view(1)) is not first


def test_a_plan_that_is_no_longer_known_has_none(views: Callable[[CountingPlanner], Views]) -> None:
    planner = CountingPlanner(SpecError("an unknown schedule"))
    assert views(planner).timeline(view(0)) is None
    assert views(planner).timeline(view(0)) is None
    assert planner.asked == 2, "a refusal is not kept: the next release may know it"
