"""The plan report as Markdown, also the text of a pull-request comment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.exporters.artefact import Artefact
from autodeploy.reports.plan_report import render_markdown

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan, PlanSet


def export(plan_set: PlanSet, plan: Plan, lang: Language = "en") -> Artefact:
    """The plan in detail, then the ranking it comes from."""
    return Artefact(render_markdown(plan_set, lang, plan=plan), "text/markdown", f"{plan.plan_id}.md")
