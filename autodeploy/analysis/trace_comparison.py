"""A profiled run beside the plan that it ran: parts of the step, memory, operators by shape, exchanges by size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.costs.inputs.machine import machine_of
from autodeploy.reports.tables import Block, Table, in_markdown
from autodeploy.reports.wording import command_text
from autodeploy.specs.resources import ComparedPartDocument
from cost_models.compute import gemm_s
from hardware_profiles import cluster_topology, load_profile

if TYPE_CHECKING:
    from autodeploy.formats.measurements.profiler_tables import (
        ExchangeGroup,
        MemoryTrace,
        OperatorClass,
        ProfilerOutput,
    )
    from autodeploy.messages import Language
    from autodeploy.specs.measured_run import ProfilerTimes
    from autodeploy.specs.planset import Breakdown, Plan
    from autodeploy.specs.spec import Spec


# Our parts of a step in the terms of the Ascend profiler, so that both can stand side by side.
# The profiler counts waiting for a pipeline's receive as bubble, and copies by the host link as free time.
GROUPS: dict[str, tuple[str, ...]] = {
    "computing": ("compute_s", "uneven_stages_s", "recompute_s", "imbalance_s", "optimizer_s"),
    "communication": ("exposed_tp_s", "exposed_ep_s", "exposed_cp_s", "exposed_dp_s"),
    "bubble": ("pipeline_bubble_s", "exposed_pp_s"),
    "free": ("host_bound_s", "exposed_swap_s"),
}


def compared_parts(breakdown: Breakdown, times: ProfilerTimes) -> tuple[ComparedPartDocument, ...]:
    """The four parts of the profiler; each side adds up to its step time."""
    predicted, measured = predicted_parts(breakdown), profiled_parts(times)
    return tuple(
        ComparedPartDocument(name=name, predicted_s=predicted[name], measured_s=measured[name]) for name in GROUPS
    )


def predicted_parts(breakdown: Breakdown) -> dict[str, float]:
    """Seconds of the profiler's parts as predicted; their sum is the step."""
    return {name: sum(getattr(breakdown, part) for part in parts) for name, parts in GROUPS.items()}


def profiled_parts(times: ProfilerTimes) -> dict[str, float]:
    """Seconds of the profiler's parts as measured; their sum is the step."""
    return {name: getattr(times, f"{name}_s") for name in GROUPS}


MAX_SHOWN_ROWS = 20


@dataclass(frozen=True, slots=True)
class TracedOperator:
    """One operator of one shape: kernels and seconds a step, its rate, and a kernel by the profile's formulas.

    `flop_per_s` where shapes say the FLOPs, `bytes_per_s` where they say bytes alone; None otherwise. `predicted_s`: of
    one kernel; None where the formulas have no operator of such shapes.
    """

    operator_class: OperatorClass
    operator: str
    shapes: str
    count: float
    seconds: float
    kernel_s: float
    flop_per_s: float | None
    bytes_per_s: float | None
    predicted_s: float | None


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """Measurements of a run, a step; with a plan its predictions. Parts and peak are empty and None without one."""

    profile: str
    parts: tuple[ComparedPartDocument, ...]
    classes: tuple[tuple[OperatorClass, float], ...]
    operators: tuple[TracedOperator, ...]
    exchanges: tuple[ExchangeGroup, ...]
    exchange_steps: int
    memory: MemoryTrace | None
    planned_peak_gib: float | None


def compare_trace(
    output: ProfilerOutput, profile_name: str, spec: Spec | None = None, plan: Plan | None = None
) -> TraceComparison:
    """The run of a profiler's folder against its plan, and its matrix multiplications against a profile.

    spec : says chip grade and number format; without it the profile's default, in bf16.
    """
    profile = load_profile(profile_name)
    device = profile.device(spec.cluster.device if spec is not None else None)
    precision = spec.training.precision if spec is not None else "bf16"
    node = cluster_topology(profile, num_npus=profile.npus_per_node)
    rates = machine_of(profile, device, node, precision=precision).rates
    times = output.step.profiler if output.step is not None else None
    operators: list[TracedOperator] = []
    classes: dict[OperatorClass, float] = {}
    kernels = output.kernels
    for group in kernels.groups if kernels is not None else ():
        assert kernels is not None
        seconds = group.seconds / kernels.steps
        classes[group.operator_class] = classes.get(group.operator_class, 0.0) + seconds
        kernel_s = group.seconds / group.count
        works = kernel_s > 0.0
        product = group.operator_class == "gemm" and min(group.shape) > 0
        m, n, k = (float(size) for size in group.shape)
        operators.append(
            TracedOperator(
                group.operator_class,
                group.operator,
                group.shapes,
                group.count / kernels.steps,
                seconds,
                kernel_s,
                group.flops / kernel_s if group.flops and works else None,
                group.bytes / kernel_s if group.bytes and works and not group.flops else None,
                float(gemm_s(m, n, k, rates)) if product else None,
            )
        )
    return TraceComparison(
        profile=profile.name,
        parts=compared_parts(plan.breakdown, times) if plan is not None and times is not None else (),
        classes=tuple(sorted(classes.items(), key=lambda item: (-item[1], item[0]))),
        operators=tuple(operators[:MAX_SHOWN_ROWS]),
        exchanges=output.exchanges.groups[:MAX_SHOWN_ROWS] if output.exchanges is not None else (),
        exchange_steps=output.exchanges.steps if output.exchanges is not None else 1,
        memory=output.memory,
        planned_peak_gib=plan.allocator_peak_gib if plan is not None else None,
    )


# Where a profiled run differs from its plan, as a page in Markdown.
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
