"""Documents as HTML where a notebook shows them: a plan set as its first report, a plan in full, others as tables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from autodeploy.messages import in_language
from autodeploy.reports.comparison import answer_lines
from autodeploy.reports.first_report import bar_rows, recommended_block, why_line
from autodeploy.reports.plan_report import best_of, head, no_plan, plan_block
from autodeploy.reports.run_facts import plans_table
from autodeploy.reports.tables import Block, Table
from autodeploy.reports.wording import report_text
from autodeploy.specs.answers import WhyNot
from autodeploy.specs.planset import Plan, PlanSet

if TYPE_CHECKING:
    from autodeploy.messages import Language

MOST_ROWS = 40
_BAR = "display:inline-block;height:.8em;width:{width:.1f}em;background:#2f6f9f;margin-right:.5em"


def notebook_html(document: Any, lang: Language = "en") -> str:
    """The document as HTML without scripts or outside addresses."""
    if isinstance(document, PlanSet):
        return _plan_set(document, lang)
    if isinstance(document, Plan):
        return _block(plan_block(document, lang, name=report_text(lang, "plan").upper()))
    if isinstance(document, WhyNot):
        first, *lines = answer_lines(document, lang)
        return _block(Block(first, lines))
    rows = document.to_rows()
    if not rows:
        return f"<pre>{escape(document.model_dump_json(indent=2, exclude_defaults=True))}</pre>"
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows[:MOST_ROWS]]
    more = f"<p>+ {len(rows) - MOST_ROWS}</p>" if len(rows) > MOST_ROWS else ""
    said = getattr(document, "message", "")
    return (f"<p>{escape(in_language(said, lang))}</p>" if said else "") + _table(Table(names, cells)) + more


def _plan_set(plan_set: PlanSet, lang: Language) -> str:
    best = best_of(plan_set)
    blocks = [head(plan_set, lang)]
    if best is None:
        return "".join(map(_block, (*blocks, *no_plan(plan_set, lang))))
    bars = "".join(
        f'<tr><td>{escape(name)}</td><td style="text-align:left"><span style="{_BAR.format(width=share / 4)}"></span>'
        f"{share} %{escape(remark)}</td></tr>"
        for name, share, remark in bar_rows(best, lang, 6)
    )
    parts = [*map(_block, (*blocks, recommended_block(plan_set, best, lang))), f"<table>{bars}</table>"]
    parts += [f"<p>{escape(why_line(plan_set, lang))}</p>", _table(plans_table(plan_set, lang, wide=True))]
    return "".join(parts)


def _block(block: Block) -> str:
    title = f"<b>{escape(block.title)}</b><br>" if block.title else ""
    table = _table(block.table) if block.table else ""
    return f"<div>{title}{'<br>'.join(map(escape, block.lines))}{table}</div>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in table.titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
