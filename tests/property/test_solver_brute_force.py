"""On problems small enough to enumerate whole, the solver's optimum is the enumeration's, and its bound is below it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.costs.stages.inner_problem import (
    FixedPiece,
    InnerProblem,
    Ints,
    LayerClass,
    LayerPairs,
    MemoryOption,
    StartBytes,
    chunk_times,
    host_bytes,
    least_start_bytes,
    stage_bytes,
    start_bytes,
    tail_s,
)
from autodeploy.search.bounds.problem_bound import relax_bound
from autodeploy.search.choices.layouts import to_layout
from autodeploy.search.choices.memory_options import legal_options
from autodeploy.search.placement.solve import solve
from cost_models.schedule import in_flight_moments, makespan_s, operation_order
from tests.support.examples import examples

if TYPE_CHECKING:
    from autodeploy.search.placement.evaluate import InnerSolution

CASES = 220


def random_problem(seed: int) -> InnerProblem:
    """Two to four layers of up to two classes on two or three stages, up to three options, memory that may be short."""
    rng = np.random.default_rng(seed)
    schedule = ("1f1b", "1f1b", "interleaved", "adaptive_pipe", "dualpipev")[seed % 5]
    pp, vpp = (int(rng.integers(2, 4)), 1) if schedule == "1f1b" else (2, 2)
    m = int(rng.integers(3, 7)) if schedule != "interleaved" else int(rng.choice([2, 4, 6]))
    classes = tuple(
        LayerClass(
            f"c{i}",
            float(rng.uniform(1, 3)),
            float(rng.uniform(2, 5)),
            float(rng.uniform(1, 4)),
            float(rng.uniform(1, 4)),
            float(rng.uniform(0, 1)),
        )
        for i in range(int(rng.integers(1, 3)))
    )
    layers = (int(rng.integers(2, 5)),) if len(classes) == 1 else (1, int(rng.integers(1, 4)))
    options = tuple(
        MemoryOption(
            f"o{i}",
            "swap" if swap else "recompute",
            int(rng.integers(0, len(classes))),
            float(rng.uniform(0.3, 1.2)),
            0.0 if swap else float(rng.uniform(0.2, 2)),
            float(rng.uniform(0.5, 6)) if swap else 0.0,
            (f"o{i - 1}",) if i and rng.random() < 0.5 else (),
        )
        for i, swap in enumerate(rng.random(int(rng.integers(1, 4))) < 0.4)
    )
    beside_own = np.diag(np.full(len(classes), 0.5 if schedule == "adaptive_pipe" else 0.0))
    last = (0, 1) if schedule == "dualpipev" else (pp - 1, vpp - 1)
    pieces = (
        FixedPiece(LayerClass("embedding", 0.1, 0.1, 1.0, 0.1), 0, 0),
        FixedPiece(LayerClass("head", float(rng.uniform(0, 3)), float(rng.uniform(0, 3)), 1.0, 0.5), *last),
    )
    return InnerProblem(
        schedule,
        pp,
        vpp,
        m,
        classes,
        layers,
        options,
        pieces,
        in_flight_moments(schedule, pp, vpp, m).astype(np.float64),
        limit_bytes=float(rng.uniform(10, 40)),
        fixed_bytes=rng.uniform(0, 2, pp),
        host_link_bytes_per_s=float(rng.uniform(0.5, 3)),
        host_bytes_per_device=float(rng.choice([np.inf, 12.0])),
        p2p_s=0.1 if vpp > 1 else 0.0,
        pairs_of=LayerPairs(beside_own, beside_own, np.zeros_like(beside_own)),
        tail_s=0.3,
        uniform_options=bool(rng.random() < 0.3),
        min_layers_per_chunk=int(vpp == 1 and sum(layers) >= pp and rng.random() < 0.5),
    )


def everything(problem: InnerProblem) -> tuple[Ints, Ints]:
    """Every legal pair of layout and option counts."""
    parts, total, least = len(problem.parts), problem.total_layers, problem.min_layers_per_chunk
    sizes = [s for s in itertools.product(range(least, total + 1), repeat=parts) if sum(s) == total]
    if problem.chunk_starts:
        sizes = [s for s in sizes if set(itertools.accumulate(s[:-1])) <= set(problem.chunk_starts)]
    layouts, counts = [], []
    of_stage: dict[tuple[int, bytes], Ints] = {}
    for layout in to_layout(problem, np.array(sizes, dtype=np.int64)):
        # A stage's counts are legal or not, and fit or not, whatever the other stages hold and do.
        for p in range(problem.pp):
            if (p, layout[p].tobytes()) not in of_stage:
                of_stage[p, layout[p].tobytes()] = everything_of_stage(problem, layout, p)
        alone = [of_stage[p, layout[p].tobytes()] for p in range(problem.pp)]
        # Every choice of one stage with every choice of the others.
        chosen = np.indices([len(choices) for choices in alone]).reshape(problem.pp, -1)
        counts.append(np.stack([choices[at] for choices, at in zip(alone, chosen, strict=True)], axis=1))
        layouts.append(np.repeat(layout[None], chosen.shape[1], axis=0))
    if not any(map(len, layouts)):
        return np.zeros((0,)), np.zeros((0,))
    layout, applied = np.concatenate(layouts), np.concatenate(counts)
    keep = legal_options(problem, layout, applied)
    return layout[keep], applied[keep]


def everything_of_stage(problem: InnerProblem, layout: Ints, p: int) -> Ints:
    """Every legal choice of option counts of one stage that fits its layers [choices, options]."""
    held = layout[p].sum(axis=0)
    ranges = [range(held[o.layer_class] + 1) for o in problem.options]
    choices = np.array(list(itertools.product(*ranges)), dtype=np.int64)
    applied = np.zeros((len(choices), problem.pp, len(problem.options)), dtype=np.int64)
    applied[:, p] = choices
    many = np.repeat(layout[None], len(choices), axis=0)
    good = legal_options(replace(problem, uniform_options=False), many, applied)
    good &= stage_bytes(problem, many, applied)[:, p] <= problem.limit_bytes
    good &= host_bytes(problem, many, applied)[:, p] <= problem.host_bytes_per_device
    return choices[good]


def best_step_s(problem: InnerProblem) -> float:
    """Least simulated step time over everything; inf when nothing fits."""
    layout, applied = everything(problem)
    if not len(layout):
        return float("inf")
    times = chunk_times(problem, layout, applied)
    order = operation_order(problem.schedule, problem.pp, problem.vpp, problem.micro_batches)
    makespan = makespan_s(order, times.forward_s, times.backward_s, times.hidden_pair_s, problem.p2p_s)
    return float((makespan + tail_s(problem, layout)).min())


def hold_to_brute_force(problem: InnerProblem, seed: int) -> InnerSolution:
    """The solver's answer, which is no better than everything and, where it says so, as good."""
    truth, solution = best_step_s(problem), solve(problem)
    assert relax_bound(problem) <= truth * (1 + 1e-9), seed
    assert solution.bound_s <= truth * (1 + 1e-9), seed
    if not np.isfinite(truth):
        assert solution.plan is None, seed
        return solution
    assert solution.status != "infeasible", seed
    if solution.plan is None:
        return solution
    layout, applied = solution.plan.layout[None], solution.plan.applied[None]
    assert solution.step_s >= truth * (1 - 1e-9), seed
    assert (stage_bytes(problem, layout, applied) <= problem.limit_bytes).all()
    assert legal_options(problem, layout, applied).all(), seed
    if solution.status == "optimal":
        assert solution.step_s == pytest.approx(truth, rel=2e-6), seed
    elif problem.vpp == 1 and not problem.uniform_options:
        pytest.fail(f"seed {seed}: one chunk a stage must be proven: {solution.status} {solution.gap}")
    return solution


@pytest.mark.parametrize("block", range(min(examples(5), 10)))
def test_solver_matches_brute_force(block: int) -> None:
    seeds = range(block * CASES // 10, (block + 1) * CASES // 10)
    found = [hold_to_brute_force(random_problem(seed), seed) for seed in seeds]
    assert sum(solution.status == "optimal" and solution.plan is not None for solution in found) >= 8


def with_start(problem: InnerProblem, seed: int) -> InnerProblem:
    """The problem with a start that takes more than its step on some layouts, at both of its moments or at one."""
    rng = np.random.default_rng(seed)
    layers = problem.limit_bytes * rng.uniform(0.1, 0.6, (2, len(problem.classes)))
    pieces = problem.limit_bytes * rng.uniform(0.0, 0.3, (2, len(problem.pieces)))
    return replace(problem, start=StartBytes(layers, pieces, float(rng.choice([0.0, 5.0]))))


def test_a_layout_whose_start_takes_more_than_the_card_has_is_none() -> None:
    decided = 0
    for seed in range(100):
        free = replace(random_problem(seed), limit_bytes=80.0)
        problem = with_start(free, seed)
        solution = hold_to_brute_force(problem, seed)
        decided += solution.plan is not None and best_step_s(free) < best_step_s(problem)
        if solution.plan is not None:
            starts = start_bytes(problem, solution.plan.layout[None])
            assert least_start_bytes(problem) <= starts.max() <= problem.limit_bytes
    assert decided >= 5  # where the start decides about the plan


def test_chunks_begin_where_they_may() -> None:
    kept = 0
    for seed in [*range(0, 150, 5), *range(1, 150, 5)]:  # those with one chunk a stage
        free = random_problem(seed)
        rng = np.random.default_rng(seed)
        layers = tuple(count + 2 for count in free.layers)
        begins = rng.choice(np.arange(1, sum(layers)), int(rng.integers(free.pp - 1, free.pp + 1)), replace=False)
        starts = (0, *sorted(begins.tolist()))
        problem = replace(free, layers=layers, min_layers_per_chunk=1, chunk_starts=starts, limit_bytes=60.0)
        solution = hold_to_brute_force(problem, seed)
        if solution.plan is not None:
            kept += 1
            assert set(solution.plan.layout.sum(axis=(1, 2)).cumsum()[:-1].tolist()) <= set(starts), seed
    assert kept >= 30


def test_one_stage_with_pairs_is_never_faster_than_its_bound() -> None:
    proven = compared = 0
    for seed in range(20_003, 20_503, 5):
        spread = random_problem(seed)
        assert spread.pairs
        problem = replace(
            spread,
            pp=1,
            vpp=1,
            pieces=tuple(piece._replace(stage=0, chunk=0) for piece in spread.pieces),
            in_flight=in_flight_moments("adaptive_pipe", 1, 1, spread.micro_batches).astype(np.float64),
            limit_bytes=0.7 * spread.limit_bytes,
            fixed_bytes=spread.fixed_bytes[:1],
            uniform_options=False,
        )
        truth, solution = best_step_s(problem), solve(problem)
        assert solution.bound_s <= truth * (1 + 1e-9), seed
        assert (solution.plan is None) == (not np.isfinite(truth)), seed
        compared += bool(np.isfinite(truth) and solution.plan is not None and solution.plan.applied.any())
        proven += bool(np.isfinite(truth) and solution.status == "optimal" and solution.step_s <= truth * (1 + 2e-6))
    assert compared >= 10, "memory is short"
    assert proven >= 25
