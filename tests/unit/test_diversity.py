"""Ranked plans differ in more than their chunks, and the valley counts what is about as fast as the fastest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autodeploy.costs.steps.one_strategy import candidate_of
from autodeploy.search.ranking.diversity import ShownPlan, different, outline, valley
from autodeploy.space.candidates import Candidates, concatenate
from autodeploy.specs.strategy import Strategy


def solved(**axes: Any) -> Any:
    """What `outline` reads of a solved candidate."""
    return SimpleNamespace(candidate=candidates(axes))


def candidates(*strategies: dict[str, Any]) -> Candidates:
    return concatenate(
        [
            candidate_of(Strategy(**axes), world=64, global_batch=256, moe=True, vendor="huawei", possible=False)
            for axes in strategies
        ]
    )


def test_plans_that_differ_in_chunks_alone_give_way_to_other_plans() -> None:
    ranked = [
        solved(tp=4, pp=4, vpp=2, schedule="interleaved"),
        solved(tp=4, pp=4, vpp=4, schedule="interleaved"),
        solved(tp=4, pp=4, schedule="1f1b"),
        solved(tp=2, pp=4, vpp=2, schedule="interleaved"),
        solved(tp=4, pp=4, vpp=2, schedule="dualpipev"),
        solved(tp=4, pp=4, ep=8, vpp=2, schedule="interleaved"),
    ]
    assert different(ranked, 4, outline) == [ranked[0], ranked[3], ranked[4], ranked[5]]
    assert different(ranked, 2, outline) == [ranked[0], ranked[3]]


def test_too_few_different_plans_are_filled_up_in_order_of_rank() -> None:
    ranked = [solved(pp=4, vpp=2, schedule="interleaved"), solved(pp=4, vpp=3, schedule="interleaved"), solved(tp=2)]
    assert different(ranked, 5, outline) == ranked
    assert different(ranked, 2, outline) == [ranked[0], ranked[2]]


def test_the_valley_holds_estimates_against_estimates_and_plans_against_plans() -> None:
    space = candidates(
        {"tp": 4, "pp": 4, "ep": 8},
        {"tp": 2, "pp": 4, "ep": 8},
        {"tp": 1, "pp": 4, "ep": 8},
        {"tp": 1, "pp": 8, "ep": 8},
        {"tp": 4, "pp": 4, "ep": 16, "micro_batch_size": 2},
    )
    estimated_s = np.array([102.0, 100.0, 102.9, np.inf, 110.0])
    found = (ShownPlan("p_first", 0, 90.0, 2), ShownPlan("p_second", 1, 93.0, 1), ShownPlan("p_third", 4, 91.0, 2))
    told = valley(space, estimated_s, found)
    assert told is not None
    # The plan of the second is 3.3 % slower than the best plan, the third was not solved, the last was solved well.
    assert told.layouts == 3
    assert told.shared == {"pp": 4}
    assert told.fewest_unproven == "p_first"
    assert told.within == pytest.approx(0.03)


def test_the_plan_with_the_fewest_bets_is_named() -> None:
    space = candidates({"tp": 4, "ep": 8}, {"tp": 2, "ep": 8}, {"tp": 2, "ep": 16})
    found = (ShownPlan("p_first", 0, 90.0, 2), ShownPlan("p_second", 1, 91.0, 1), ShownPlan("p_third", 2, 99.0, 0))
    told = valley(space, np.array([100.0, 100.0, 120.0]), found)
    assert told is not None
    assert told.fewest_unproven == "p_second"
    assert told.shared == {"ep": 8}


def test_kinds_of_optimizer_state_are_no_layouts_of_their_own() -> None:
    space = candidates({"tp": 4}, {"tp": 4, "swap_optimizer": True}, {"tp": 2})
    told = valley(space, np.array([100.0, 101.0, 102.0]), ())
    assert told is not None
    assert (told.layouts, told.fewest_unproven) == (2, None)


def test_nothing_fits_nowhere() -> None:
    assert valley(candidates({"tp": 4}), np.array([np.inf]), ()) is None
    assert valley(candidates({"tp": 4}).take(slice(0)), np.zeros(0), ()) is None
