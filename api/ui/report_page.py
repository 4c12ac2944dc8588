"""The page of a search as one file: what is printed, mailed and kept beside a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.http.languages import texts
from api.ui.rendering import on_paper
from api.ui.run_page import run_page
from api.ui.search_page import search_context
from autodeploy.specs.artefact import REVIEW, Artefact

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan, PlanSet


def export(plan_set: PlanSet, plan: Plan, lang: Language = "en") -> Artefact:
    """The plan in detail and the ranking that it comes from."""
    return Artefact(search_report(plan_set, lang, plan), "text/html", f"{plan.plan_id}.html")


def search_report(plan_set: PlanSet, lang: Language = "en", plan: Plan | None = None) -> str:
    """The report of a search: the best plan in detail unless another is given, or why there is none."""
    context = search_context(plan_set, lang, plan)
    absent = dict.fromkeys(("author", "team", "scaling", "progress", "queue"))
    run = run_page(context["best"], lang, texts(lang))
    return on_paper("search.html", lang, **context, **absent, run=run, stale=False, review=REVIEW) + "\n"
