"""The report of a check: text of at most 100 columns, Markdown and JUnit XML, all of the same blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from autodeploy.messages import in_language
from autodeploy.reports.plan_report import (
    evidence_line,
    experts_line,
    header,
    interval_line,
    measured_mfu,
    memory_line,
    rule_lines,
    speed_line,
)
from autodeploy.reports.recommendation import rescaled_line
from autodeploy.reports.tables import Block, Table, escape, in_columns, in_markdown
from autodeploy.reports.wording import (
    bracketed,
    chance,
    check_text,
    command_text,
    degrees,
    excess_words,
    memory_name,
    part_name,
    peak_words,
    percent,
    remedy_name,
    report_text,
    seconds,
    titled,
)
from autodeploy.specs.plan_details import SURE_CHANCE
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.answers import Changes, CheckReport, Compared, Gate, Remedy
    from autodeploy.specs.planset import Plan

GIB = 2**30
# A hidden mark: what updates one comment of a pull request finds it by this.
MARK = "<!-- autodeploy-check -->"
SHOWN_PARTS = 6
ABSENT = "–"
LONGEST_VALUE = 200
_SIGNED = frozenset({"slowdown", "baseline"})


def render_check(report: CheckReport, lang: Language = "en") -> str:
    """The report as text: what is not modelled, the verdict, then each gate, what was found, changed and is advised."""
    title, *below = _title(report, lang)
    verdict = Block(f"{_verdict(report.passed, lang)}  {title}", below)
    return in_columns(Block(lines=unmodelled(report, lang)), verdict, *_found(report, lang))


def render_check_markdown(report: CheckReport, lang: Language = "en") -> str:
    """The report as Markdown, begun by the mark that a pull request's comment is found by."""
    identity = f"AutoDeploy {report.engine_version}"
    if report.plan is not None:
        identity += f", spec `{report.spec_hash[:12]}`, plan `{report.plan.plan_id}`"
    gates, *changed, advised = _found(report, lang)
    told = Block(lines=[*_title(report, lang), *facts(report, lang)])
    return (
        f"{MARK}\n{in_markdown(Block(lines=unmodelled(report, lang)))}"
        f"## {titled(lang, check_text(lang, 'title'), _verdict(report.passed, lang))}\n\n"
        f"**{escape(verdict_line(report, lang))}**\n\n"
        f"{in_markdown(Block(lines=rules(report, lang)), Block(table=gates.table), *changed, advised)}"
        f"<details><summary>{check_text(lang, 'prediction')}</summary>\n\n{in_markdown(told)}</details>\n\n"
        f"<sub>{identity}; {report_text(lang, 'generated')}</sub>\n"
    )


def verdict_line(report: CheckReport, lang: Language = "en") -> str:
    """Cost of the change: `18.6 % slower than main (6.29 -> 7.46 s, recompute +1.12 s); fits with 92 %`."""
    plan, before = report.plan, report.baseline
    if plan is None:
        return check_text(lang, "not_predicted", reason=in_language(report.unpredicted or "", lang))
    parts = []
    if before is None:
        parts.append(f"{seconds(plan.step_time_s)} {report_text(lang, 's_per_step')}")
    else:
        key = "slower" if before.slowdown > 0 else "faster"
        change = check_text(lang, key, pct=percent(abs(before.slowdown)), name=_baseline_name(report, lang))
        moved = [] if report.changes is None else report.changes.moved[:2]
        facts_of = [f"{seconds(before.plan.step_time_s)} -> {seconds(plan.step_time_s)} s"]
        facts_of += [f"{part_name(lang, each.part)} {each.after_s - each.before_s:+.3g} s" for each in moved]
        parts.append(bracketed(lang, change, report_text(lang, "comma").join(facts_of)))
    parts.append(peak_words(plan, lang) if plan.fits else excess_words(plan, lang))
    failed = sum(not gate.passed for gate in report.gates)
    parts += [check_text(lang, "gates_failed", count=failed)] if failed else []
    return report_text(lang, "semicolon").join(parts)


def render_check_annotations(report: CheckReport, lang: Language = "en", *, name: str = "launch") -> str:
    """Workflow commands that GitHub shows at the lines of the file: broken rules, gates that failed, doubts."""
    lines = []
    for rule in report.broken_rules:
        line = rule.values.get("line")
        place = f",line={line}" if isinstance(line, int) and line > 0 else ""
        kind = "warning" if rule.allowed else "error"
        said = _data(in_language(rule.text, lang))
        lines.append(f"::{kind} file={_property(name)}{place},title={_property(rule.rule)}::{said}")
    for gate in report.gates:
        if not gate.passed and gate.name != "legality":
            title, value, limit, _ = gate_cells(gate, lang)
            lines.append(f"::error file={_property(name)},title={_property(title)}::{_data(f'{value}, {limit}')}")
        elif gate.up_to_tokens is not None or (gate.chance is not None and gate.chance < SURE_CHANCE):
            title, value, limit, verdict = gate_cells(gate, lang)
            said = f"{value}, {limit}, {verdict}"
            lines.append(f"::warning file={_property(name)},title={_property(title)}::{_data(said)}")
    lines += [f"::warning file={_property(name)}::{_data(text)}" for text in unmodelled(report, lang)]
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    """As workflow commands escape a message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render_check_junit(report: CheckReport, lang: Language = "en", *, name: str = "launch") -> str:
    """The gates as test cases of one suite, as CI systems show them."""
    failed = [gate for gate in report.gates if not gate.passed]
    counts = {"tests": str(len(report.gates)), "failures": str(len(failed)), "errors": "0", "skipped": "0", "time": "0"}
    suites = ElementTree.Element("testsuites", {"name": "autodeploy check", **counts})
    del counts["skipped"]
    suite = ElementTree.SubElement(suites, "testsuite", {"name": _printable(name), "skipped": "0", **counts})
    output = _printable(in_columns(Block(lines=unmodelled(report, lang)), *_found(report, lang)))
    for gate in report.gates:
        title, value, limit, _ = gate_cells(gate, lang)
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"autodeploy.{_printable(name)}", "name": title, "time": "0"}
        )
        if not gate.passed:
            message = f"{title} {value}, {check_text(lang, 'limit')} {limit}"
            ElementTree.SubElement(case, "failure", {"message": message, "type": gate.name}).text = output
    if not failed:
        ElementTree.SubElement(suite, "system-out").text = output
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _found(report: CheckReport, lang: Language) -> list[Block]:
    titles = check_text.each(lang, "gate", "value", "limit", "verdict")
    gates = Table(titles, [gate_cells(gate, lang) for gate in report.gates], {1, 2})
    block = Block(table=gates, lines=[*rules(report, lang), *facts(report, lang)])
    return [block, *changes(report, lang), Block(lines=advice(report, lang))]


def gate_cells(gate: Gate, lang: Language) -> list[str]:
    """Cells of a gate: its limit, its value, the limit, and the verdict; faster is less than 0 % slower."""
    title = check_text(lang, "peak_memory" if gate.name == "memory" else gate.name)
    if gate.name == "legality":
        return [title, f"{gate.value:.0f}", "0", _verdict(gate.passed, lang)]
    sign = "+" if gate.name in _SIGNED else ""
    value = f"{round(100 * gate.value, 1) + 0.0:{sign}.1f} %"
    if gate.limit is None:
        return [title, value, "", ABSENT if gate.passed else _verdict(gate.passed, lang)]
    bound = ">=" if gate.name == "mfu" else "<="
    verdict = _verdict(gate.passed, lang)
    if gate.up_to_tokens is not None:
        verdict = check_text(lang, "passed_to_tokens", tokens=f"{gate.up_to_tokens:,}")
    elif gate.chance is not None and gate.chance < SURE_CHANCE:
        verdict = bracketed(lang, verdict, report_text(lang, "fits_by", chance=chance(gate.chance)))
    return [title, value, f"{bound} {100 * gate.limit:{sign}.1f} %", verdict]


def unmodelled(report: CheckReport, lang: Language) -> list[str]:
    """Settings that change the result and no prediction knows: they stand above the verdict."""
    return [titled(lang, command_text(lang, "unmodelled"), in_language(text, lang)) for text in report.unmodelled]


def rules(report: CheckReport, lang: Language) -> list[str]:
    """Broken rules with their numbers, those that fail the gate first, and why nothing is predicted."""
    lines = rule_lines(sorted(report.broken_rules, key=lambda rule: rule.allowed), lang)
    if report.plan is None and report.unpredicted:
        lines.append(check_text(lang, "not_predicted", reason=in_language(report.unpredicted, lang)))
    return lines


def facts(report: CheckReport, lang: Language) -> list[str]:
    """Time and memory with their intervals, the best plan and the baseline."""
    plan = report.plan
    if plan is None:
        return []
    lines = [speed_line(plan, lang), interval_line(plan, lang), memory_line(plan, lang)]
    line_makers = (evidence_line, experts_line, rescaled_line, measured_mfu)
    lines += [line for line in (of(plan, lang) for of in line_makers) if line is not None]
    if report.best is None:
        lines.append(check_text(lang, "no_best"))
    else:
        lines.append(_compared(check_text(lang, "best_plan"), report.best, lang))
    if report.baseline is not None:
        lines.append(_compared(_baseline_name(report, lang), report.baseline, lang))
    return lines


def changes(report: CheckReport, lang: Language) -> list[Block]:
    """Changes against the baseline: flags, then step time, memory, MFU and parts that moved, with the cause."""
    changed = report.changes
    if changed is None:
        return []
    title = check_text(lang, "changed", name=_baseline_name(report, lang))
    rows = [[each.name, f"{_value(each.before)} -> {_value(each.after)}"] for each in changed.fields]
    flags = Table([check_text(lang, "field"), check_text(lang, "change")], rows)
    cause = [titled(lang, check_text(lang, "why"), in_language(changed.cause, lang))] if changed.cause else []
    if report.baseline is None or report.plan is None:
        moved = Block(lines=cause)
    else:
        moved = Block(table=_numbers(report.baseline.plan, report.plan, changed, lang), lines=cause)
    nothing = [] if rows else [check_text(lang, "all_equal")]
    return [Block(title, nothing, flags if rows else None), moved]


def _numbers(before: Plan, after: Plan, changed: Changes, lang: Language) -> Table:
    rows = [
        [
            check_text(lang, "step_time_s"),
            seconds(before.step_time_s),
            seconds(after.step_time_s),
            f"{100 * (after.step_time_s / before.step_time_s - 1.0):+z.1f} %",
        ],
        [
            *(check_text(lang, "peak_memory_gib"), f"{before.peak_memory_gib:.1f}", f"{after.peak_memory_gib:.1f}"),
            f"{after.peak_memory_gib - before.peak_memory_gib:+z.1f}",
        ],
        [
            *("MFU", f"{percent(before.mfu)} %", f"{percent(after.mfu)} %"),
            check_text(lang, "points", points=f"{100 * (after.mfu - before.mfu):+z.1f}"),
        ],
    ]
    for moved in changed.moved[:SHOWN_PARTS]:
        difference = f"{moved.after_s - moved.before_s:+.3g}"
        rows.append([f"{part_name(lang, moved.part)} (s)", seconds(moved.before_s), seconds(moved.after_s), difference])
    return Table(["", *check_text.each(lang, "before", "after", "difference")], rows, {1, 2, 3})


def _value(text: str | None) -> str:
    return ABSENT if text is None else " ".join(text.split())[:LONGEST_VALUE] or '""'


def _baseline_name(report: CheckReport, lang: Language) -> str:
    return (report.changes.name if report.changes is not None else "") or check_text(lang, "baseline_name")


def advice(report: CheckReport, lang: Language) -> list[str]:
    """Shortage of memory and the cheapest fix, contradictions and parts that were not read."""
    lines = []
    if report.shortage is not None:
        short = report.shortage
        lines.append(
            check_text(
                lang,
                "shortage",
                stage=short.stage,
                needed=f"{short.needed_bytes / GIB:.1f}",
                bytes=f"{short.needed_bytes:,}",
                limit=f"{short.limit_bytes / GIB:.1f}",
                excess=f"{short.excess_bytes / GIB:.1f}",
                part=memory_name(lang, short.largest_part),
                largest=f"{short.largest_part_bytes / GIB:.1f}",
            )
        )
        lines += [_remedy(remedy, lang) for remedy in report.remedies]
        if not report.remedies:
            best = report.best
            better = best is not None and best.plan.highest_gib * GIB <= short.limit_bytes
            lines += [check_text(lang, "no_fix"), *([check_text(lang, "take_best")] if better else [])]
    lines += [command_text(lang, "assumed", text=in_language(text, lang)) for text in report.assumptions]
    lines += [
        titled(lang, command_text(lang, "contradicted"), in_language(text, lang)) for text in report.contradictions
    ]
    if report.unknown_flags:
        flags = report_text(lang, "comma").join(in_language(flag, lang) for flag in report.unknown_flags)
        lines.append(check_text(lang, "unknown_flags", flags=flags))
    return lines


def _title(report: CheckReport, lang: Language) -> list[str]:
    """Title of a check: model, cluster, workload and layout, or the kind of file where there is no prediction."""
    if not report.spec:
        return [report.release or report.source]
    lines = list(header(Spec.model_validate(report.spec), report.plan, lang))
    lines += [degrees(report.plan.strategy)] if report.plan is not None else []
    return [*lines, *([report.release] if report.release else [])]


def _verdict(passed: bool, lang: Language) -> str:
    return check_text(lang, "passed" if passed else "failed")


def _compared(name: str, compared: Compared, lang: Language) -> str:
    plan = compared.plan
    return check_text(
        lang,
        "compared",
        name=name,
        layout=degrees(plan.strategy),
        step=seconds(plan.step_time_s),
        peak=f"{plan.highest_gib:.1f}",
        slower=f"{100 * compared.slowdown:+z.1f}",
    )


def _remedy(remedy: Remedy, lang: Language) -> str:
    names = " + ".join(remedy_name(lang, name) for name in remedy.names)
    changed = {"add_flags": remedy.add_flags, "drop_flags": remedy.drop_flags}
    changes_text = [command_text(lang, key, flags=" ".join(flags)) for key, flags in changed.items() if flags]
    cost = check_text(
        lang,
        "fix",
        names=names,
        peak=f"{remedy.peak_memory_gib:.1f}",
        step=seconds(remedy.step_time_s),
        cost=f"{100 * remedy.slowdown:+z.1f} %",
    )
    return report_text(lang, "semicolon").join([cost, *changes_text])


def _printable(text: str) -> str:
    """Text that XML 1.0 can hold."""
    return "".join(sign for sign in text if sign in "\n\t" or sign.isprintable())
