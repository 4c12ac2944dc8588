"""The figures of the explanation, drawn from the formulas with round numbers, and the picture of the rooms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models import all_to_all, collectives, compute, hbm, swap
from cost_models.collectives import Group, Tier
from cost_models.schedule import closed_form_s, fused_pairs, in_flight_closed
from docs.line_chart import Chart, svg
from docs.rooms_picture import picture

if TYPE_CHECKING:
    from collections.abc import Sequence

# Round numbers near an Ascend 910B2: the shapes of the curves matter here, not the values.
RATES = compute.ComputeRates(
    peak_flops=354e12,
    hbm_bytes_per_s=1.6e12,
    gemm_fraction=0.9,
    gemm_k_half=416.0,
    gemm_mn_half=20.0,
    grouped_gemm=0.75,
    attention_forward=0.6,
    attention_backward=0.5,
    attention_head_dim_half=64.0,
    attention_seq_half=512.0,
    hbm_fraction=0.8,
    movement_fraction=0.2,
    cube_op_s=5e-6,
    vector_op_s=2e-6,
)
MESH = Tier("full mesh", bytes_per_s=196e9, links=7, latency_s=1e-6, efficiency=0.65)
ROCE = Tier("RoCE", bytes_per_s=25e9, links=0, latency_s=2e-6, efficiency=0.8)


def figures() -> dict[str, str]:
    """SVG text by name."""
    charts = {
        "gemm_efficiency": _gemm(),
        "mesh_rate": _mesh(),
        "all_to_all": _exchange(),
        "state_bytes": _states(),
        "in_flight": _in_flight(),
        "bubble": _bubble(),
        "paired_share": _paired_share(),
        "swap_window": _swap(),
    }
    return {name: svg(chart) for name, chart in charts.items()} | {"rooms": picture()}


def _gemm() -> Chart:
    depth = [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    lines: dict[str, Sequence[float]] = {
        f"m = n = {width:,}": compute.gemm_efficiency(width, width, np.array(depth, dtype=np.float64), RATES).tolist()
        for width in (256, 1024, 8192)
    }
    return Chart("Matrix multiplication: depth and width", "k (elements)", "share of the peak", depth, lines, y_max=1.0)


def _mesh() -> Chart:
    size = [2, 3, 4, 5, 6, 7, 8]
    ranks = np.array(size, dtype=np.float64)
    switch = Tier("switch", bytes_per_s=196e9, links=0, latency_s=1e-6, efficiency=0.65)
    lines: dict[str, Sequence[float]] = {
        tier.name: (collectives.tier_rate(tier, ranks) * np.ones_like(ranks) / 1e9).tolist() for tier in (switch, MESH)
    }
    return Chart("A small group on a full mesh has few links", "ranks in the group", "GB/s a rank", size, lines, False)


def _exchange() -> Chart:
    nodes = [2, 4, 8, 16]
    over = np.array(nodes, dtype=np.float64)
    group = Group(8.0 * over, (np.full_like(over, 8.0), over))
    token_bytes, choices = 4096 * 7168 * 2.0, 8
    flat = all_to_all.flat_s(token_bytes, choices, group, (MESH, ROCE), 0.0)
    once = all_to_all.flat_s(token_bytes, choices, group, (MESH, ROCE), 0.0, all_to_all.Routing(deduplicate=True))
    two_step = all_to_all.hierarchical_s(token_bytes, choices, group, (MESH, ROCE), 0.0)
    lines: dict[str, Sequence[float]] = {
        "flat": (1e3 * flat).tolist(),
        "flat, deduplicated": (1e3 * once).tolist(),
        "hierarchical": (1e3 * two_step).tolist(),
    }
    return Chart("Dispatch of 4,096 tokens to 8 experts", "nodes in the expert group", "ms", nodes, lines)


def _states() -> Chart:
    shards = [1, 2, 4, 8, 16, 32, 64, 128]
    ranks = np.array(shards, dtype=np.float64)
    lines: dict[str, Sequence[float]] = {
        "no distributed optimizer": (hbm.state_bytes(ranks, distributed_optimizer=False).total + 0.0 * ranks).tolist(),
        "distributed optimizer": hbm.state_bytes(ranks, distributed_optimizer=True).total.tolist(),
        "  + reuse-fp32-param": hbm.state_bytes(
            ranks, distributed_optimizer=True, reuse_fp32_param=True
        ).total.tolist(),
        "  + swap-optimizer": hbm.state_bytes(ranks, distributed_optimizer=True, swap_optimizer=True).total.tolist(),
    }
    return Chart("Weights, gradients and states", "ranks that share the states", "bytes a parameter", shards, lines)


def _in_flight() -> Chart:
    pp = 8
    stages = np.arange(pp)
    kinds = (("1f1b", 1), ("interleaved", 2), ("adaptive_pipe", 2), ("dualpipev", 2))
    lines: dict[str, Sequence[float]] = {
        kind: (in_flight_closed(kind, stages, np.array(pp), np.array(vpp), np.array(64)) / vpp).tolist()
        for kind, vpp in kinds
    }
    title = "Micro batches in flight: 8 stages, 64 micro batches"
    return Chart(title, "stage", "whole micro batches", stages.tolist(), lines, log2=False)


def _bubble() -> Chart:
    micro_batches = [8, 16, 32, 64, 128, 256]
    lines: dict[str, Sequence[float]] = {}
    for kind, vpp in (("1f1b", 1), ("interleaved", 2), ("interleaved", 4)):
        forward = np.full((1, 8, vpp), 1.0 / vpp)
        shares = []
        for count in micro_batches:
            form = closed_form_s(kind, forward, 2.0 * forward, count)
            shares.append(100.0 * float(form.bubble_s[0] / form.makespan_s[0]))
        lines[f"{kind}, vpp {vpp}"] = shares
    return Chart("Idle share of 8 equal stages", "micro batches", "% of the makespan", micro_batches, lines)


def _paired_share() -> Chart:
    pp, micro_batches = 16, [32, 48, 64, 96, 128, 192, 256, 512]
    stages = np.arange(pp)
    lines: dict[str, Sequence[float]] = {}
    for kind, vpp in (("adaptive_pipe", 2), ("adaptive_pipe", 4), ("dualpipev", 2)):
        ranks, chunks = np.full(pp, pp), np.full(pp, vpp)
        paired = [fused_pairs(kind, stages, ranks, chunks, np.full(pp, count)).mean() for count in micro_batches]
        shares = [100.0 * float(pairs) / (count * vpp) for pairs, count in zip(paired, micro_batches, strict=True)]
        lines[f"{kind}, vpp {vpp}"] = shares
    return Chart("Forwards in a pair: 16 stages", "micro batches", "% of all forwards", micro_batches, lines)


def _swap() -> Chart:
    mib = [64, 128, 256, 512, 1024, 2048]
    sizes = np.array(mib, dtype=np.float64) * hbm.MIB
    lines: dict[str, Sequence[float]] = {
        f"window {window} ms": (1e3 * swap.exposed_swap_s(sizes, 24e9, window / 1e3)).tolist() for window in (5, 20, 40)
    }
    return Chart("A swap is free while its window covers it", "MiB in one direction, 24 GB/s", "exposed ms", mib, lines)
