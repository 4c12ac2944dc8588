"""The local search looks at few layouts at once, and finds what it finds with all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autodeploy.costs.stages.inner_problem import InnerProblem, LayerClass, MemoryOption
from autodeploy.search.choices.layouts import even_sizes, most_layers_per_chunk, moved, moves, neighbours
from autodeploy.search.placement import evaluate
from autodeploy.search.placement.evaluate import Evaluator, best_of, improve
from autodeploy.search.placement.stage_choices import StageChoices
from cost_models.schedule import in_flight_moments

LAYERS = LayerClass("dense", 0.010, 0.020, 1.2, 0.30, 0.01), LayerClass("moe", 0.024, 0.046, 7.4, 0.58, 0.02)


def problem(schedule: str = "1f1b", vpp: int = 1) -> InnerProblem:
    return InnerProblem(
        schedule,
        6,
        vpp,
        24,
        LAYERS,
        (5, 37),
        (MemoryOption("full", "recompute", 1, 0.54, 0.024),),
        (),
        in_flight_moments(schedule, 6, vpp, 24).astype(np.float64),
        60.0,
        np.full(6, 2.0),
        25.0,
    )


@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("interleaved", 3)])
def test_chunks_of_neighbours_choose_the_same_plan(monkeypatch, schedule: str, vpp: int) -> None:
    given = problem(schedule, vpp)
    start = Evaluator(given).plan(*_plan(given))
    whole = improve(Evaluator(given), StageChoices(given), start, 8, lambda: False)
    monkeypatch.setattr(evaluate, "LAYERS_TOGETHER", 500)
    in_chunks = improve(Evaluator(given), StageChoices(given), start, 8, lambda: False)
    assert whole.step_s < start.step_s
    assert in_chunks.step_s == whole.step_s
    assert np.array_equal(in_chunks.layout, whole.layout)
    assert np.array_equal(in_chunks.applied, whole.applied)


def _plan(given: InnerProblem) -> tuple[np.ndarray, np.ndarray]:
    uneven = even_sizes(given)
    uneven[0] += 1
    uneven[-1] -= 1
    best = best_of(Evaluator(given), StageChoices(given), uneven[None], np.inf)
    assert best is not None
    return best.layout, best.applied


def test_a_local_search_that_is_to_stop_looks_at_no_further_chunk(monkeypatch) -> None:
    given = problem()
    looked: list[int] = []
    bare_s = Evaluator.bare_s
    monkeypatch.setattr(
        Evaluator, "bare_s", lambda self, layout, *below: looked.append(len(layout)) or bare_s(self, layout, *below)
    )
    monkeypatch.setattr(evaluate, "LAYERS_TOGETHER", 1)
    some = neighbours(given, even_sizes(given))
    best_of(Evaluator(given), StageChoices(given), some, np.inf, lambda: len(looked) >= 3)
    assert looked == [1, 1, 1]
    assert len(some) > 3


def test_moves_are_those_that_parts_allow() -> None:
    given = replace(problem(), min_layers_per_chunk=1, equal_chunks=True)
    sizes = np.array([1, 7, 8, 8, 9, 9])
    found = moved(sizes, moves(given, sizes))
    assert (found.sum(axis=1) == sizes.sum()).all()
    assert found.min() >= 1
    assert found.max() <= max(most_layers_per_chunk(given), sizes.max())
    assert len(np.unique(found, axis=0)) == len(found) == len(neighbours(given, sizes))
