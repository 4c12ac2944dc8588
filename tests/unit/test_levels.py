"""Efforts as budgets: more effort is never less work, and a number scales the default."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.search_space import search_space
from autodeploy.search.choices.effort import LEVELS, USUAL, budget
from autodeploy.search.planner import plan, prepare
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.search import SearchSpec

if TYPE_CHECKING:
    import pytest

    from autodeploy.search.choices.effort import Budget


SEARCH_PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "search.md"


def of(**search: object) -> Budget:
    return budget(SearchSpec.model_validate(search))


def test_a_number_scales_the_default() -> None:
    assert of(effort=1.0) == of(effort="default") == of()
    assert of(effort=0.25) == of(effort="fast")
    assert of(effort=2.0).proof_gap == 0.0, "who asks for more wants the gap narrowed"


def test_the_gap_asked_for_is_that_of_refined_problems_but_deep_goes_on() -> None:
    assert of(gap=0.07).effort.gap == 0.07
    assert of(effort="deep", gap=0.07).effort.gap == LEVELS["deep"].effort.gap == 0.0


def test_plans_alone_are_proven_half() -> None:
    alone = budget(SearchSpec(), alone=True)
    assert alone.paths == of().paths // 2
    assert alone.quick == of().quick


def test_more_effort_finds_no_slower_plan_and_proves_no_less() -> None:
    """With one chunk a stage a deep search proves the best plan."""
    spec = {
        "model": "llama2-70b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
        "training": {"seq_length": 4096, "global_batch_size": 32},
        "search": {
            "target": "any",
            "gap": 0.0,
            "risk": "neutral",
            "fix": {"pp": 8, "vpp": 1, "cp": 1, "tp": 4, "micro_batch_size": 1},
        },
    }
    step_s, proven = [], []
    for effort in (0.02, "default", "deep"):
        document = {**spec, "search": {**spec["search"], "effort": effort}}  # type: ignore[dict-item]
        found = plan(read_spec_document(document))
        step_s.append(found.plans[0].step_time_s)
        proven.append(found.optimality)
    assert step_s == sorted(step_s, reverse=True)
    gaps = [each.gap for each in proven if each.gap is not None]
    assert len(gaps) == len(proven)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > gaps[-1]
    proved = [each.proved for each in proven]
    assert proved == sorted(proved)
    assert not proved[1]
    assert proved[-1]


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
                "risk": "neutral",
                "fix": {"pp": 3, "vpp": 1, "tp": 8, "ep": 32, "etp": 1, "micro_batch_size": 1, "cp": 1}
                | {"moe_dispatcher": "alltoall"},
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
            "search": {"fix": {"tp": 8, "pp": 4, "cp": 1}, "risk": "neutral", "top_k": 1},
        }
    )
    as_small = plan(spec)
    monkeypatch.setattr("autodeploy.search.branch_and_bound.best_first.LARGE_SPACE", 0)
    as_large = plan(spec)
    assert as_small.optimality.gap is not None
    assert as_large.optimality.gap is not None
    assert as_small.optimality.gap < as_large.optimality.gap <= USUAL.proof_gap * (1 + 1e-4)
    assert as_large.plans[0].step_time_s == as_small.plans[0].step_time_s


def test_the_page_says_how_much_more_deep_is() -> None:
    """The page's words, made of the levels themselves."""
    deep, words = LEVELS["deep"], {1.25: "a quarter more", 1.5: "half as many more", 11.0: "eleven times"}
    plans, refined, proof = (
        words[round(4.0 * more / usual) / 4.0]
        for more, usual in ((deep.quick, USUAL.quick), (deep.refined, USUAL.refined), (deep.paths, USUAL.paths))
    )
    page = " ".join(SEARCH_PAGE.read_text(encoding="utf-8").split())
    assert f"`effort: deep` makes {plans} plans, refines {refined} and has {proof} the budget for proofs" in page


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
        "search": {"target": "any", "effort": 0.02, "risk": "neutral", "fix": {"cp": 1, "tp": 2, "pp": 16, "vpp": 5}},
    }
    document["search"]["top_k"] = 1  # type: ignore[index]
    found = plan(read_spec_document(document))
    assert found.optimality.gap is not None
    assert found.optimality.gap > 0.06
    told = [text for text in found.warnings if "not ruled out" in text]
    assert told == [text for text in told if f"up to {100 * found.optimality.gap:.1f} % faster" in text] != []
    document["search"]["gap"] = found.optimality.gap + 0.01  # type: ignore[index]
    asked = plan(read_spec_document(document))
    assert not [text for text in asked.warnings if "not ruled out" in text]
