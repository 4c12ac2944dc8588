"""Figures of the inner search: one pipeline to fill, and the articles' greedy method on random devices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.stages.inner_problem import FixedPiece, InnerProblem, LayerClass, MemoryOption, chunk_times
from autodeploy.search.branch_and_bound.path_bound import PathLibrary, path_bound_s
from autodeploy.search.choices.effort import DEFAULT, FAST
from autodeploy.search.placement.solve import greedy_options, solve
from autodeploy.search.placement.stage_choices import StageChoices
from cost_models.schedule import in_flight_moments
from tests.support.figures import report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.search.choices.effort import Effort

GIB = float(2**30)
EFFORTS: dict[tuple[int, str], Effort] = {(1, "default"): DEFAULT, (2, "fast"): FAST, (2, "default"): DEFAULT}
DEVICES = 600
RUNS = 5  # of what takes less than a second: the fastest counts, whatever else the machine does only adds time
# Tensors of one layer and micro batch at random sizes: eight that can be recomputed, of which two hold others too, and
# four that can be swapped, each of them a rival of a recomputed one.
RIVALS = {"r6": ("r0", "r1"), "r7": ("r2", "r3"), "s0": ("r0", "r6"), "s1": ("r2", "r7"), "s2": ("r4",), "s3": ("r5",)}


def options(rng: np.random.Generator, layer_s: float, kept_bytes: float) -> tuple[MemoryOption, ...]:
    """Eight recompute and four swap options of one layer class."""
    share = rng.dirichlet(np.full(6, 2.0)) * 0.8 * kept_bytes
    saved = dict(zip((f"r{i}" for i in range(6)), share.tolist(), strict=True))
    saved |= {"r6": saved["r0"] + saved["r1"], "r7": saved["r2"] + saved["r3"]}
    saved |= {"s0": saved["r0"], "s1": saved["r2"], "s2": saved["r4"], "s3": saved["r5"]}
    found = []
    for name, freed in saved.items():
        swap = name.startswith("s")
        seconds = 0.0 if swap else layer_s * float(rng.uniform(0.05, 1.2)) * freed / kept_bytes
        rivals = tuple(b for b in saved if b != name and (b in RIVALS.get(name, ()) or name in RIVALS.get(b, ())))
        kind = "swap" if swap else "recompute"
        found.append(MemoryOption(name, kind, 0, freed, seconds, freed if swap else 0.0, rivals))  # type: ignore[arg-type]
    return tuple(found)


def device(seed: int) -> InnerProblem:
    """One stage with its layers given: 3 to 6 layers, 2 to 16 micro batches in flight, 30 to 62 GiB."""
    rng = np.random.default_rng(seed)
    layers, held = int(rng.integers(3, 7)), int(rng.integers(2, 17))
    forward, kept = float(rng.uniform(0.01, 0.04)), float(rng.uniform(0.4, 1.6)) * GIB
    layer = LayerClass("moe", forward, 2.0 * forward, float(rng.uniform(2.0, 5.0)) * GIB, kept)
    return InnerProblem(
        "1f1b",
        1,
        1,
        held,
        (layer,),
        (layers,),
        options(rng, 3.0 * forward, kept),
        (),
        np.full((1, 1), float(held)),
        float(rng.uniform(30.0, 62.0)) * GIB,
        np.full(1, 2.0 * GIB),
        22.0 * GIB,
    )


def greedy_devices(devices: int = DEVICES) -> None:
    """Device time with our options against add-then-remove, on devices where both find some that fit."""
    worse, gains, needed, missed = 0, [], 0, 0
    for seed in range(devices):
        problem = device(seed)
        layout = np.array([[[problem.layers[0]]]], dtype=np.int64)
        applied, fits = StageChoices(problem).complete(layout[None])
        baseline = greedy_options(problem, layout)
        missed += int(bool(fits[0]) and baseline is None)
        if not fits[0] or baseline is None or not baseline.any():
            continue
        needed += 1
        ours, theirs = (
            float((times.forward_s + times.backward_s).sum())
            for times in (chunk_times(problem, layout[None], counts) for counts in (applied, baseline[None]))
        )
        worse += ours > theirs * (1.0 + 1e-12)
        gains.append(100.0 * (theirs / ours - 1.0))
    case = f"{devices} random devices, 8 + 4 options"
    report("greedy_devices_that_save", needed, "devices", case)
    report("greedy_finds_nothing_where_we_fit", missed, "devices", case)
    report("slower_than_the_greedy", worse, "devices", case)
    report("greedy_is_slower_mean", float(np.mean(gains)), "%", case)
    report("greedy_is_slower_p95", float(np.percentile(gains, 95)), "%", case)
    report("greedy_is_slower_most", float(np.max(gains)), "%", case)


def pipeline(vpp: int) -> InnerProblem:
    """61 layers, the first three dense, on 16 stages with head and prediction module: DeepSeek-V3's shape."""
    rng = np.random.default_rng(7)
    dense, moe = (
        LayerClass("dense", 0.010, 0.020, 1.2 * GIB, 0.30 * GIB, 0.01),
        LayerClass("moe", 0.024, 0.046, 4.4 * GIB, 0.58 * GIB, 0.02),
    )
    schedule = "1f1b" if vpp == 1 else "interleaved"
    mine = tuple(option._replace(layer_class=1) for option in options(rng, 0.070, moe.activation_bytes))
    last = (15, vpp - 1)
    return InnerProblem(
        schedule,
        16,
        vpp,
        128,
        (dense, moe),
        (3, 58),
        mine,
        (
            FixedPiece(LayerClass("embedding", 0.001, 0.002, 0.9 * GIB, 0.05 * GIB), 0, 0),
            FixedPiece(LayerClass("head", 0.012, 0.020, 0.9 * GIB, 0.6 * GIB), *last),
            FixedPiece(LayerClass("mtp", 0.036, 0.066, 5.0 * GIB, 1.2 * GIB), *last),
        ),
        in_flight_moments(schedule, 16, vpp, 128).astype(np.float64),
        46.0 * GIB,
        np.full(16, 2.0 * GIB),
        22.0 * GIB,
        p2p_s=0.0005 if vpp > 1 else 0.0,
        blocking_p2p_s=0.0005 if vpp == 1 else 0.0,
        min_layers_per_chunk=1,
    )


def inner_problems(efforts: Mapping[tuple[int, str], Effort] = EFFORTS, runs: int = RUNS, rounds: int = 40) -> None:
    """Seconds and gap of the inner search on one pipeline.

    Parameters
    ----------
    efforts : by chunks of a stage and name. rounds : of the bound over paths.
    """
    for (vpp, name), effort in efforts.items():
        case = f"PP16 VPP{vpp}, 61 layers and MTP, 8 + 4 options, {name}"
        problem, taken = pipeline(vpp), []
        for _ in range(runs if vpp == 1 else 1):
            started = time.perf_counter()
            solution = solve(problem, effort=effort)
            taken.append(time.perf_counter() - started)
        report("inner_seconds", min(taken), "s", case)
        report("inner_gap", solution.gap, "fraction", case)
    started = time.perf_counter()
    bound = path_bound_s(pipeline(2), PathLibrary(), rounds=rounds).bound_s
    report("path_bound_seconds", time.perf_counter() - started, "s", "PP16 VPP2, 61 layers and MTP")
    report("path_bound_gap", 1.0 - bound / solution.step_s, "fraction", "PP16 VPP2, 61 layers and MTP")
