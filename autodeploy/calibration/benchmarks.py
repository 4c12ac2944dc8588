"""Benchmarks of a cluster as efficiencies: the curves that the formulas read, fitted to the measured points.

A curve has few parameters, so that a handful of shapes or sizes is enough; priors keep what the points don't tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.fit import Fit, fit
from autodeploy.calibration.overlay_numbers import overlay_numbers
from autodeploy.calibration.parameters import as_assumed, link_parameters
from cost_models.all_to_all import flat_s
from cost_models.collectives import Group, Tier, all_gather_s, all_reduce_s
from cost_models.compute import ComputeRates, gemm_s
from hardware_profiles.topology import cluster_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.evaluation.inputs.machine import Machine
    from autodeploy.specs.measured_run import CollectivePoint, GemmPoint
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

NOISE = 0.05  # log standard deviation of one point: repeats, clocks, and what three numbers can't follow
LINK_SIGMA = 0.50
GEMM_NAMES = ("gemm_peak_fraction", "gemm_k_half", "gemm_mn_half")


def gemm_overlay(profile: Profile, rates: ComputeRates, points: Sequence[GemmPoint], source: str) -> dict[str, Any]:
    """The GEMM curve through measured shapes.

    Parameters
    ----------
    rates : of the device and number format that was measured, from `profile`.
    """
    m, n, k, seconds = (np.array([getattr(p, f) for p in points], dtype=np.float64) for f in ("m", "n", "k", "seconds"))
    base = np.array([profile.efficiency[name] for name in GEMM_NAMES])
    parameters = tuple(as_assumed(name, name) for name in GEMM_NAMES)

    def residuals(log_factors: Floats) -> Floats:
        fraction, k_half, mn_half = base * np.exp(log_factors)
        curve = replace(rates, gemm_fraction=fraction, gemm_k_half=k_half, gemm_mn_half=mn_half)
        return np.asarray(np.log(gemm_s(m, n, k, curve) / seconds))

    found = fit(parameters, residuals, np.full(len(points), NOISE))
    over = {axis: (float(values.min()), float(values.max())) for axis, values in (("m", m), ("n", n), ("k", k))}
    return _measured(profile, found, f"{source}: {len(points)} shapes", over)


def collective_overlay(
    profile: Profile, machine: Machine, points: Sequence[CollectivePoint], source: str
) -> dict[str, Any]:
    """What collectives reach on each tier that the measured groups cross.

    Parameters
    ----------
    machine : of `profile`, whose tiers and fixed costs the formulas read.
    """
    groups = [adjacent_group(profile, point.ranks) for point in points]
    crossed = [t for t in range(len(machine.tiers)) if any(float(g.fan_out[t]) > 1.0 for g in groups)]
    parameters = link_parameters((machine.tiers[t].name for t in crossed), LINK_SIGMA)
    seconds = np.array([p.seconds for p in points], dtype=np.float64)

    def residuals(log_factors: Floats) -> Floats:
        scaled = dict(zip(crossed, np.exp(log_factors), strict=True))
        tiers = tuple(replace(t, efficiency=t.efficiency * scaled.get(i, 1.0)) for i, t in enumerate(machine.tiers))
        predicted = [collective_s(p, g, tiers, machine) for p, g in zip(points, groups, strict=True)]
        return np.asarray(np.log(np.array(predicted) / seconds))

    found = fit(parameters, residuals, np.full(len(points), NOISE))
    sizes = [p.message_bytes for p in points]
    ranks = [p.ranks for p in points]
    over = {"ranks": (float(min(ranks)), float(max(ranks))), "bytes": (float(min(sizes)), float(max(sizes)))}
    return _measured(profile, found, f"{source}: {len(points)} messages", over)


def adjacent_group(profile: Profile, ranks: int) -> Group:
    """The group of the first `ranks` ranks of a cluster of whole nodes."""
    nodes = -(-ranks // profile.ranks_per_node)
    topology = cluster_topology(profile, num_npus=nodes * profile.npus_per_node)
    placed = topology.place(np.array([1]), np.array([ranks]))
    fan_out = placed.fan_out.astype(np.float64)
    return Group(placed.size.astype(np.float64)[0], tuple(fan_out[0, t] for t in range(fan_out.shape[-1])))


def collective_s(point: CollectivePoint, group: Group, tiers: tuple[Tier, ...], machine: Machine) -> float:
    """Seconds of one collective by the formulas of the cost models."""
    size, fixed = float(point.message_bytes), machine.comm_op_s
    if point.op == "all_reduce":
        return float(all_reduce_s(size, group, tiers, fixed))
    if point.op == "all_to_all":
        return float(flat_s(size, 1.0, group, tiers, fixed))
    return float(all_gather_s(size, group, tiers, fixed))


def _measured(profile: Profile, found: Fit, source: str, over: dict[str, tuple[float, float]]) -> dict[str, Any]:
    residual = float(np.median(np.abs(found.residuals)))
    told = f"{source}; median residual {100 * residual:.1f} %"
    ends = {axis: list(each) for axis, each in over.items()}
    numbers = overlay_numbers(profile, found.moved(), kind="measured", source=told, measured_over=ends)
    return {"profile": profile.name, **numbers}
