"""The numbers of a spec that a plan's page lets turn: what they are now, and the spec with others."""

from __future__ import annotations

from typing import Any

import pytest

from api.ui.plan_page import changed_spec, conditions_of, knobs_of, memory_by_grade
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import estimate
from autodeploy.specs.reading import read_spec_document
from tests.unit.test_rl_planning import planned
from tests.unit.test_rl_planning import spec_of as rl_spec


def spec_of(model: str = "qwen3-30b-a3b", **training: Any) -> Any:
    degrees = {"ep": 4, "etp": 1} if model == "qwen3-30b-a3b" else {}
    return read_spec_document(
        {
            "model": model,
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
            "training": {"seq_length": 4096, "global_batch_size": 64, **training},
            "strategy": {"tp": 2, "pp": 2, **degrees, "micro_batch_size": 1, "recompute": {"granularity": "full"}},
        }
    )


def conditions(spec: Any) -> Any:
    return conditions_of(estimate(spec), spec.model_dump(mode="json"))


def test_what_can_be_turned_and_what_it_is_now() -> None:
    found = {each.name: each.value for each in conditions(spec_of())}
    assert found == {
        "num_npus": "16",
        "global_batch_size": "64",
        "seq_length": "4096",
        "routing_imbalance": "1.3",
        "device": "910B2",
        "usable_hbm_gib": "61",
        "hccs.gb_per_s_per_npu": "196",
        "scale_out.gb_per_s_per_npu": "25",
        "risk": "averse",
    }
    assert "routing_imbalance" not in {each.name for each in conditions(spec_of("llama2-7b"))}
    assert "ep" in {knob.name for knob in knobs_of(spec_of().strategy)}
    assert "ep" not in {knob.name for knob in knobs_of(spec_of().strategy, moe=False)}


def test_post_training_has_lengths_of_its_own() -> None:
    spec = rl_spec().model_dump(mode="json")
    assert conditions_of(planned().plans[0], spec) == ()


def test_a_changed_number_is_in_the_spec_and_nothing_else() -> None:
    spec = spec_of()
    found = changed_spec(spec, conditions(spec), {"num_npus": "32", "seq_length": "4096", "tp": "8"})
    assert found.cluster.num_npus == 32
    assert found.training == spec.training
    assert found.model == spec.model
    assert changed_spec(spec, conditions(spec), {}).training == spec.training


def test_more_imbalance_takes_longer_and_raises_the_peak_with_it() -> None:
    spec = spec_of()
    found = changed_spec(spec, conditions(spec), {"routing_imbalance": "2.5"})
    assert found.training.routing_imbalance == 2.5
    assert found.training.routing_imbalance_peak == 2.5
    strategy = {"strategy": spec.strategy}
    assert estimate(found.model_copy(update=strategy)).step_time_s > estimate(spec).step_time_s


@pytest.mark.parametrize(("name", "value"), [("num_npus", "0"), ("seq_length", "many"), ("routing_imbalance", "0.5")])
def test_a_bad_number_is_refused_where_it_stands(name: str, value: str) -> None:
    spec = spec_of()
    with pytest.raises(SpecError) as caught:
        changed_spec(spec, conditions(spec), {name: value})
    assert name in caught.value.errors[0].path


def test_hardware_is_turned_by_overrides_of_the_grade_that_was_chosen() -> None:
    spec = spec_of()
    given = {"device": "910B3", "usable_hbm_gib": "40", "scale_out.gb_per_s_per_npu": "12.5", "risk": "neutral"}
    found = changed_spec(spec, conditions(spec), given)
    assert found.cluster.device == "910B3"
    assert found.cluster.overrides == {"devices.910B3.usable_hbm_gib": 40, "scale_out.gb_per_s_per_npu": 12.5}
    assert found.search.risk == "neutral"
    changed, before = estimate(found.model_copy(update={"strategy": spec.strategy})), estimate(spec)
    assert changed.step_time_s > before.step_time_s
    assert changed.memory_limit_gib == pytest.approx(40.0)


def test_memory_of_the_chosen_grade_is_no_change() -> None:
    spec = spec_of()
    own = memory_by_grade(spec.model_dump(mode="json")["cluster"])["910B4"]
    assert own != "61"
    for shown in (own, "61"):
        found = changed_spec(spec, conditions(spec), {"device": "910B4", "usable_hbm_gib": shown})
        assert found.cluster.device == "910B4"
        assert found.cluster.overrides == {}


def test_a_profile_that_is_gone_leaves_the_work_to_turn() -> None:
    document = spec_of("llama2-7b").model_dump(mode="json")
    document["cluster"]["profile"] = "no-such-profile"
    found = {each.name for each in conditions_of(estimate(spec_of("llama2-7b")), document)}
    assert found == {"num_npus", "global_batch_size", "seq_length", "risk"}
