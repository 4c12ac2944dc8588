"""Answers of this process to the questions of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from autodeploy.analysis.questions import Questions
from autodeploy.cli.conversion import stored_plan
from autodeploy.kit.settings import load_settings
from autodeploy.search.planner import Planner

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.service.session import Services
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec

Answer = TypeVar("Answer")


class Here(Questions):
    """Opens the database of the settings only where it has a say: overlays of clusters, answers and plans of before.

    Elsewhere nothing that talks to a database is imported.
    """

    planner = Planner()

    def stored(self, plan_id: str) -> tuple[PlanSet, Plan]:
        return stored_plan(plan_id)

    def planned_before(self, spec: Spec) -> PlanSet | None:
        return _in_database(lambda services: services.planned_before(spec), None)

    def _with_overlay(self, spec: Spec) -> Spec:
        if spec.cluster.overlay != "auto":
            return spec
        return _in_database(lambda services: services._with_overlay(spec), spec)


def _in_database(ask: Callable[[Services], Answer], otherwise: Answer) -> Answer:
    """Answer of the services that have the database of the settings; `otherwise` where there is none."""
    settings = load_settings()
    if not settings.has_database():
        return otherwise
    from autodeploy.service.session import open_services

    with open_services(settings) as services:
        return ask(services)
