"""A profile's numbers fitted to what a probe measured, and what changed.

Each number has the shipped value as its prior, as wide as the profile or the table of efficiencies says. Measurements
that a step spends much time in count for more than those that it hardly needs: a curve of few parameters can't meet
every shape. Maximum a posteriori with residuals of a Student distribution, as runs are fitted (`calibration.fit`), and
once more with the scatter that each kind of measurement turned out to have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from autodeploy.calibration.benchmarks import collective_s
from autodeploy.calibration.fit import FitParameter, differences, fit
from autodeploy.calibration.overlays import rounded
from autodeploy.costs.inputs.machine import machine_of
from autodeploy.costs.layers.operator_time import operator_times
from autodeploy.costs.layers.unit_costs import scalar_at
from autodeploy.costs.workload.operators import Operator, OperatorKind
from cost_models.compute import vector_s
from hardware_profiles import apply_overlay
from hardware_profiles.efficiencies import EFFICIENCY_TERMS
from hardware_profiles.topology import cluster_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.analysis.probe.document import Measurement, ProbeFile
    from autodeploy.calibration.fit import Fit
    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.costs.layers.operator_time import OperatorTime
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile


# What the formulas say of a measurement on a machine.
OPERATORS = frozenset(get_args(OperatorKind))
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


# Least log standard deviation of a measurement that has its share of the time: repeats and clocks.
NOISE = {"gemm": 0.04, "grouped_gemm": 0.05, "attention": 0.04, "vector": 0.06, "movement": 0.06, "collective": 0.08}
ITERATIONS = 12
LINK_SIGMA, HOST_SIGMA, LATENCY_SIGMA = 0.50, 1.0, 1.0
MOST_WEIGHT, LEAST_WEIGHT, UNNEEDED_WEIGHT = 9.0, 1.0 / 9.0, 0.01
TERMS = {
    "gemm": ("gemm_peak_fraction", "gemm_k_half", "gemm_mn_half"),
    "vector": ("hbm",),
    "movement": ("permute",),
}
GROUPED = ("grouped_", "hbm_operands")  # small groups are bound by what matrix kernels stream
LINK_NUMBERS = {"efficiency": LINK_SIGMA, "latency_us": LATENCY_SIGMA, "half_size_mib": LATENCY_SIGMA}


@dataclass(frozen=True, slots=True)
class Change:
    """One number of the profile: what it was, what it is, by how many standard deviations of its prior, from how many
    measurements. `limited` : it reached the most that it can mean.
    """

    path: str
    unit: str
    old: float
    new: float
    sigmas: float
    points: int
    limited: bool = False


@dataclass(frozen=True, slots=True)
class Agreement:
    """Measurements of one kind against the formulas: median of |log(predicted / measured)| and mean log, before and
    after the fit, all alike.
    """

    kind: str
    points: int
    before: float
    after: float
    bias: float


@dataclass(frozen=True)
class ProbeFit:
    """The overlay with what it changed and how well it meets the measurements."""

    overlay: dict[str, Any]
    changes: tuple[Change, ...]
    agreements: tuple[Agreement, ...]


def fit_probe(profile: Profile, probe: ProbeFile) -> ProbeFit:
    """The profile's numbers through what a probe measured.

    profile : as shipped, or a user's own.
    """
    points = [each for each in probe.measurements if _priced(each)]
    paths = _paths(profile, probe, points)
    before = _residuals(points, profile, probe)
    kinds, weights = [point.kind for point in points], _weights(points)
    noise = np.array([NOISE[kind] for kind in kinds])
    parameters = [FitParameter(path, (path,), _sigma(profile, path), path) for path in paths]
    upper = np.array([_upper(profile, path) for path in paths])
    old = np.array([profile.quantity(path).value for path in paths])

    @differences
    def linear(log_factors: Floats) -> Floats:
        values = dict(zip(paths, old * np.exp(np.minimum(log_factors, upper)), strict=True))
        return _residuals(points, apply_overlay(profile, _nested(profile, values)), probe)

    overlay: dict[str, Any] = {"profile": profile.name}
    changes: list[Change] = []
    after = before
    if points and paths:
        fitted = fit(parameters, linear, noise / np.sqrt(weights), upper=upper, iterations=ITERATIONS)
        scatter = np.maximum(noise, _scatter(kinds, weights, fitted.residuals))
        fitted = fit(parameters, linear, scatter / np.sqrt(weights), upper=upper, iterations=ITERATIONS)
        after = fitted.residuals
        changes = [
            _change(profile, fitted, number, path, old[number], upper[number]) for number, path in enumerate(paths)
        ]
    changes += _direct(profile, probe)
    source = f"probe of {probe.device.name}, {probe.ranks} ranks, torch {probe.versions.get('torch', '')}".strip()
    for change in changes:
        node = overlay
        *parents, leaf = change.path.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        note = f"{change.old:g} before, {change.points} measurements"
        node[leaf] = {"value": rounded(change.new), "kind": "measured", "source": source, "note": note}
    agreements = _agreements(points, before, after)
    overlay["report"] = {
        "probe": probe.request.spec_hash[:12],
        "residuals": {each.kind: rounded(each.after, 3) for each in agreements},
    }
    return ProbeFit(overlay, tuple(changes), agreements)


def _priced(point: Measurement) -> bool:
    """Whether a formula says how long it takes: what the host issues too slowly says nothing of the device."""
    return (point.kind in OPERATORS or point.kind == "collective") and not point.host_bound


def _paths(profile: Profile, probe: ProbeFile, points: Sequence[Measurement]) -> list[str]:
    """Numbers of the profile that the measurements speak of."""
    kinds = {point.kind for point in points}
    names = [name for kind in ("gemm", "vector", "movement") if kind in kinds for name in TERMS[kind]]
    names += [name for name in EFFICIENCY_TERMS if name.startswith(GROUPED) and "grouped_gemm" in kinds]
    attention = {point.part for point in points if point.kind == "attention"}
    names += [f"attention_{part}" for part in ("forward", "backward") if part in attention]
    for axis, name in (("qk_dim", "attention_head_dim_half"), ("seq", "attention_seq_half")):
        if len({point.shape[axis] for point in points if point.kind == "attention"}) > 1:
            names.append(name)
    if all(point.kernel.startswith(LOOP) for point in points if point.kind == "grouped_gemm"):
        names = [name for name in names if not name.startswith(GROUPED)]
    waves = profile.efficiency["gemm_units"] > 0.0
    paths = [f"efficiency.{name}" for name in names if not (waves and name == "gemm_mn_half")]
    machine = probed_machine(profile, probe)
    for number, tier in enumerate(machine.tiers):
        crossing = [p for p in points if p.kind == "collective" and _crosses(p, machine, number)]
        if crossing:
            paths += [f"{tier.name}.{name}" for name in LINK_NUMBERS]
    return [path for path in paths if path in profile.quantities and profile.quantity(path).value > 0.0]


def _crosses(point: Measurement, machine: Any, tier: int) -> bool:
    group = machine.group(np.array([point.size("stride")]), np.array([point.size("ranks")]))
    return bool(np.asarray(group.fan_out[tier]).reshape(-1)[0] > 1.0)


def _sigma(profile: Profile, path: str) -> float:
    given = profile.quantity(path).prior_sigma
    section, _, leaf = path.rpartition(".")
    if given is not None:
        return given
    return EFFICIENCY_TERMS[leaf].prior_sigma if section == "efficiency" else LINK_NUMBERS.get(leaf, HOST_SIGMA)


def _upper(profile: Profile, path: str) -> float:
    """Most that a number's logarithm can grow: a share of a peak ends at all of it."""
    leaf, value = path.rpartition(".")[2], profile.quantity(path).value
    most = EFFICIENCY_TERMS[leaf].upper if leaf in EFFICIENCY_TERMS else 1.0 if leaf == "efficiency" else 1e9
    return float(np.log(most / value))


def _nested(profile: Profile, values: dict[str, float]) -> dict[str, Any]:
    overlay: dict[str, Any] = {"profile": profile.name}
    for path, value in values.items():
        section, _, leaf = path.rpartition(".")
        overlay.setdefault(section, {})[leaf] = rounded(float(value), 9)
    return overlay


def _residuals(points: Sequence[Measurement], profile: Profile, probe: ProbeFile) -> Floats:
    predicted = predictions_s(points, probed_machine(profile, probe))
    return np.array([np.log(s / point.median) for s, point in zip(predicted, points, strict=True)], dtype=np.float64)


def _weights(points: Sequence[Measurement]) -> Floats:
    """Of each measurement: its share of a step's time in its kind, against the mean of those that plans need.

    What no plan needs counts little beside what they do; messages of all sizes draw the curve of a link.
    """
    seconds = np.array([point.count * point.median for point in points], dtype=np.float64)
    weights = np.ones(len(points))
    for kind in {point.kind for point in points}:
        inside = np.array([point.kind == kind for point in points])
        needed = inside & (seconds > 0.0)
        if needed.any():
            share = seconds / seconds[needed].mean()
            weights[inside] = np.clip(share[inside], LEAST_WEIGHT, MOST_WEIGHT)
            if kind != "collective":
                weights[inside & ~needed] = UNNEEDED_WEIGHT
    return weights


def _scatter(kinds: Sequence[str], weights: Floats, residuals: Floats) -> Floats:
    """Distance of the measurements of each one's kind from the curve: what the curve can't follow is no evidence."""
    scatter = np.zeros(len(kinds))
    for kind in set(kinds):
        inside = np.array([each == kind for each in kinds])
        scatter[inside] = np.sqrt(np.average(residuals[inside] ** 2, weights=weights[inside]))
    return scatter


def _change(profile: Profile, fitted: Fit, number: int, path: str, old: float, upper: float) -> Change:
    moved = float(fitted.log_factors[number])
    touched = int(np.count_nonzero(np.abs(fitted.jacobian[:, number]) > 1e-6))
    sigmas = moved / fitted.parameters[number].prior_sigma
    unit = profile.quantity(path).unit
    return Change(path, unit, float(old), float(old * np.exp(moved)), sigmas, touched, moved > upper - 1e-3)


def _direct(profile: Profile, probe: ProbeFile) -> list[Change]:
    """Numbers that are measured as they are: of the host, its link and the runtime's memory."""
    by_kind: dict[str, list[Measurement]] = {}
    for point in probe.measurements:
        by_kind.setdefault(point.kind, []).append(point)
    measured: dict[str, tuple[float, int]] = {}
    if launches := by_kind.get("launch"):
        issue = float(np.median([each.median for each in launches])) * 1e6
        if probe.device.asynchronous:
            measured["host.issue_us_per_op"] = issue, len(launches)
        else:  # who computes also issues: an operator's fixed cost
            measured["fixed_costs.cube_op_us"] = measured["fixed_costs.vector_op_us"] = issue, len(launches)
    if waits := by_kind.get("synchronisation"):
        wait = float(np.median([each.median for each in waits])) * 1e6
        measured["host.sync_us"] = (wait if probe.device.asynchronous else 0.0), len(waits)
    if copies := by_kind.get("host_link"):
        rates = [each.size("bytes") / each.median / 1e9 for each in copies]
        measured["host.host_link_gb_per_s"] = max(rates), len(copies)
    if probe.device.runtime_bytes > 0.0:
        measured["memory.runtime_gib"] = probe.device.runtime_bytes / 2**30, 1
    changes = []
    for path, (new, count) in measured.items():
        old = profile.quantity(path).value
        sigmas = float(np.log(new / old)) / HOST_SIGMA if old > 0.0 and new > 0.0 else 0.0
        changes.append(Change(path, profile.quantity(path).unit, old, new, sigmas, count))
    return changes


def _agreements(points: Sequence[Measurement], before: Floats, after: Floats) -> tuple[Agreement, ...]:
    agreements = []
    for kind in dict.fromkeys(point.kind for point in points):
        inside = np.array([point.kind == kind for point in points])
        agreements.append(
            Agreement(
                kind,
                int(inside.sum()),
                float(np.median(np.abs(before[inside]))),
                float(np.median(np.abs(after[inside]))),
                float(after[inside].mean()),
            )
        )
    return tuple(agreements)
