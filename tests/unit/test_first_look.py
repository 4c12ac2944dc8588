"""First looks: templates that fit and are legal, near what a whole search of the inner problem finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autodeploy.costs.stages.inner_problem import FixedPiece, InnerProblem, LayerClass, MemoryOption
from autodeploy.search.choices.effort import DEFAULT
from autodeploy.search.choices.layouts import templates, to_layout
from autodeploy.search.choices.memory_options import legal_options
from autodeploy.search.placement.evaluate import Evaluator
from autodeploy.search.placement.solve import best_template, solve
from autodeploy.search.placement.stage_choices import fits
from cost_models.schedule import in_flight_moments

LAYER = LayerClass("moe", 0.024, 0.046, 1.0, 0.60, 0.02)
OPTIONS = (
    MemoryOption("norm", "recompute", 0, 0.04, 0.0004, 0.0, ("full",)),
    MemoryOption("activation", "recompute", 0, 0.12, 0.0008, 0.0, ("full",)),
    MemoryOption("swap_permute", "swap", 0, 0.10, 0.0001, 0.10, ("full",)),
    MemoryOption("full", "recompute", 0, 0.55, 0.024),
)


def problem(schedule: str, vpp: int, limit: float, *, uniform: bool = False, layers: int = 24) -> InnerProblem:
    head = FixedPiece(LayerClass("head", 0.012, 0.020, 1.0, 0.3), 3, vpp - 1)
    return InnerProblem(
        schedule,
        4,
        vpp,
        16,
        (LAYER,),
        (layers,),
        OPTIONS,
        (head,),
        in_flight_moments(schedule, 4, vpp, 16).astype(np.float64),
        limit,
        np.full(4, 1.0),
        25.0,
        uniform_options=uniform,
    )


CASES = [
    (schedule, vpp, limit, uniform)
    for schedule, vpp in (("1f1b", 1), ("interleaved", 2))
    for limit in (14.0, 18.0, 40.0)
    for uniform in (False, True)
]


@pytest.mark.parametrize(("schedule", "vpp", "limit", "uniform"), CASES)
def test_a_look_is_a_legal_plan_that_fits_near_the_best(schedule: str, vpp: int, limit: float, uniform: bool) -> None:
    case = problem(schedule, vpp, limit, uniform=uniform)
    best = solve(case, effort=DEFAULT)
    look = best_template(case)
    if look.plan is None:
        assert best.plan is None or limit < 18.0
        return
    assert fits(case, look.plan.layout[None], look.plan.applied[None])[0]
    assert legal_options(case, look.plan.layout[None], look.plan.applied[None])[0]
    assert look.plan.layout.sum(axis=(0, 1)).tolist() == [24]
    assert look.step_s == Evaluator(case).plan(look.plan.layout, look.plan.applied).step_s
    # Where memory is short a whole search moves layers between chunks.
    assert best.bound_s <= look.step_s <= (1.15 if limit <= 18.0 and vpp > 1 else 1.06) * best.step_s
    assert look.bound_s == 0.0, "nothing is proven of it"


def test_stages_choose_for_themselves_where_they_may() -> None:
    # 1F1B holds four micro batches on the first stage and one on the last.
    free, even = (best_template(problem("1f1b", 1, 13.0, uniform=uniform)) for uniform in (False, True))
    assert len(np.unique(free.plan.applied, axis=0)) > 1
    assert free.step_s < even.step_s


def test_whole_layers_are_recomputed_beside_cheaper_choices_on_no_more_than_it_takes() -> None:
    case = problem("1f1b", 1, 13.0)
    look = best_template(case)
    assert look.plan is not None
    first, layers = look.plan.applied[0], int(look.plan.layout[0].sum())
    assert 0 < first[3] < layers, "some of its layers"
    assert first[:3].any(), "the others save what is cheap"
    less = look.plan.applied.copy()
    less[0, 3] -= 1
    assert not fits(case, look.plan.layout[None], less[None])[0]


def test_nothing_is_said_where_no_template_fits() -> None:
    look = best_template(problem("1f1b", 1, 2.0))
    assert look.plan is None
    assert look.step_s == float("inf")


def test_templates_lighten_whole_stages_of_several_chunks() -> None:
    case = replace(problem("dualpipev", 2, 40.0), layers=(13,), min_layers_per_chunk=1, equal_chunks=True)
    stage = np.array([places[0][0] for places in case.parts])
    sizes = to_layout(case, templates(case)).sum(axis=(2, 3))
    assert stage[0] == stage[-1] == 0
    assert any((row[0] < row[1:3].min()) and row[3] < row[1:3].max() for row in sizes)
