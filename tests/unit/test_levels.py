"""Efforts as budgets: more effort is never less work, and a number scales the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autodeploy.importers.spec_file import read_spec_document
from autodeploy.planner import plan, prepare
from autodeploy.solver.effort import LEVELS, USUAL, budget
from autodeploy.solver.outer.best_first import best_first
from autodeploy.solver.search_space import search_space
from autodeploy.specs.search import SearchSpec

if TYPE_CHECKING:
    from autodeploy.solver.effort import Budget


def of(**search: object) -> Budget:
    return budget(SearchSpec.model_validate(search))


def test_more_effort_is_more_of_everything() -> None:
    fast, usual, deep = (of(effort=effort) for effort in ("fast", "default", "deep"))
    for less, more in ((fast, usual), (usual, deep)):
        assert less.quick < more.quick
        assert less.slots < more.slots
        assert less.paths < more.paths
        assert less.refined <= more.refined
        assert less.narrow >= more.narrow
        assert less.effort.deterministic_time <= more.effort.deterministic_time


def test_a_number_scales_the_default() -> None:
    assert of(effort=1.0) == of(effort="default") == of()
    twice = of(effort=2.0)
    assert (twice.quick, twice.paths, twice.refined) == (2 * USUAL.quick, 2 * USUAL.paths, 2 * USUAL.refined)
    assert twice.slots == pytest.approx(2 * of().slots)
    assert twice.narrow == 0.0, "who asks for more wants the gap narrowed"
    assert of(effort=0.25) == of(effort="fast")


def test_the_gap_asked_for_is_that_of_refined_problems_but_deep_goes_on() -> None:
    assert of(gap=0.07).effort.gap == 0.07
    assert of(effort="deep", gap=0.07).effort.gap == LEVELS["deep"].effort.gap == 0.0


def test_plans_alone_are_proven_half() -> None:
    alone = budget(SearchSpec(), alone=True)
    assert alone.paths == of().paths // 2
    assert alone.quick == of().quick


def test_with_one_chunk_a_stage_a_deep_search_proves_the_best_plan() -> None:
    spec = {
        "model": "llama2-70b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
        "training": {"seq_length": 4096, "global_batch_size": 32},
        "search": {"target": "any", "gap": 0.0, "fix": {"pp": 8, "vpp": 1, "cp": 1, "tp": 4, "micro_batch_size": 1}},
    }
    gaps = {}
    for effort in ("default", "deep"):
        document = {**spec, "search": {**spec["search"], "effort": effort}}  # type: ignore[dict-item]
        gaps[effort] = plan(read_spec_document(document)).optimality
    assert not gaps["default"].proved
    assert gaps["deep"].proved


def test_a_few_deep_stages_are_proven_with_many_rival_choices() -> None:
    # Sixty layers and ten choices on three stages: tens of thousands of ways to combine those that compete.
    spec = read_spec_document(
        {
            "model": "pangu-ultra-moe-718b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 6144},
            "training": {"seq_length": 8192, "global_batch_size": 9216},
            "search": {
                "target": "any",
                "gap": 0.0,
                "effort": "deep",
                "top_k": 1,
                "fix": {"pp": 3, "vpp": 1, "tp": 8, "ep": 32, "micro_batch_size": 1, "cp": 1},
            },
        }
    )
    assert plan(spec).optimality.proved


def test_a_large_space_is_proven_to_the_gap_that_contents_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read_spec_document(
        {
            "model": "llama2-70b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "search": {"fix": {"tp": 8}},
        }
    )
    as_small = plan(spec)
    monkeypatch.setattr("autodeploy.solver.outer.best_first.MANY", 0)
    as_large = plan(spec)
    assert as_small.optimality.gap is not None
    assert as_large.optimality.gap is not None
    assert as_small.optimality.gap < as_large.optimality.gap <= USUAL.narrow * (1 + 1e-4)
    assert as_large.plans[0].step_time_s == as_small.plans[0].step_time_s


def test_deep_is_so_much_more_as_the_page_says() -> None:
    # docs/explanation/search.md: a quarter more plans, half as many refinements more, fourteen times the proof.
    deep = LEVELS["deep"]
    assert (deep.quick, deep.refined, deep.paths) == (1.25 * USUAL.quick, 1.5 * USUAL.refined, 14 * USUAL.paths)


def test_what_is_solved_and_not_kept_still_counts_in_the_bound() -> None:
    spec = read_spec_document(
        {
            "model": "llama2-70b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "search": {
                "fix": {"tp": 8, "pp": 4, "micro_batch_size": 1, "cp": 1},
                "features": {"reuse_fp32_param": "off", "swap_optimizer": "off", "virtual_optimizer": "off"},
            },
        }
    )
    prepared = prepare(spec)
    space = search_space(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    every, one = (best_first(space.request(1, 0.0, of(effort=0.1)), keep=keep) for keep in (1000, 1))
    assert len(every.best) > len(one.best) == 1
    assert one.open_bound_s == min(every.open_bound_s, *(each.solution.bound_s for each in every.best[1:]))


def test_a_gap_above_what_is_usual_and_asked_for_is_told() -> None:
    document = {
        "model": "llama2-70b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
        "training": {"seq_length": 4096, "global_batch_size": 32},
        "search": {"target": "any", "effort": 0.05, "risk": "neutral", "fix": {"cp": 1, "tp": 2}},
    }
    found = plan(read_spec_document(document))
    assert found.optimality.gap is not None
    assert found.optimality.gap > 0.06
    told = [text for text in found.warnings if "not ruled out" in text]
    assert told == [text for text in told if f"up to {100 * found.optimality.gap:.1f}% faster" in text] != []
    document["search"]["gap"] = found.optimality.gap + 0.01  # type: ignore[index]
    asked = plan(read_spec_document(document))
    assert not [text for text in asked.warnings if "not ruled out" in text]
