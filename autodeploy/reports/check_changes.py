"""What a check says of the baseline: changed flags, step time, memory and the parts of a step that moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import in_language
from autodeploy.reports.tables import Table, escape, markdown
from autodeploy.reports.texts import check_text, part_name
from autodeploy.reports.wording import percent, seconds

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.check import Changes, CheckReport
    from autodeploy.specs.planset import Plan

SHOWN_PARTS = 6
ABSENT = "–"


def change_lines(report: CheckReport, lang: Language) -> list[str]:
    """The differences as sentences: fields, parts of a step, the cause."""
    changes = report.changes
    if changes is None:
        return []
    name = changes.name or check_text(lang, "baseline_name")
    lines = [check_text(lang, "changed", name=name)]
    lines += [
        check_text(lang, "change_line", name=field.name, before=field.before or ABSENT, after=field.after or ABSENT)
        for field in changes.fields
    ]
    if not changes.fields:
        lines = [f"{lines[0]}: {check_text(lang, 'nothing_changed')}"]
    lines += [
        check_text(
            lang,
            "moved_line",
            part=part_name(lang, moved.part),
            before=seconds(moved.before_s),
            after=seconds(moved.after_s),
            moved=f"{moved.after_s - moved.before_s:+.3g}",
        )
        for moved in changes.moved[:SHOWN_PARTS]
    ]
    return lines + _cause(changes, lang)


def change_tables(report: CheckReport, lang: Language) -> list[str]:
    """The same as Markdown: a table of flags, one of step time, memory and MFU with the parts that moved, the cause."""
    changes = report.changes
    if changes is None:
        return []
    name = changes.name or check_text(lang, "baseline_name")
    lines = ["", f"### {escape(check_text(lang, 'changed', name=name))}", ""]
    if changes.fields:
        title = "flag" if changes.fields[0].name.startswith("-") else "field"
        rows = [[f"`{field.name}`", _cell(field.before), _cell(field.after)] for field in changes.fields]
        lines += markdown(Table([check_text(lang, key) for key in (title, "before", "after")], rows))
    else:
        lines.append(check_text(lang, "nothing_changed"))
    before = report.baseline.plan if report.baseline is not None else None
    if before is not None and report.plan is not None:
        lines += ["", *markdown(_numbers(before, report.plan, changes, lang))]
    for cause in _cause(changes, lang):
        lines += ["", escape(cause)]
    return lines


def _numbers(before: Plan, after: Plan, changes: Changes, lang: Language) -> Table:
    slower = after.step_time_s / before.step_time_s - 1.0
    more = after.peak_memory_gib - before.peak_memory_gib
    rows = [
        [
            check_text(lang, "step_time_s"),
            seconds(before.step_time_s),
            seconds(after.step_time_s),
            f"{100 * slower:+.1f} %",
        ],
        [
            *(check_text(lang, "memory_on_card"), f"{before.peak_memory_gib:.1f}", f"{after.peak_memory_gib:.1f}"),
            f"{more:+.1f}",
        ],
        ["MFU", f"{percent(before.mfu)} %", f"{percent(after.mfu)} %", f"{100 * (after.mfu - before.mfu):+.1f}"],
    ]
    for moved in changes.moved[:SHOWN_PARTS]:
        name = f"{part_name(lang, moved.part)} (s)"
        difference = f"{moved.after_s - moved.before_s:+.3g}"
        rows.append([name, seconds(moved.before_s), seconds(moved.after_s), difference])
    head = ["", *(check_text(lang, key) for key in ("before", "after", "difference"))]
    return Table(head, rows, {1, 2, 3})


def _cause(changes: Changes, lang: Language) -> list[str]:
    return [check_text(lang, "why", cause=in_language(changes.cause, lang))] if changes.cause else []


def _cell(text: str | None) -> str:
    """A value between backticks."""
    return (
        ABSENT if text is None else "`{}`".format(text.replace("`", "'").replace("|", "\\|").replace("\n", " ")[:200])
    )
