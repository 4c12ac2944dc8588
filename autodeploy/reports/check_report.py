"""The report of a check: sentences, text of at most 100 columns, Markdown and JUnit XML."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from autodeploy.messages import in_language
from autodeploy.reports.best_plan import experts_line, header, measured_mfu
from autodeploy.reports.check_changes import change_lines, change_tables
from autodeploy.reports.recommendation import rescaled_words
from autodeploy.reports.tables import UNWRAPPED, Table, escape, markdown
from autodeploy.reports.texts import check_text, command_text, memory_name, remedy_name, report_text
from autodeploy.reports.wording import degrees, fullest_stage, percent, seconds, wrap
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.check import CheckReport, Compared, Gate, Remedy

GIB = 2**30
# A hidden mark: what updates one comment of a pull request finds it by this.
MARK = "<!-- autodeploy-check -->"


def render_check(report: CheckReport, lang: Language = "en") -> str:
    """The report as text: what is not modelled, the verdict, then each gate, what changed and what to do."""
    lines: list[str] = []
    for doubt in unmodelled(report, lang):
        lines += wrap(doubt, hanging="  ")
    lines += [
        f"{_verdict(report.passed, lang)}  {line}" if not i else line for i, line in enumerate(_title(report, lang))
    ]
    for gate in report.gates:
        mark = check_text(lang, "gate_passed" if gate.passed else "failed")
        lines += wrap(
            f"{mark} {gate_title(gate, lang)}{report_text(lang, 'colon')}{gate_words(gate, lang, report.release)}",
            indent="  ",
            hanging="     ",
        )
    for fact in [*rules(report, lang), *facts(report, lang), *change_lines(report, lang), *advice(report, lang)]:
        lines += wrap(fact, indent="  ", hanging="  ")
    return "".join(line.rstrip() + "\n" for line in lines)


def render_check_markdown(report: CheckReport, lang: Language = "en") -> str:
    """The report as Markdown, begun by the mark that a pull request's comment is found by."""
    lines = [MARK]
    for doubt in unmodelled(report, lang):
        lines += [f"> **{escape(doubt)}**", ">"]
    if len(lines) > 1:
        lines[-1] = ""
    lines += [f"## {check_text(lang, 'title')}: {_verdict(report.passed, lang)}", ""]
    lines += [escape(" ".join(_title(report, lang, columns=UNWRAPPED))), ""]
    titles = [check_text(lang, name) for name in ("gate", "value", "limit", "verdict")]
    lines += markdown(Table(titles, [_cells(gate, report, lang) for gate in report.gates], {1, 2}))
    lines += change_tables(report, lang)
    lines += ["", *(f"- **{escape(rule)}**" for rule in rules(report, lang))]
    lines += [f"- {escape(fact)}" for fact in facts(report, lang)]
    lines += [f"- **{escape(line)}**" if not report.passed else f"- {escape(line)}" for line in advice(report, lang)]
    identity = f"AutoDeploy {report.engine_version}"
    if report.plan is not None:
        identity += f", spec `{report.spec_hash[:12]}`, plan `{report.plan.plan_id}`"
    lines += ["", f"<sub>{identity}; {report_text(lang, 'generated')}</sub>"]
    return "\n".join(lines) + "\n"


def _cells(gate: Gate, report: CheckReport, lang: Language) -> list[str]:
    """A gate as a row: name, value, limit, verdict."""
    told = check_text(lang, "told") if gate.limit is None and gate.passed else _verdict(gate.passed, lang)
    if gate.name == "legality":
        return [gate_title(gate, lang), gate_words(gate, lang, report.release), "–", told]
    limit = "–" if gate.limit is None else f"{percent(gate.limit)} %"
    if gate.limit is not None and _is_faster(gate):
        limit = check_text(lang, "slower_allowed", pct=percent(gate.limit))
    return [gate_title(gate, lang), f"{percent(abs(gate.value))} %", limit, told]


def render_check_junit(report: CheckReport, lang: Language = "en", *, name: str = "launch") -> str:
    """The gates as test cases of one suite, as CI systems show them."""
    failed = [gate for gate in report.gates if not gate.passed]
    counts = {"tests": str(len(report.gates)), "failures": str(len(failed)), "errors": "0", "skipped": "0", "time": "0"}
    suites = ElementTree.Element("testsuites", {"name": "autodeploy check", **counts})
    del counts["skipped"]
    suite = ElementTree.SubElement(suites, "testsuite", {"name": _printable(name), "skipped": "0", **counts})
    for gate in report.gates:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {"classname": f"autodeploy.{_printable(name)}", "name": check_text(lang, gate.name), "time": "0"},
        )
        if not gate.passed:
            words = gate_words(gate, lang, report.release)
            failure = ElementTree.SubElement(case, "failure", {"message": words, "type": gate.name})
            failure.text = _printable("\n".join([words, *_details(gate, report, lang)]))
    output = ElementTree.SubElement(suite, "system-out")
    said = [*unmodelled(report, lang), *rules(report, lang), *facts(report, lang)]
    output.text = _printable("\n".join([*said, *change_lines(report, lang), *advice(report, lang)]))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _details(gate: Gate, report: CheckReport, lang: Language) -> list[str]:
    """What a failed gate is explained with."""
    if gate.name == "legality":
        return rules(report, lang)
    if gate.name == "memory":
        return advice(report, lang)
    return [*facts(report, lang), *change_lines(report, lang)]


def unmodelled(report: CheckReport, lang: Language) -> list[str]:
    """What changes the result and no prediction knows: it stands above the verdict."""
    return [command_text(lang, "unmodelled", text=in_language(text, lang)) for text in report.unmodelled]


def rules(report: CheckReport, lang: Language) -> list[str]:
    """Broken rules with their numbers, those that fail the gate first, and why nothing is predicted."""
    lines = [
        check_text(
            lang, "allowed_rule" if rule.allowed else "broken_rule", text=in_language(rule.text, lang), rule=rule.rule
        )
        for rule in sorted(report.broken_rules, key=lambda rule: rule.allowed)
    ]
    if report.plan is None and report.unpredicted:
        lines.append(check_text(lang, "not_predicted", reason=in_language(report.unpredicted, lang)))
    return lines


def gate_title(gate: Gate, lang: Language) -> str:
    """What a gate holds to its limit; a launch that beats what it is compared with is faster, not slower by less."""
    return check_text(lang, f"{gate.name}_faster" if _is_faster(gate) else gate.name)


def _is_faster(gate: Gate) -> bool:
    return gate.name in {"slowdown", "baseline"} and round(gate.value, 3) < 0.0


def gate_words(gate: Gate, lang: Language, release: str = "") -> str:
    """The value of a gate and its limit; of legality what it was held against."""
    if gate.name == "legality":
        count = round(gate.value)
        words = check_text(lang, "rules_broken", count=count) if count else check_text(lang, "no_rule_broken")
        return words + (check_text(lang, "for_release", release=release) if release else "")
    if gate.limit is None:
        return f"{percent(abs(gate.value))} %{report_text(lang, 'comma')}{check_text(lang, 'told')}"
    if _is_faster(gate):
        allowed = check_text(lang, "slower_allowed", pct=percent(gate.limit))
        return f"{percent(-gate.value)} %{report_text(lang, 'comma')}{allowed}"
    sign = (">=" if gate.passed else "<") if gate.name == "mfu" else ("<=" if gate.passed else ">")
    return f"{percent(gate.value)} % {sign} {percent(gate.limit)} %"


def facts(report: CheckReport, lang: Language) -> list[str]:
    """Memory with the imbalance it survives, time with its interval, the best plan and the baseline."""
    plan = report.plan
    if plan is None:
        return []
    peak, limit = f"{plan.peak_memory_gib:.1f}", f"{plan.memory_limit_gib:.1f}"
    survives = check_text(lang, "survives_any") if report.spec["model"].get("n_routed_experts") else ""
    if plan.oom_imbalance is not None and plan.oom_imbalance <= 1.0:
        survives = check_text(lang, "survives_none")
    elif plan.oom_imbalance is not None:
        sized = plan.experts.memory_factor if plan.experts is not None else 1.0
        survives = check_text(lang, "survives", oom=f"{plan.oom_imbalance:.1f}", peak=f"{sized:.1f}")
    about = ""
    if (known := plan.memory_interval) is not None:
        values = {"low": f"{known.low_gib:.1f}", "high": f"{known.high_gib:.1f}"}
        about = report_text(lang, "semicolon") + report_text(lang, "memory_interval", **values)
    low, high = seconds(plan.uncertainty.low_s), seconds(plan.uncertainty.high_s)
    lines = [
        check_text(lang, "memory_line", stage=fullest_stage(plan), peak=peak, limit=limit) + about + survives,
        *([experts_line(plan.experts, lang)] if plan.experts is not None and plan.experts.ep > 1 else []),
        check_text(lang, "time_line", step=seconds(plan.step_time_s), low=low, high=high, mfu=percent(plan.mfu)),
    ]
    if plan.rescaled is not None:
        lines.append(rescaled_words(plan.rescaled, lang))
    lines.append(measured_mfu(plan, lang))
    lines.append(check_text(lang, "no_best") if report.best is None else _compared("best_line", report.best, lang))
    if report.baseline is not None:
        name = (report.changes.name if report.changes is not None else "") or check_text(lang, "baseline_name")
        lines.append(_compared("baseline_line", report.baseline, lang, name=name))
    return lines


def advice(report: CheckReport, lang: Language) -> list[str]:
    """Where memory runs out and the cheapest fix, what contradicts itself and what was not read."""
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
        lines += [
            check_text(lang, "other_fix" if index else "cheapest", fix=_remedy(remedy, lang))
            for index, remedy in enumerate(report.remedies)
        ]
        if not report.remedies:
            best = report.best
            better = best is not None and best.plan.peak_memory_gib * GIB <= short.limit_bytes
            lines.append(check_text(lang, "no_fix") + (f"; {check_text(lang, 'take_best')}" if better else ""))
    lines += [command_text(lang, "assumed", text=in_language(text, lang)) for text in report.assumptions]
    lines += [check_text(lang, "contradiction", text=in_language(text, lang)) for text in report.contradictions]
    if report.unknown_flags:
        flags = report_text(lang, "comma").join(in_language(flag, lang) for flag in report.unknown_flags)
        lines.append(check_text(lang, "unknown_flags", flags=flags))
    return lines


def _title(report: CheckReport, lang: Language, columns: int = 90) -> list[str]:
    """What was checked: model, cluster and layout, or what the file is where there is no prediction."""
    if report.plan is not None:
        lines = header(Spec.model_validate(report.spec), report.plan, lang, columns=columns)
        return [*lines, f"  {degrees(report.plan.strategy, with_dp=True)}"]
    if report.spec:
        return header(Spec.model_validate(report.spec), None, lang, columns=columns)
    return [report.release or report.source]


def _verdict(passed: bool, lang: Language) -> str:
    return check_text(lang, "passed" if passed else "failed")


def _compared(key: str, compared: Compared, lang: Language, **more: str) -> str:
    plan = compared.plan
    return check_text(
        lang,
        key,
        **more,
        layout=degrees(plan.strategy, with_dp=True),
        step=seconds(plan.step_time_s),
        peak=f"{plan.peak_memory_gib:.1f}",
        slower=_slower(compared.slowdown, lang),
    )


def _slower(slowdown: float, lang: Language) -> str:
    if abs(slowdown) < 0.0005:
        return check_text(lang, "same")
    return check_text(lang, "slower" if slowdown > 0 else "faster", pct=percent(abs(slowdown)))


def _remedy(remedy: Remedy, lang: Language) -> str:
    names = " + ".join(remedy_name(lang, name) for name in remedy.names)
    changed = {"add_flags": remedy.add_flags, "drop_flags": remedy.drop_flags}
    told = [command_text(lang, key, flags=" ".join(flags)) for key, flags in changed.items() if flags]
    cost = check_text(
        lang,
        "fix_cost",
        names=names,
        peak=f"{remedy.peak_memory_gib:.1f}",
        step=seconds(remedy.step_time_s),
        cost=f"{100 * remedy.slowdown:+.1f} %",
    )
    return report_text(lang, "semicolon").join([cost, *told])


def _printable(text: str) -> str:
    """Text that XML 1.0 can hold."""
    return "".join(sign for sign in text if sign in "\n\t" or sign.isprintable())
