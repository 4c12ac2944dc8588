"""The report of a search as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.best_plan import header, lane_lines, plan_lines
from autodeploy.reports.plan_report import counts_lines, next_steps, no_plan_lines, note_lines, off_lines
from autodeploy.reports.rows import plan_rows
from autodeploy.reports.texts import Language, say
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
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
    keys = ("plan_column", "layout", "schedule", "step_column", "card_column", "gib_column")
    titles = ["#", *(say(lang, key) for key in keys), say(lang, "versus_best"), ""]
    lines = ["| " + " | ".join(titles) + " |", "|--:|---|---|---|--:|--:|--:|--:|---|"]
    for row in plan_rows(plan_set, lang):
        cells = [row.rank, f"`{row.plan_id}`", row.layout, row.schedule]
        cells += [row.step_time_s, row.tokens_per_s_per_npu, row.peak_memory_gib, row.versus_best, row.remark]
        lines.append("| " + " | ".join(escape(cell) if i != 1 else cell for i, cell in enumerate(cells)) + " |")
    return lines


def _menu(plan: Plan, lang: Language) -> list[str]:
    """What could be recomputed or swapped on each kind of layer, and what the plan takes."""
    if not plan.memory_menu:
        return []
    keys = ("menu_layers", "menu_choice", "menu_saved", "menu_added", "menu_ratio", "menu_used")
    titles = [say(lang, key) for key in keys]
    lines = ["", f"**{say(lang, 'menu')}**", "", "| " + " | ".join(titles) + " |", "|---|---|--:|--:|--:|--:|"]
    for item in plan.memory_menu:
        ratio = "–" if item.gib_per_ms is None else f"{item.gib_per_ms:.2f}"
        cells = [item.layers, f"{item.choice} ({say(lang, item.kind + '_kind')})", f"{item.saved_gib:.3f}"]
        cells += [f"{item.added_ms:.2f}", ratio, str(item.used_layers)]
        lines.append("| " + " | ".join(escape(cell) for cell in cells) + " |")
    return lines


def escape(text: str) -> str:
    """Signs that Markdown or HTML would take for its own."""
    for sign in "\\|*_<>#":
        text = text.replace(sign, "\\" + sign)
    return text
