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
from autodeploy.reports.texts import say
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.messages import Language
    from autodeploy.reports.plan_report import Table
    from autodeploy.specs.planset import Plan, PlanSet


UNWRAPPED = 10_000  # columns: Markdown breaks lines itself


def render_markdown(plan_set: PlanSet, lang: Language = "en", *, plan: Plan | None = None) -> str:
    """Header, one plan in detail (the best unless another is given), table, warnings and provenance."""
    spec = Spec.model_validate(plan_set.search.spec)
    best = plan_set.plans[0] if plan_set.plans else None
    shown = plan or best
    lines = [f"# {escape(' '.join(header(spec, shown, lang, columns=UNWRAPPED)))}", ""]
    if shown is None:
        lines += [f"- {escape(line.strip(' -'))}" for line in no_plan_lines(plan_set, lang, columns=UNWRAPPED)]
    else:
        name = say(lang, "best") if shown is best else say(lang, "plan")
        lines += _facts([*plan_lines(spec, shown, lang, name=name, columns=UNWRAPPED), *lane_lines(shown, lang)])
        lines += ["", *_table(plan_set, lang)]
        lines += ["", *(f"- {escape(told)}" for told in recommendation_lines(plan_set, lang))]
        lines += _titled(say(lang, "spares"), spare_table(plan_set, lang))
        lines += _titled(say(lang, "evidence"), evidence_table(shown, lang))
        lines += _titled(say(lang, "box"), box_table(plan_set, lang))
        lines += _menu(shown, lang)
    notes = counts_lines(plan_set, lang, columns=UNWRAPPED)
    notes += [*note_lines(plan_set, spec, lang, columns=UNWRAPPED), *off_lines(plan_set, lang)]
    lines += ["", *(f"- {escape(fact)}" for fact in notes)]
    lines += ["", " ".join(f"`{step}`" for step in next_steps(plan_set, spec)), ""]
    search = plan_set.search
    identity = [f"AutoDeploy {search.engine_version}"]
    identity += [f"plan `{shown.plan_id}`"] if shown is not None else []
    identity.append(f"spec `{search.spec_hash[:12]}`, profile `{search.profile_hash[:12]}`")
    lines.append(f"<sub>{', '.join(identity)}; {say(lang, 'generated')}</sub>")
    return "\n".join(lines) + "\n"


def _facts(lines: list[str]) -> list[str]:
    first, *rest = [line.strip() for line in lines]
    return [f"**{escape(first)}**", "", *(f"- {escape(fact)}" for fact in rest)]


def _table(plan_set: PlanSet, lang: Language) -> list[str]:
    rows = plan_rows(plan_set, lang)
    shown = columns(rows, lang, with_id=True)
    lines = [_line(column.title for column in shown)]
    lines.append("|" + "|".join("--:" if column.is_number else "---" for column in shown) + "|")
    for row in rows:
        lines.append(_line(f"`{row.plan_id}`" if c.name == "plan_id" else escape(row.cell(c.name)) for c in shown))
    return lines


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _titled(title: str, found: Table | None) -> list[str]:
    """A table below its title."""
    if found is None:
        return []
    titles, cells, right = found
    lines = ["", f"**{title}**", "", _line(titles)]
    lines.append("|" + "|".join("--:" if column in right else "---" for column in range(len(titles))) + "|")
    return lines + [_line(map(escape, row)) for row in cells]


def _menu(plan: Plan, lang: Language) -> list[str]:
    """What could be recomputed or swapped on each kind of layer, and what the plan takes."""
    if not plan.memory_menu:
        return []
    keys = ("menu_layers", "menu_choice", "menu_saved", "menu_added", "menu_ratio", "menu_used")
    rows = []
    for item in plan.memory_menu:
        ratio = "–" if item.gib_per_ms is None else f"{item.gib_per_ms:.2f}"
        cells = [item.layers, f"{item.choice} ({say(lang, item.kind + '_kind')})", f"{item.saved_gib:.3f}"]
        rows.append([*cells, f"{item.added_ms:.2f}", ratio, str(item.used_layers)])
    return _titled(say(lang, "menu"), ([say(lang, key) for key in keys], rows, {2, 3, 4, 5}))


def escape(text: str) -> str:
    """Signs that Markdown or HTML would take for its own."""
    for sign in "\\|*_<>#":
        text = text.replace(sign, "\\" + sign)
    return text
