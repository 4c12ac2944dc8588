"""The report of a search at first sight, in at most 24 lines: what to launch, its numbers, why, and what comes next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import in_language
from autodeploy.reports.plan_report import (
    best_of,
    count_on_line,
    counts_line,
    evidence_line,
    extrapolated_line,
    head,
    next_steps,
    no_plan,
    percentages,
    rule_lines,
)
from autodeploy.reports.recommendation import trial_line
from autodeploy.reports.run_facts import days, generation_in_words, plans_table, spare_table
from autodeploy.reports.tables import INDENT, Block, aligned, in_columns
from autodeploy.reports.wording import (
    bracketed,
    choice_parts,
    degrees,
    pad,
    part_name,
    peak_words,
    percent,
    quantity,
    report_text,
    seconds,
    titled,
    width,
    wrap,
)
from autodeploy.specs.spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan, PlanSet

MOST_LINES = 24
MOST_BARS, LEAST_BARS = 5, 3
MOST_ROWS = 5
MOST_COLUMNS = 400
_DROPPED = ("schedule", "regret", "versus_best", "")
"""Columns of the ranking that a narrow terminal has no room for, in the order in which they go."""


def render_first(plan_set: PlanSet, lang: Language = "en", columns: int = 100, next_lines: Sequence[str] = ()) -> str:
    """The report as text of at most `columns`; of 24 lines, and plans with fewer nodes where they were asked for.

    next_lines : commands that make sense now; those of a search in this database unless given.
    """
    best, steps = best_of(plan_set), list(next_lines or next_steps(plan_set, spec_of(plan_set.search)))
    if best is None:
        warnings = [report_text(lang, "warning", text=in_language(text, lang)) for text in plan_set.warnings]
        sought = Block(lines=[counts_line(plan_set, lang), *warnings])
        told = (head(plan_set, lang), *no_plan(plan_set, lang), sought, Block(report_text(lang, "next"), steps))
        return in_columns(*told, columns=columns)
    above = [*_lines(head(plan_set, lang), columns), *_lines(recommended_block(plan_set, best, lang), columns)]
    why = why_line(plan_set, lang)
    below = [*wrap(why, columns, hanging=INDENT)] if why else []
    last = wrap(_counts(plan_set, best, lang), columns, hanging=INDENT)
    name = report_text(lang, "next")
    last += [pad("" if number else name, width(name) + 2) + step for number, step in enumerate(steps)]
    room = MOST_LINES - len(above) - len(below) - len(last)
    rows = max(1, min(MOST_ROWS, room - LEAST_BARS - 1))
    ranking = _ranking(plan_set, lang, columns, rows)
    bars = _bars(best, lang, columns, max(2, min(MOST_BARS, room - len(ranking))))
    spares = Block(report_text(lang, "spares"), table=spare_table(plan_set, lang)) if plan_set.spares else Block()
    groups: list[list[str]] = [above, bars, below, ranking, _lines(spares, columns), last]
    return "\n\n".join("\n".join(group) for group in groups if group) + "\n"


def _lines(block: Block, columns: int) -> list[str]:
    return in_columns(block, columns=columns).splitlines()


def recommended_block(plan_set: PlanSet, plan: Plan, lang: Language) -> Block:
    """Layout, choices, speed, memory and one caution."""
    schedule, *others = choice_parts(plan.strategy, lang)
    comma = report_text(lang, "comma")
    lines = [comma.join(others)]
    if plan.strategy.rl is not None:
        lines.append(generation_in_words(plan.strategy.rl))
    lines += [_speed(plan, lang), _memory(plan, lang)]
    cautions = _cautions(plan_set, plan, lang)
    if cautions:
        text = titled(lang, report_text(lang, "caution"), cautions[0])
        more = report_text(lang, "more_cautions", count=len(cautions) - 1)
        lines.append(bracketed(lang, text, more) if len(cautions) > 1 else text)
    return Block(f"{report_text(lang, 'best')}  {degrees(plan.strategy)}{comma}{schedule}", lines)


def _speed(plan: Plan, lang: Language) -> str:
    low, high = (seconds(value) for value in (plan.uncertainty.low_s, plan.uncertainty.high_s))
    parts = [
        bracketed(lang, f"{seconds(plan.step_time_s)} {report_text(lang, 's_per_step')}", f"80 %: {low}-{high}"),
        f"{plan.tokens_per_s_per_npu:,.0f} {report_text(lang, 'tokens_per_s_per_npu')}",
        f"MFU {percent(plan.mfu)} %",
    ]
    return "   ".join(parts)


def _memory(plan: Plan, lang: Language) -> str:
    """Peak, limit and the chance to fit; how long the run takes."""
    parts = [peak_words(plan, lang)]
    if plan.run is not None and plan.run.days is not None:
        tokens = quantity(sum(phase.tokens for phase in plan.run.phases))
        parts.append(report_text(lang, "days_for", days=days(plan.run.days), tokens=tokens))
    return "   ".join(parts)


def _cautions(plan_set: PlanSet, plan: Plan, lang: Language) -> list[str]:
    """Facts that may make another decision right, the gravest first."""
    found = [*rule_lines(plan.broken_rules, lang)]
    found += [trial_line(plan_set, lang) or "", count_on_line(plan, lang) or ""]
    found += [in_language(text, lang) for text in plan_set.warnings]
    if any(each.runs == 0 for each in plan.evidence):
        found.append(evidence_line(plan, lang) or "")
    found.append(extrapolated_line(plan, lang) or "")
    return [text for text in found if text]


def bar_rows(plan: Plan, lang: Language, count: int) -> list[tuple[str, int, str]]:
    """Parts of a step: the largest by name, whole percents and a remark, the rest as one number."""
    shares = percentages(plan.breakdown)
    rest = shares.pop("other", 0)
    parts = sorted(shares, key=lambda part: -shares[part])
    if len(parts) + (rest > 0) > count:
        rest += sum(shares[part] for part in parts[count - 1 :])
        parts = parts[: count - 1]
    rows = [(part_name(lang, part), shares[part], _remark(plan, part, lang)) for part in parts]
    return rows + ([(part_name(lang, "other"), rest, "")] if rest else [])


def _bars(plan: Plan, lang: Language, columns: int, count: int) -> list[str]:
    rows = bar_rows(plan, lang, count)
    names = max(width(name) for name, *_ in rows)
    room = max(1, min(60, columns - names - 26))
    return [
        f"{INDENT}{pad(name, names)}  {'#' * max(1, round(share * room / 100)):<{room}} {share:3d} %{remark}"
        for name, share, remark in rows
    ]


def _remark(plan: Plan, part: str, lang: Language) -> str:
    if part != "exposed_ep_s":
        return ""
    return "  " + report_text(lang, "hidden", share=round(100 * plan.hidden.ep_share_step))


def why_line(plan_set: PlanSet, lang: Language) -> str:
    """Costs of a step of the axes that matter most, on one line."""
    steps = [f"{in_language(c.change, lang)} {in_language(c.effect, lang)}" for c in plan_set.counterfactuals]
    return titled(lang, report_text(lang, "why"), report_text(lang, "semicolon").join(steps)) if steps else ""


def _ranking(plan_set: PlanSet, lang: Language, columns: int, rows: int) -> list[str]:
    """The first plans and what they are compared with, each on one line."""
    lines: list[str] = []
    for dropped in range(len(_DROPPED) + 1):
        table = plans_table(plan_set, lang, without=_DROPPED[:dropped])
        compared = 1 if plan_set.reference is not None and 1 < rows < len(table.rows) else 0
        kept = [*table.rows[: rows - compared], *table.rows[len(table.rows) - compared :]]
        lines = aligned(table._replace(rows=kept), columns=MOST_COLUMNS)
        if max(map(width, lines)) <= columns:
            break
    return lines


def _counts(plan_set: PlanSet, best: Plan, lang: Language) -> str:
    values = {"enumerated": f"{plan_set.counts.enumerated:,}", "seconds": f"{plan_set.timing.total_s:.1f}"}
    return (
        report_text(lang, "counts_first", **values)
        + report_text(lang, "semicolon")
        + (
            report_text(lang, "gap_unknown")
            if best.gap is None
            else report_text(lang, "gap_first", gap=percent(best.gap))
        )
        + report_text(lang, "semicolon")
        + report_text(lang, "all_with_detail")
    )
