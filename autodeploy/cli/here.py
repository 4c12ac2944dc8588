"""Answers of this process to the questions of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.analysis.questions import Questions
from autodeploy.cli.conversion import stored_plan
from autodeploy.kit.settings import load_settings
from autodeploy.search.planner import Planner

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


class Here(Questions):
    """Opens the database of the settings only where it has a say: overlays of clusters, answers and plans of before.

    Elsewhere nothing that talks to a database is imported.
    """

    planner = Planner()

    def stored(self, plan_id: str) -> tuple[PlanSet, Plan]:
        return stored_plan(plan_id)

    def planned_before(self, spec: Spec) -> PlanSet | None:
        settings = load_settings()
        if not settings.has_database():
            return None
        from autodeploy.service.session import open_services

        with open_services(settings) as services:
            return services.planned_before(spec)

    def _with_overlay(self, spec: Spec) -> Spec:
        settings = load_settings()
        if spec.cluster.overlay != "auto" or not settings.has_database():
            return spec
        from autodeploy.service.session import open_services

        with open_services(settings) as services:
            return services._with_overlay(spec)
