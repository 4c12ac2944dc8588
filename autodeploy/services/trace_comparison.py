"""A profiled run beside the plan that it ran: parts of the step, memory, operators by shape, exchanges by size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.evaluation.inputs.machine import machine_of
from autodeploy.reports.profiler_parts import ComparedPart, compared_parts
from cost_models.compute import gemm_s
from hardware_profiles import cluster_topology, load_profile

if TYPE_CHECKING:
    from autodeploy.importers.communication_trace import ExchangeGroup
    from autodeploy.importers.kernel_details import OperatorClass
    from autodeploy.importers.operator_memory import MemoryTrace
    from autodeploy.importers.profiler_output import ProfilerOutput
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

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
    """What the run did, a step; with a plan what it had said. Parts and peak are empty and None without one."""

    profile: str
    parts: tuple[ComparedPart, ...]
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

    Parameters
    ----------
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
