"""Single changes of launches of post-training, the rules that hold for them, and what files of them are read back."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.launch_checks.launch import Launch
from autodeploy.analysis.what_if.improve import generation_neighbours, improve
from autodeploy.formats.import_document import import_document
from autodeploy.formats.mindspeed_rl import OF_PACKS
from autodeploy.formats.registry import export
from autodeploy.search import planner
from autodeploy.search.planner import estimate, launch_rules
from autodeploy.specs.planset import Plan
from autodeploy.specs.presets import load_preset, preset_names, preset_of
from autodeploy.specs.search import RL_AXES
from tests.unit.test_rl_planning import QUICK, placed, spec_of

if TYPE_CHECKING:
    from autodeploy.specs.answers import ImproveReport

UPDATE: dict[str, Any] = {"tp": 1, "pp": 2, "micro_batch_size": 1, "recompute": {"granularity": "full"}}


@cache
def improved() -> ImproveReport:
    """The launch beside a search of updates of its own cuts."""
    spec = launched()
    fix = {axis: UPDATE[axis] for axis in ("tp", "pp", "micro_batch_size")} | {"cp": 1, "vpp": 1}
    search = spec.search.model_copy(update={"fix": fix, "risk": "neutral"})
    return improve(Launch(spec.model_copy(update={"search": search})), planner=planner)


def launched(target: str = "any", **how: Any) -> Any:
    generation = {"tp": 2, "dp": 1, "engine": "vllm-ascend", "mode": "eager", **how.pop("generation", {})}
    layout = {"placement": "colocated", "pack_tokens": 4096, "generation": generation, **how}
    return spec_of(target=target, strategy={**UPDATE, "rl": layout})


def test_each_change_is_one_and_stays_a_strategy() -> None:
    strategy = launched(generation={"max_num_seqs": 64}).strategy
    found = list(generation_neighbours(strategy, 16))
    names = [each.name for each in found]
    assert len(names) == len(set(names))
    kinds = {each.kind for each in found}
    assert kinds <= set(RL_AXES)
    assert {"rl.placement", "rl.generation.mode", "rl.generation.tp", "rl.offload"} <= kinds
    for each in found:
        assert each.strategy.rl is not None
        assert each.strategy.rl != strategy.rl
        again = type(each.strategy.rl).model_validate(each.strategy.rl.model_dump())  # no change contradicts itself
        assert again == each.strategy.rl
        assert each.strategy.model_copy(update={"rl": strategy.rl}) == strategy


def test_a_launch_that_only_trains_has_none() -> None:
    assert list(generation_neighbours(placed("colocated").plans[0].strategy.model_copy(update={"rl": None}), 16)) == []


def test_experts_stay_on_the_ranks_of_their_replica() -> None:
    strategy = launched(generation={"tp": 4, "dp": 4, "ep": 16}).strategy
    degrees = {
        (each.strategy.rl.generation.tp, each.strategy.rl.generation.dp, each.strategy.rl.generation.ep)
        for each in generation_neighbours(strategy, 16)
        if each.kind == "rl.generation.tp" and each.strategy.rl is not None
    }
    assert degrees == {(8, 2, 16), (2, 8, 16)}


def test_a_better_way_to_generate_is_found() -> None:
    """An eager engine that issues operator by operator gains most by graphs."""
    report = improved()
    best = report.improvements[0]
    assert best.gain_pct > 5.0
    assert any(name.startswith("rl.") for name in best.changes)
    changed = launched(generation={"mode": "graph"})
    by_mode = estimate(changed).tokens_per_s_per_npu / report.plan.tokens_per_s_per_npu - 1.0
    assert best.gain_pct >= 100.0 * by_mode - 1e-6


def test_rules_of_both_parts_are_held_against_a_launch() -> None:
    rules = launch_rules(launched("mindspeed-rl", generation={"tp": 2}))
    assert not rules.broken
    odd = spec_of(target="mindspeed-rl", rl={"prompts_per_step": 60}, strategy=launched().strategy.model_dump())
    broken = {rule.rule: rule for rule in launch_rules(odd).broken}
    assert "prompts_divide_over_replicas" in broken
    assert broken["prompts_divide_over_replicas"].values["prompts"] == 60


def test_nodes_that_both_share_are_refused() -> None:
    how = {"placement": "separate", "generation_npus": 12}
    assert "whole_nodes" in launch_rules(launched("verl", **how)).names


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_known_by_its_shape(name: str) -> None:
    found = preset_of(load_preset(name))
    assert found is not None
    assert load_preset(found) == load_preset(name)


def test_a_script_says_which_preset_it_trains() -> None:
    """Its path of the model is asked for at the start; another shape has no name."""
    result = placed("colocated")
    plan = next(each for each in result.plans if each.strategy.rl is not None and each.strategy.rl.staleness <= 1)
    text = export(result, plan, "verl").text
    assert " preset=llama2-7b " in text
    read = import_document(text).document
    assert read["model"]["hidden_size"] == load_preset("llama2-7b").hidden_size
    other = load_preset("llama2-7b").model_copy(update={"hidden_size": 4096 + 128})
    assert preset_of(other) is None


def test_packs_of_samples_are_no_doubt() -> None:
    result = planner.plan(spec_of(target="mindspeed-rl", fix=QUICK, top_k=1, risk="neutral"))
    found = import_document(export(result, result.plans[0], "mindspeed-rl").text)
    told = {note.source.partition(": ")[2] or note.source for note in found.diagnostics.unmodelled}
    assert not told & set(OF_PACKS)


def test_a_plan_of_a_launch_is_its_estimate() -> None:
    found = improved().plan
    assert isinstance(found, Plan)
    assert found.step_time_s == estimate(launched()).step_time_s
