"""The report of a search as text of at most 100 columns: best plan first, then the ranking, then what was searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import in_language
from autodeploy.reports.best_plan import INDENT, header, lane_lines, plan_lines
from autodeploy.reports.evidence import evidence_rows
from autodeploy.reports.outlook import goal_line, pareto_line
from autodeploy.reports.recommendation import box_rows, recommendation_lines, rescaled_words
from autodeploy.reports.rows import PlanRow, columns, plan_rows
from autodeploy.reports.spare_table import spare_table
from autodeploy.reports.tables import COLUMNS, Table, aligned
from autodeploy.reports.texts import report_text
from autodeploy.reports.wording import pad, percent, seconds, width, wrap
from autodeploy.specs.spec import Spec
from autodeploy.stack.frameworks import DEFAULT, FRAMEWORKS, UNRESTRICTED, launchers, post_trainers, title_of

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan, PlanSet


def render_plan_set(plan_set: PlanSet, lang: Language = "en", *, detail: bool = False) -> str:
    """The whole report, with a line break at the end of each line; `detail` adds what all of it rests on."""
    spec = Spec.model_validate(plan_set.search.spec)
    best = plan_set.plans[0] if plan_set.plans else None
    lines = header(spec, best or plan_set.reference, lang)
    if best is not None:
        lines += plan_lines(spec, best, lang, name=report_text(lang, "best"))
        lines += table(plan_rows(plan_set, lang), lang)
        for told in recommendation_lines(plan_set, lang):
            lines += wrap(told, COLUMNS, hanging=INDENT)
    else:
        lines += no_plan_lines(plan_set, lang)
    if spares := spare_table(plan_set, lang):
        lines += [report_text(lang, "spares"), *aligned(spares)]
    lines += counts_lines(plan_set, lang)
    lines += note_lines(plan_set, spec, lang)
    if detail and best is not None:
        lines += detail_lines(plan_set, best, lang)
    lines += [report_text(lang, "next"), *(INDENT + step for step in next_steps(plan_set, spec))]
    return "".join(line.rstrip() + "\n" for line in lines)


def render_plan(spec: Spec, plan: Plan, lang: Language = "en") -> str:
    """The report of an estimate: one strategy as given, no ranking."""
    lines = [*header(spec, plan, lang), *plan_lines(spec, plan, lang, name=report_text(lang, "one_plan"))]
    if plan.rescaled is not None:
        lines += wrap(rescaled_words(plan.rescaled, lang), indent=INDENT, hanging=INDENT)
    if plan.explanation:
        lines += wrap(in_language(plan.explanation, lang), indent=INDENT, hanging=INDENT)
    return "".join(line.rstrip() + "\n" for line in lines)


def table(rows: list[PlanRow], lang: Language) -> list[str]:
    """Ranked plans in aligned columns.

    Where the line has no room for all, throughput goes, which step times tell too; then remarks are cut.
    """
    shown = columns(rows, lang, with_id=False)
    needed = sum(max(width(text) for text in (c.title, *(row.cell(c.name) for row in rows))) for c in shown)
    if needed + len(shown) > COLUMNS:
        shown = [column for column in shown if column.name != "tokens_per_s_per_npu"]
    cells = [[row.cell(column.name) for column in shown] for row in rows]
    right = {place for place, column in enumerate(shown) if column.is_number}
    return aligned(Table([column.title for column in shown], cells, right))


def counts_lines(plan_set: PlanSet, lang: Language, *, columns: int = COLUMNS) -> list[str]:
    """What became of the candidates, and how good the best is proven to be."""
    counts, gap = plan_set.counts, plan_set.optimality.gap
    text = report_text(
        lang,
        "counts",
        enumerated=f"{counts.enumerated:,}",
        seconds=f"{plan_set.timing.total_s:.1f}",
        illegal=f"{sum(counts.rejected.values()):,}",
        too_big=f"{counts.too_big:,}",
        pruned=f"{counts.pruned:,}",
        solved=f"{counts.solved:,}",
    )
    if plan_set.plans:
        proven = report_text(lang, "gap_unknown") if gap is None else report_text(lang, "gap", gap=percent(gap))
        text += report_text(lang, "semicolon") + proven
    return wrap(text, columns, hanging=INDENT)


def off_lines(plan_set: PlanSet, lang: Language) -> list[str]:
    """Features that are off by their reasons: `the model has no experts: mutual_routing, ...`."""
    named: dict[str, list[str]] = {}
    for name, reason in plan_set.features_off.items():
        named.setdefault(reason, []).append(name)
    return [
        report_text(lang, "features_off", reason=in_language(reason, lang), names=", ".join(names))
        for reason, names in named.items()
    ]


def detail_lines(plan_set: PlanSet, plan: Plan, lang: Language) -> list[str]:
    """The plan's lanes, its evidence, the uncertain numbers of the ranking, and features that are off."""
    lines: list[str] = []
    goal = goal_line(plan, lang)
    for told in (*lane_lines(plan, lang), *([goal] if goal is not None else [])):
        lines += wrap(told, COLUMNS, hanging=INDENT)
    if evidence := evidence_table(plan, lang):
        lines += [report_text(lang, "evidence"), *aligned(evidence)]
    if box := box_lines(plan_set, lang):
        lines += [report_text(lang, "box"), *box]
    for told in off_lines(plan_set, lang):
        lines += wrap(told, COLUMNS, hanging=INDENT)
    return lines


def evidence_table(plan: Plan, lang: Language) -> Table | None:
    """What published runs say of each axis and feature of a plan."""
    keys = ("axis", "value", "runs", "evidence_error", "nearest_record")
    cells = [[r.axis, r.value, r.runs, r.error, r.nearest_record] for r in evidence_rows(plan, lang)]
    return Table([report_text(lang, key) for key in keys], cells, {2, 3}) if cells else None


def box_table(plan_set: PlanSet, lang: Language) -> Table | None:
    """The uncertain numbers that plans are ranked by."""
    keys = ("number", "box_meaning", "low", "high", "influence", "basis")
    cells = [[r.name, r.meaning, r.low, r.high, r.influence, r.basis] for r in box_rows(plan_set.risk, lang)]
    return Table([report_text(lang, key) for key in keys], cells, {2, 3, 4}) if cells else None


def box_lines(plan_set: PlanSet, lang: Language) -> list[str]:
    """The same for a terminal: what each number is and what its width rests on are broken to the line's end."""
    rows = box_rows(plan_set.risk, lang)
    told = [row for row in rows if row.matters]
    if not rows:
        return []
    cells = [[row.name, row.low, row.high, row.influence] for row in told]
    titles = [report_text(lang, key) for key in ("number", "low", "high", "influence")]
    title, *lines = aligned(Table(titles, cells, {1, 2, 3}))
    found = [title]
    for row, line in zip(told, lines, strict=True):
        left = width(title) + 2
        words = wrap(f"{row.meaning}{report_text(lang, 'semicolon')}{row.basis}", COLUMNS - left)
        found += [pad(line, left) + words[0], *(" " * left + text for text in words[1:])]
    if len(told) < len(rows):
        found.append(" " + report_text(lang, "box_rest", count=len(rows) - len(told)))
    return found


def note_lines(plan_set: PlanSet, spec: Spec, lang: Language, *, columns: int = COLUMNS) -> list[str]:
    """Plans that none beats, what the target framework costs, and warnings."""
    pareto = pareto_line(plan_set, lang)
    lines = wrap(pareto, columns, hanging=INDENT) if pareto is not None else []
    free = plan_set.unrestricted
    if free.best_step_time_s is not None and (free.price_pct or 0) >= 0.05 and spec.search.target != UNRESTRICTED:
        target = title_of(spec.search.target)
        values = {"price": f"{free.price_pct:.1f}", "step": seconds(free.best_step_time_s)}
        lines += wrap(report_text(lang, "price", target=target, **values), columns, hanging=INDENT)
    for text in plan_set.warnings:
        lines += wrap(report_text(lang, "warning", text=in_language(text, lang)), columns, hanging=INDENT)
    if not plan_set.reproducible and spec.search.mode == "reproducible":  # mode fast has its own warning
        lines += wrap(report_text(lang, "not_reproducible"), columns, hanging=INDENT)
    return lines


def no_plan_lines(plan_set: PlanSet, lang: Language, *, columns: int = COLUMNS) -> list[str]:
    """Why there is no plan, and the nearest changes that would bring one."""
    if plan_set.status == "cancelled":
        return [report_text(lang, "cancelled")]
    if plan_set.status == "failed":
        return wrap(report_text(lang, "failed", error=plan_set.error or "?"), columns, hanging=INDENT)
    if plan_set.status != "infeasible":
        return [report_text(lang, "running", status=plan_set.status)]
    lines = [report_text(lang, "infeasible")]
    reason = plan_set.infeasible
    if reason is None:
        return lines
    if reason.binding_rules:
        rules = report_text(lang, "semicolon").join(in_language(rule, lang) for rule in reason.binding_rules)
        lines += wrap(report_text(lang, "binding", rules=rules), columns, indent=INDENT, hanging=INDENT)
    if not reason.nearest:
        return [*lines, INDENT + report_text(lang, "no_nearest")]
    lines.append(INDENT + report_text(lang, "nearest_changes"))
    for near in reason.nearest:
        told = f"- {in_language(near.change, lang)}: {in_language(near.effect, lang)}"
        lines += wrap(told, columns, indent=INDENT * 2, hanging=INDENT)
    return lines


def next_steps(plan_set: PlanSet, spec: Spec) -> list[str]:
    """Commands that make sense now, with the real plan's id."""
    if not plan_set.plans:
        return [*([] if spec.training.rl else ["autodeploy why-not SPEC --strategy tp=8,pp=8"]), "autodeploy serve"]
    best = plan_set.plans[0]
    if spec.training.rl is not None:
        trainer = spec.search.target if FRAMEWORKS[spec.search.target].post_trains else post_trainers()[0]
        return [f"autodeploy export {best.plan_id} --to {trainer}", "autodeploy serve"]
    target = spec.search.target if spec.search.target in launchers() else DEFAULT
    other = 2 * best.strategy.tp if best.strategy.tp < 8 else best.strategy.tp // 2
    return [
        f"autodeploy export {best.plan_id} --to {target}",
        f"autodeploy why-not {best.plan_id} --strategy tp={other}",
        "autodeploy serve",
    ]
