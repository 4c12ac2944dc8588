"""What the formulas say of a measurement on a machine: the very functions that plans are predicted with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from autodeploy.calibration.benchmarks import collective_s
from autodeploy.evaluation.inputs.machine import machine_of
from autodeploy.evaluation.layers.operator_time import operator_times
from autodeploy.evaluation.layers.unit_costs import scalar_at
from autodeploy.workload.operators import Operator, OperatorKind
from cost_models.compute import vector_s
from hardware_profiles.topology import cluster_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.evaluation.inputs.machine import Machine
    from autodeploy.evaluation.layers.operator_time import OperatorTime
    from autodeploy.probe.document import Measurement, ProbeFile
    from hardware_profiles.profile import Profile

OPERATORS = frozenset({"gemm", "grouped_gemm", "attention", "vector", "movement"})
# Added by an operator of its own: the 16-bit product is read, the FP32 sum read and written.
UNFUSED_ADDITION_BYTES = 10.0
LOOP = "loop"  # groups multiplied one by one, for want of a kernel that takes them together


def probed_machine(profile: Profile, probe: ProbeFile) -> Machine:
    """The machine that was measured, as a profile describes it; kernels alone, without a release's factor."""
    nodes = -(-probe.ranks // profile.ranks_per_node)
    topology = cluster_topology(profile, num_npus=nodes * profile.npus_per_node)
    device = profile.device(probe.request.device or None)
    machine = machine_of(profile, device, topology, probe.request.precision)
    return replace(machine, software_factor=np.asarray(1.0))


def predictions_s(points: Sequence[Measurement], machine: Machine) -> list[float]:
    """Seconds of one run of each measured operator or collective; operators are priced together."""
    operators = [point for point in points if point.kind in OPERATORS]
    times = iter(operator_times([_operator(point) for point in operators], machine, 1.0))
    return [
        _operator_s(point, next(times), machine) if point.kind in OPERATORS else _collective_s(point, machine)
        for point in points
    ]


def _operator(point: Measurement) -> Operator:
    price: dict[str, Any] = dict(point.price)
    if point.kernel.startswith(LOOP):
        price |= {"fused": False}
    return Operator(point.name, cast("OperatorKind", point.kind), "mlp", **price)


def _operator_s(point: Measurement, times: OperatorTime, machine: Machine) -> float:
    if point.part == "input_gradient":
        return scalar_at(times.input_gradient_s, 0)
    if point.part == "weight_gradient":
        seconds = scalar_at(times.weight_gradient_s, 0)
        if "added" in point.kernel:
            params = point.size("n") * point.size("k") * point.size("groups")
            seconds += scalar_at(vector_s(UNFUSED_ADDITION_BYTES * params, 1.0, machine.rates), 0)
        return seconds
    return scalar_at(times.backward_s if point.part == "backward" else times.forward_s, 0)


def _collective_s(point: Measurement, machine: Machine) -> float:
    group = machine.group(np.array([point.size("stride")]), np.array([point.size("ranks")]))
    return collective_s(point.part, point.size("bytes"), group, machine)
