"""Benchmarks of a cluster as efficiencies: the curves that the formulas read, fitted to the measured points.

A curve has few parameters, so that a handful of shapes or sizes is enough; priors keep what the points don't tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.fit import as_assumed, differences, fit, link_parameters
from autodeploy.calibration.overlays import overlay_numbers
from cost_models.all_to_all import flat_s
from cost_models.collectives import all_gather_s, all_reduce_s, ring_pass_s
from cost_models.compute import ComputeRates, gemm_s
from hardware_profiles.topology import cluster_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.calibration.fit import FitParameter
    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.specs.measured_run import CollectivePoint, GemmPoint
    from cost_models.arrays import Floats
    from cost_models.collectives import Group
    from hardware_profiles.profile import Profile

NOISE = 0.05  # log standard deviation of one point: repeats, clocks, and what three numbers can't follow
LINK_SIGMA = 0.50
GEMM_NAMES = ("gemm_peak_fraction", "gemm_k_half", "gemm_mn_half")


def gemm_overlay(profile: Profile, rates: ComputeRates, points: Sequence[GemmPoint], source: str) -> dict[str, Any]:
    """The GEMM curve through measured shapes.

    rates : of the device and number format that was measured, from `profile`.
    """
    m, n, k, seconds = (np.array([getattr(p, f) for p in points], dtype=np.float64) for f in ("m", "n", "k", "seconds"))
    base = np.array([profile.efficiency[name] for name in GEMM_NAMES])
    parameters = tuple(as_assumed(name, name) for name in GEMM_NAMES)

    def residuals(log_factors: Floats) -> Floats:
        fraction, k_half, mn_half = base * np.exp(log_factors)
        curve = replace(rates, gemm_fraction=fraction, gemm_k_half=k_half, gemm_mn_half=mn_half)
        return np.asarray(np.log(gemm_s(m, n, k, curve) / seconds))

    return _through(profile, parameters, residuals, f"{source}: {len(points)} shapes", {"m": m, "n": n, "k": k})


def collective_overlay(
    profile: Profile, machine: Machine, points: Sequence[CollectivePoint], source: str
) -> dict[str, Any]:
    """Efficiency of collectives on each tier that the measured groups cross.

    machine : of `profile`, whose tiers and fixed costs the formulas read.
    """
    nodes = -(-max(point.ranks for point in points) // profile.ranks_per_node)
    whole = replace(machine, topology=cluster_topology(profile, num_npus=nodes * profile.npus_per_node))
    groups = [whole.group(1, point.ranks) for point in points]
    crossed = [t for t in range(len(machine.tiers)) if any(float(g.fan_out[t]) > 1.0 for g in groups)]
    parameters = link_parameters((machine.tiers[t] for t in crossed), LINK_SIGMA)
    seconds = np.array([p.seconds for p in points], dtype=np.float64)

    def residuals(log_factors: Floats) -> Floats:
        scaled = dict(zip(crossed, np.exp(log_factors), strict=True))
        tiers = tuple(replace(t, efficiency=t.efficiency * scaled.get(i, 1.0)) for i, t in enumerate(machine.tiers))
        with_tiers = replace(machine, tiers=tiers)
        predicted = [collective_s(p.op, p.message_bytes, g, with_tiers) for p, g in zip(points, groups, strict=True)]
        return np.asarray(np.log(np.array(predicted) / seconds))

    over = {"ranks": [p.ranks for p in points], "bytes": [p.message_bytes for p in points]}
    return _through(profile, parameters, residuals, f"{source}: {len(points)} messages", over)


def collective_s(op: str, message_bytes: float, group: Group, machine: Machine) -> float:
    """Seconds of one collective by the formulas of the cost models."""
    size, tiers, fixed = float(message_bytes), machine.tiers, machine.comm_op_s
    if op == "all_to_all":
        seconds = flat_s(size, 1.0, group, tiers, fixed)
    else:
        formulas: dict[str, Callable[..., Floats]] = {"all_reduce": all_reduce_s, "send_receive": ring_pass_s}
        seconds = formulas.get(op, all_gather_s)(size, group, tiers, fixed)
    return float(np.asarray(seconds).reshape(-1)[0])


def _through(
    profile: Profile,
    parameters: Sequence[FitParameter],
    residuals: Callable[[Floats], Floats],
    source: str,
    over: Mapping[str, Any],
) -> dict[str, Any]:
    """The overlay of a fit to points; `over`: each point on each axis of their shapes."""
    count = len(next(iter(over.values())))
    fitted = fit(parameters, differences(residuals), np.full(count, NOISE))
    source_text = f"{source}; median residual {100 * float(np.median(np.abs(fitted.residuals))):.1f} %"
    ends = {axis: [float(min(values)), float(max(values))] for axis, values in over.items()}
    numbers = overlay_numbers(profile, fitted.moved(), kind="measured", source=source_text, measured_over=ends)
    return {"profile": profile.name, **numbers}
