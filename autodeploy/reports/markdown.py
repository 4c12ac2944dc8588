"""The report of a search as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.best_plan import header, lane_lines, plan_lines
from autodeploy.reports.plan_report import (
    box_table,
    counts_lines,
    evidence_table,
    next_steps,
    no_plan_lines,
    note_lines,
    off_lines,
)
from autodeploy.reports.recommendation import recommendation_lines
from autodeploy.reports.rows import columns, plan_rows
from autodeploy.reports.spare_table import spare_table
from autodeploy.reports.tables import UNWRAPPED, Table, escape, escaped, markdown
from autodeploy.reports.texts import report_text
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan, PlanSet


def render_markdown(plan_set: PlanSet, lang: Language = "en", *, plan: Plan | None = None) -> str:
    """Header, one plan in detail (the best unless another is given), table, warnings and provenance."""
    spec = Spec.model_validate(plan_set.search.spec)
    best = plan_set.plans[0] if plan_set.plans else None
    shown = plan or best
    lines = [f"# {escape(' '.join(header(spec, shown, lang, columns=UNWRAPPED)))}", ""]
    if shown is None:
        lines += [f"- {escape(line.strip(' -'))}" for line in no_plan_lines(plan_set, lang, columns=UNWRAPPED)]
    else:
        name = report_text(lang, "best") if shown is best else report_text(lang, "one_plan")
        lines += _facts([*plan_lines(spec, shown, lang, name=name, columns=UNWRAPPED), *lane_lines(shown, lang)])
        lines += ["", *markdown(_plans(plan_set, lang))]
        lines += ["", *(f"- {escape(told)}" for told in recommendation_lines(plan_set, lang))]
        lines += _titled(report_text(lang, "spares"), spare_table(plan_set, lang))
        lines += _titled(report_text(lang, "evidence"), evidence_table(shown, lang))
        lines += _titled(report_text(lang, "box"), box_table(plan_set, lang))
        lines += _menu(shown, lang)
    notes = counts_lines(plan_set, lang, columns=UNWRAPPED)
    notes += [*note_lines(plan_set, spec, lang, columns=UNWRAPPED), *off_lines(plan_set, lang)]
    lines += ["", *(f"- {escape(fact)}" for fact in notes)]
    lines += ["", " ".join(f"`{step}`" for step in next_steps(plan_set, spec)), ""]
    search = plan_set.search
    identity = [f"AutoDeploy {search.engine_version}"]
    identity += [f"plan `{shown.plan_id}`"] if shown is not None else []
    identity.append(f"spec `{search.spec_hash[:12]}`, profile `{search.profile_hash[:12]}`")
    lines.append(f"<sub>{', '.join(identity)}; {report_text(lang, 'generated')}</sub>")
    return "\n".join(lines) + "\n"


def _facts(lines: list[str]) -> list[str]:
    first, *rest = [line.strip() for line in lines]
    return [f"**{escape(first)}**", "", *(f"- {escape(fact)}" for fact in rest)]


def _plans(plan_set: PlanSet, lang: Language) -> Table:
    rows = plan_rows(plan_set, lang)
    shown = columns(rows, lang, with_id=True)
    cells = [
        [f"`{row.plan_id}`" if column.name == "plan_id" else escape(row.cell(column.name)) for column in shown]
        for row in rows
    ]
    right = {place for place, column in enumerate(shown) if column.is_number}
    return Table([column.title for column in shown], cells, right)


def _titled(title: str, table: Table | None) -> list[str]:
    """A table below its title."""
    return [] if table is None else ["", f"**{title}**", "", *markdown(escaped(table))]


def _menu(plan: Plan, lang: Language) -> list[str]:
    """What could be recomputed or swapped on each kind of layer, and what the plan takes."""
    if not plan.memory_menu:
        return []
    keys = ("menu_layers", "menu_choice", "menu_saved", "menu_added", "menu_ratio", "menu_used")
    rows = []
    for item in plan.memory_menu:
        ratio = "–" if item.gib_per_ms is None else f"{item.gib_per_ms:.2f}"
        cells = [item.layers, f"{item.choice} ({report_text(lang, item.kind)})", f"{item.saved_gib:.3f}"]
        rows.append([*cells, f"{item.added_ms:.2f}", ratio, str(item.used_layers)])
    return _titled(report_text(lang, "menu"), Table([report_text(lang, key) for key in keys], rows, {2, 3, 4, 5}))
