"""Where a profiled run differs from its plan, as a page in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.tables import Block, Table, in_markdown
from autodeploy.reports.texts import command_text

if TYPE_CHECKING:
    from autodeploy.importers.communication_trace import ExchangeGroup
    from autodeploy.messages import Language
    from autodeploy.services.trace_comparison import TraceComparison, TracedOperator

GIGA, TERA, MILLI = 1e9, 1e12, 1e3
_OPERATORS = ("kind", "operator", "shape", "trace_count", "ms/step", "throughput", "trace_ratio")
_EXCHANGES = ("operator", "group", "MB", "trace_count", "ms/step", "trace_waiting", "GB/s")


def trace_page(comparison: TraceComparison, lang: Language = "en") -> str:
    """Parts of the step by their difference, memory, operators and exchanges by their time."""

    def said(key: str, **values: object) -> str:
        return command_text(lang, key, **values)

    def table(*names: str, rows: list[list[str]]) -> Table:
        return Table([said(name) if name in command_text else name for name in names], rows)

    blocks = []
    if comparison.parts:
        step = sum(part.measured_s for part in comparison.parts)
        by_difference = sorted(comparison.parts, key=lambda part: -abs(part.measured_s - part.predicted_s))
        rows = [
            [
                said(f"profiler_{part.name}"),
                f"{part.predicted_s:.4g} s",
                f"{part.measured_s:.4g} s",
                f"{part.measured_s - part.predicted_s:+.4g} s",
                f"{100.0 * (part.measured_s - part.predicted_s) / step:+.1f} %",
            ]
            for part in by_difference
        ]
        parts = table("part", "predicted", "measured", "difference", "trace_of_step", rows=rows)
        blocks.append(Block(said("step"), table=parts))
    if comparison.memory is not None:
        planned = "" if comparison.planned_peak_gib is None else f"{comparison.planned_peak_gib:.1f}"
        rows = [
            ["max_memory_allocated", planned, f"{comparison.memory.allocated_gib:.1f}"],
            ["max_memory_reserved", "", f"{comparison.memory.reserved_gib:.1f}"],
        ]
        blocks.append(Block(said("peak_memory_gib"), table=table("", "predicted", "measured", rows=rows)))
    if comparison.classes:
        rows = [[said(f"kernel_{name}"), f"{MILLI * seconds:.4g}"] for name, seconds in comparison.classes]
        lines = [said("trace_of_profile", profile=comparison.profile)]
        blocks.append(Block(said("operator"), lines, table("kind", "ms/step", rows=rows)))
        rows = [_operator(each, said(f"kernel_{each.operator_class}")) for each in comparison.operators]
        blocks.append(Block(table=table(*_OPERATORS, rows=rows)))
    if comparison.exchanges:
        rows = [_exchange(each, comparison.exchange_steps) for each in comparison.exchanges]
        blocks.append(Block(said("kernel_exchange"), table=table(*_EXCHANGES, "trace_links", rows=rows)))
    return f"# {said('predicted_against_measured')}\n\n{in_markdown(*blocks)}"


def _operator(each: TracedOperator, class_name: str) -> list[str]:
    rate = ""
    if each.flop_per_s is not None:
        rate = f"{each.flop_per_s / TERA:.1f} TFLOPS"
    elif each.bytes_per_s is not None:
        rate = f"{each.bytes_per_s / GIGA:.0f} GB/s"
    ratio = "" if each.predicted_s is None else f"{each.kernel_s / each.predicted_s:.2f}"
    milliseconds = f"{MILLI * each.seconds:.4g}"
    return [class_name, each.operator, each.shapes, f"{each.count:.4g}", milliseconds, rate, ratio]


def _exchange(each: ExchangeGroup, steps: int) -> list[str]:
    links = ", ".join(f"{link} {size / each.sent_s[link] / GIGA:.1f}" for link, size in sorted(each.sent_bytes.items()))
    waiting = f"{100.0 * each.wait_s / each.elapsed_s:.0f} %" if each.elapsed_s else ""
    milliseconds = f"{MILLI * each.elapsed_s / steps:.4g}"
    megabytes = f"{each.message_bytes / 1e6:.3g}"
    rate = f"{each.moved_bytes / each.transit_s / GIGA:.1f}" if each.transit_s else ""
    times = f"{each.count / steps:.4g}", milliseconds
    return [each.operation, each.group[-8:], megabytes, *times, waiting, rate, links]
