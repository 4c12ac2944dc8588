"""The inner search: layouts, options, statuses, cancelling, repeatability."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from autodeploy.costs.stages.inner_problem import FixedPiece, InnerProblem, LayerClass, MemoryOption, stage_bytes
from autodeploy.search.bounds.problem_bound import batch_of, relax_bound
from autodeploy.search.bounds.stage_bound import _counts, _time_rows
from autodeploy.search.choices.effort import DEFAULT, FAST
from autodeploy.search.choices.layouts import most_layers_per_chunk, templates, to_layout, to_sizes
from autodeploy.search.choices.memory_options import legal_options
from autodeploy.search.placement.evaluate import Evaluator
from autodeploy.search.placement.master import _fillings
from autodeploy.search.placement.solve import best_template, greedy, is_free, solve
from autodeploy.search.placement.stage_choices import nested_frontier
from cost_models.schedule import in_flight_moments
from tests.support.cpu_time import least_cpu_s

DENSE = LayerClass("dense", 0.010, 0.020, 1.2, 0.30, 0.01)
MOE = LayerClass("moe", 0.024, 0.046, 7.4, 0.58, 0.02)
HEAD = FixedPiece(LayerClass("head", 0.012, 0.020, 2.0, 0.6), 3, 0)
OPTIONS = (
    MemoryOption("norm", "recompute", 1, 0.02, 0.0003, 0.0, ("full",)),
    MemoryOption("activation", "recompute", 1, 0.10, 0.0008, 0.0, ("full",)),
    MemoryOption("permute", "swap", 1, 0.05, 0.0, 0.05, ("full",)),
    MemoryOption("full", "recompute", 1, 0.54, 0.024),
)


def problem(**changes: object) -> InnerProblem:
    schedule, vpp = changes.get("schedule", "1f1b"), changes.get("vpp", 1)
    base = InnerProblem(
        "1f1b",
        4,
        1,
        16,
        (DENSE, MOE),
        (2, 11),
        OPTIONS,
        (HEAD._replace(chunk=int(vpp) - 1),),  # type: ignore[call-overload]
        in_flight_moments(schedule, 4, vpp, 16).astype(np.float64),
        30.0,
        np.full(4, 2.0),
        25.0,  # type: ignore[arg-type]
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_one_chunk_a_stage_is_proven_optimal() -> None:
    solution = solve(problem())
    assert solution.status == "optimal"
    assert solution.gap <= 1e-6
    assert solution.plan is not None
    assert solution.plan.layout.sum(axis=(0, 1)).tolist() == [2, 11]
    assert (stage_bytes(problem(), solution.plan.layout[None], solution.plan.applied[None]) <= 30.0).all()
    assert legal_options(problem(), solution.plan.layout[None], solution.plan.applied[None]).all()


def test_more_room_is_of_no_use_where_the_fastest_template_fits() -> None:
    roomy = problem(limit_bytes=1e3)
    free = best_template(roomy).plan
    assert free is not None
    assert is_free(roomy, free)
    slow = Evaluator(roomy).plan(to_layout(roomy, np.array([[1, 1, 1, 10]]))[0], np.zeros_like(free.applied))
    assert not is_free(roomy, slow)


def test_the_greedy_is_never_better() -> None:
    for limit in (35.0, 36.0, 37.0, 38.0):
        case = problem(limit_bytes=limit)
        solution, evaluator = solve(case), Evaluator(case)
        baseline = greedy(evaluator, to_layout(case, templates(case)))
        assert baseline is not None
        assert solution.step_s <= baseline.step_s
        assert (stage_bytes(case, baseline.layout[None], baseline.applied[None]) <= limit).all()
        for used in np.argwhere(baseline.applied):
            less = baseline.applied.copy()
            less[tuple(used)] -= 1
            assert (stage_bytes(case, baseline.layout[None], less[None]) > limit).any(), "the greedy keeps no more"


def test_what_cannot_fit_is_infeasible() -> None:
    solution = solve(problem(limit_bytes=12.0))
    assert solution.status == "infeasible"
    assert solution.plan is None
    assert relax_bound(problem(limit_bytes=12.0)) == float("inf")


def test_more_memory_never_hurts() -> None:
    steps = [solve(problem(limit_bytes=limit)).step_s for limit in (27.0, 29.0, 32.0, 50.0)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(steps))


def test_uniform_options_are_all_or_nothing() -> None:
    case = problem(uniform_options=True, limit_bytes=27.0)
    solution = solve(case)
    assert solution.plan is not None
    totals = solution.plan.layout.sum(axis=1)[:, 1]
    for index in range(len(OPTIONS)):
        assert solution.plan.applied[:, index].tolist() in ([0, 0, 0, 0], totals.tolist())
    assert solution.step_s >= solve(problem(limit_bytes=27.0)).step_s * (1 - 1e-9)


@pytest.mark.parametrize("schedule", ["interleaved", "adaptive_pipe", "dualpipev"])
def test_two_chunks_a_stage(schedule: str) -> None:
    case = problem(schedule=schedule, vpp=2, limit_bytes=36.0, min_layers_per_chunk=1)
    if schedule == "dualpipev":
        case = replace(case, pieces=(HEAD._replace(stage=0, chunk=1),))
    solution = solve(case, effort=FAST)
    assert solution.status in ("optimal", "feasible")
    assert solution.plan is not None
    assert (solution.plan.layout.sum(axis=2) >= 1).all()
    assert solution.bound_s <= solution.step_s
    assert relax_bound(case) <= solution.bound_s * (1 + 1e-12)
    sizes = to_sizes(case, solution.plan.layout)
    assert (to_layout(case, sizes[None])[0] == solution.plan.layout).all(), "layers follow the model's order"


def test_equal_calls_give_equal_answers() -> None:
    case = problem(schedule="interleaved", vpp=2, limit_bytes=34.0)
    first, second = solve(case, effort=FAST), solve(case, effort=FAST)
    assert first.plan is not None
    assert second.plan is not None
    assert (first.plan.layout == second.plan.layout).all()
    assert (first.step_s, first.bound_s) == (second.step_s, second.bound_s)
    # The last bits of CP-SAT's deterministic seconds differ from run to run on a busy machine.
    assert first.deterministic_work == pytest.approx(second.deterministic_work, rel=1e-12)


def test_cancel_returns_the_incumbent_at_once() -> None:
    def cancelled() -> None:
        solution = solve(problem(schedule="interleaved", vpp=2), effort=DEFAULT, should_cancel=lambda: True)
        assert solution.plan is not None
        assert solution.status in ("cancelled", "optimal")

    assert least_cpu_s(cancelled, limit_s=1.0) < 1.0


def test_a_known_better_plan_ends_the_search() -> None:
    solution = solve(problem(), upper_bound_s=0.1)
    assert solution.bound_s >= 0.1
    assert solution.deterministic_work == 0.0


def test_a_hint_is_taken() -> None:
    best = solve(problem())
    assert best.plan is not None
    again = solve(problem(), effort=replace(FAST, moves=0, rounds=0), hint=best.plan)
    assert again.step_s <= best.step_s


def test_importing_the_solver_leaves_ortools_alone() -> None:
    code = "import sys, autodeploy.search; sys.exit(any(m.startswith('ortools') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_time_for_the_program_counts_are_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (12.0, 26.0, 28.0, 30.0, 34.0)
    exact = [solve(problem(limit_bytes=limit)) for limit in limits]
    monkeypatch.setattr("autodeploy.search.cp_sat.stage_program.BUDGET", 0.0)
    proposed = [solve(problem(limit_bytes=limit)) for limit in limits]
    for best, found in zip(exact, proposed, strict=True):
        assert (found.plan is None) == (best.plan is None)
        if best.plan is not None:
            assert found.bound_s <= best.step_s * (1.0 + 1e-9)
            assert best.step_s * (1.0 - 1e-9) <= found.step_s <= best.step_s * 1.10
    assert any(found.status == "feasible" for found in proposed), "the program was not needed"


def test_counts_that_miss_the_limit_by_a_rounding_are_looked_for_again() -> None:
    """Two whole layers free what is needed but for the last bit: a swap beside them costs less than a third one."""
    layer = LayerClass("dense", 1.0, 2.0, 0.0, 200e6)
    options = (
        MemoryOption("full", "recompute", 0, 154e6, 1.0, 0.0, ("swap",)),
        MemoryOption("swap", "swap", 0, 42e6, 0.4, 42e6, ("full",)),
    )
    limit = 800e6 - 308e6 - 1e-6
    case = InnerProblem("1f1b", 1, 1, 1, (layer,), (4,), options, (), np.ones((1, 1)), limit, np.zeros(1), 1e12)
    found = solve(case)
    assert found.plan is not None
    assert found.plan.applied.tolist() == [[2, 1]]


def test_a_deep_stage_with_many_rivals_is_solved_without_listing_its_counts() -> None:
    names = [f"choice_{i}" for i in range(7)]
    rivals = tuple(
        MemoryOption(name, "recompute", 0, 0.02 + 0.01 * i, 0.001 + 0.0004 * i, 0.0, tuple(names[:i]))
        for i, name in enumerate(names)
    )
    layers = DENSE._replace(name="layer", static_bytes=0.4)
    deep = problem(
        classes=(layers,),
        layers=(40,),
        options=rivals,
        pieces=(),
        pp=1,
        in_flight=np.ones((1, 1)),
        fixed_bytes=np.full(1, 2.0),
        limit_bytes=28.0,
    )
    assert least_cpu_s(lambda: solve(deep), limit_s=5.0, tries=1) < 5.0
    solution = solve(deep)
    assert solution.plan is not None
    assert solution.plan.applied.any()
    assert solution.status == "optimal"


def test_options_that_hold_for_all_layers_are_proven_set_by_set() -> None:
    options = tuple(
        MemoryOption(f"o{i}", "recompute", 1, 0.03 + 0.01 * i + 0.004 * (i % 3), 0.0006 + 0.0003 * i + 0.0002 * (i % 2))
        for i in range(8)
    )
    many = problem(options=options, uniform_options=True, limit_bytes=28.0)
    assert solve(many).status == "optimal"
    assert solve(many, effort=replace(DEFAULT, sets=16)).gap > 0.01, "a few sets don't do"


def test_fillings_of_many_chunks_are_those_that_hold_what_they_must() -> None:
    small = problem(vpp=3, schedule="interleaved", layers=(1, 12), min_layers_per_chunk=0)
    for stage, (least, most) in itertools.product(range(4), ((0, 2), (2, 3), (4, 6))):
        every = set(_fillings(small, stage, 0, 100))
        wanted = {chunks for chunks in every if least <= sum(map(sum, chunks)) <= most}
        assert set(_fillings(small, stage, least, most)) == wanted
    # 3 ** 24 ways to fill the chunks, of which one holds so many layers.
    deep = problem(vpp=24, schedule="interleaved", layers=(0, 192), min_layers_per_chunk=0)
    per_chunk = most_layers_per_chunk(deep)
    assert least_cpu_s(lambda: list(_fillings(deep, 1, 24 * per_chunk, 24 * per_chunk)), limit_s=1.0, tries=1) < 1.0


def test_swaps_that_take_no_time_are_not_told_apart() -> None:
    swap = MemoryOption("a", "swap", 0, saved_bytes=1.0, swap_bytes=2.0)
    both, chunks, moments, need = (swap, swap._replace(name="b")), np.array([[4]]), np.ones((1, 1)), np.full(1, 8.0)
    priced = nested_frontier(both, chunks, moments, need, 0.0)
    assert sorted(set(priced.saved.ravel().tolist())) == [float(swapped) for swapped in range(9)]
    # Five layers' swaps are free together, whichever option's they are: less than that is worth nothing.
    free = nested_frontier(both, chunks, moments, need, 10.1)
    assert free.saved.min() == 5.0
    assert free.saved.max() == 8.0


def test_both_copies_of_a_dualpipe_layer_are_offered_and_no_third() -> None:
    fast, slow = LayerClass("fast", 1.0, 2.0, 1.0, 1.0), LayerClass("slow", 10.0, 20.0, 1.0, 1.0)
    two = replace(
        problem(),
        **{"schedule": "dualpipe", "pp": 2, "vpp": 2, "micro_batches": 4, "classes": (fast, slow), "layers": (1, 3)},
        **{"options": (), "pieces": (), "fixed_bytes": np.zeros(2), "limit_bytes": 1e9, "pairs_of": None},
        in_flight=in_flight_moments("dualpipe", 2, 2, 4).astype(np.float64),
    )
    # Half of the micro batches through each copy.
    batch = batch_of(two)
    for stage_s in _time_rows(batch, batch.order()).sorted(_counts(batch)).least(4, np.full((1, batch.pp), 4.0))[0]:
        assert np.diff(stage_s) == pytest.approx([2 * 3.0, 2 * 3.0, 2 * 30.0, 2 * 30.0])
