"""What published runs say of a plan's axes and features, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.tables import Table
from autodeploy.reports.wording import field_name, percent, report_text, schedule_title, titled

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Evidence, Plan

_WORDS = frozenset({"schedule", "feature", "moe_dispatcher", "cp_algo"})


def unproven(plan: Plan) -> tuple[Evidence, ...]:
    """What the plan rests on and no run has."""
    return tuple(each for each in plan.evidence if each.runs == 0)


def in_words(each: Evidence, lang: Language) -> str:
    """`EP 64`, `DualPipeV`, `alltoall_seq`: an axis with its value, or a name that says its axis itself."""
    if each.axis not in _WORDS:
        return f"{_axis(each.axis, lang)} {each.value}"
    return _value(each, lang)


def unproven_names(plan: Plan, lang: Language) -> str:
    """`EP 64, DualPipeV`; nothing where every axis and feature has runs."""
    return report_text(lang, "comma").join(in_words(each, lang) for each in unproven(plan))


def evidence_line(plan: Plan, lang: Language) -> str | None:
    """What no run has and how far off the nearest was predicted; else what has the fewest runs. None if unknown."""
    if not plan.evidence:
        return None
    missing = unproven(plan)
    if not missing:
        weakest = min(plan.evidence, key=lambda each: each.runs)
        text = report_text(lang, "all_proven", name=in_words(weakest, lang), runs=weakest.runs)
        return text + _nearest(weakest, lang)
    text = titled(lang, report_text(lang, "unproven"), unproven_names(plan, lang))
    # One record stands for all: the one that was missed most, of those that have an error.
    with_record = [each for each in missing if each.nearest_record is not None]
    return text + (_nearest(max(with_record, key=lambda each: abs(each.error or 0.0)), lang) if with_record else "")


def evidence_table(plan: Plan, lang: Language) -> Table:
    """Every axis and feature of a plan, those without a run first, then by the number of runs."""
    rows = [
        [
            _axis(each.axis, lang),
            _value(each, lang),
            f"{each.runs:,}",
            "-" if each.error is None else f"{100 * each.error:+z.1f} %",
            each.nearest_record or "-",
        ]
        for each in sorted(plan.evidence, key=lambda each: each.runs)
    ]
    keys = ("axis", "value", "runs", "evidence_error", "nearest_record")
    return Table([report_text(lang, key) for key in keys], rows, {2, 3})


def _nearest(each: Evidence, lang: Language) -> str:
    if each.nearest_record is None:
        return ""
    text = report_text(lang, "semicolon") + report_text(lang, "nearest", record=each.nearest_record)
    if each.error is None:
        return text
    key = "predicted_long" if each.error >= 0 else "predicted_short"
    return text + report_text(lang, "comma") + report_text(lang, key, pct=percent(abs(each.error)))


def _axis(axis: str, lang: Language) -> str:
    if axis in {"feature", "ranks"}:
        return report_text(lang, axis)
    if axis in _WORDS | {"micro_batch_size"}:
        return field_name(lang, axis)
    return axis.removeprefix("rl.") if "." in axis else axis.upper()


def _value(each: Evidence, lang: Language) -> str:
    return schedule_title(str(each.value), lang) if each.axis == "schedule" else str(each.value)
