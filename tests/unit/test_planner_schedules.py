"""Schedules on their way through estimate, search and export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.search.planner import estimate, plan, why_not
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

MODEL = {
    "name": "small-experts",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "qk_norm": True,
    "vocab_size": 32_000,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1024,
    "n_shared_experts": 1,
}
FEATURES = ["flash_attention", "fused_swiglu", "fused_rmsnorm", "grouped_gemm"]


def spec_of(target: str = "any", **search: Any) -> Spec:
    return read_spec_document(
        {
            "model": MODEL,
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
            "training": {"seq_length": 4096, "global_batch_size": 256},
            "search": {"target": target, "effort": 0.02, "risk": "neutral", **search},
        }
    )


def strategy(schedule: str, **changes: Any) -> dict[str, Any]:
    return {
        "tp": 2,
        "pp": 4,
        "ep": 4,
        "etp": 1,
        "micro_batch_size": 1,
        "schedule": schedule,
        "features": FEATURES,
    } | changes


def estimated(schedule: str, **changes: Any) -> Plan:
    document = Strategy.model_validate(strategy(schedule, **changes))
    return estimate(spec_of().model_copy(update={"strategy": document}))


def test_dualpipev_folds_the_model() -> None:
    found = estimated("dualpipev")
    assert found.micro_batches == 64
    assert [stage.holds for stage in found.stages] == [("embedding", "head"), (), (), ()]
    assert [stage.layers for stage in found.stages] == [(2, 2)] * 4
    assert found.stages[1].in_flight == pytest.approx(2 * 4 / 2)
    assert 0.5 < found.hidden.ep_share_step < found.hidden.ep_share_steady <= 1.0
    assert estimated("dualpipev", vpp=2).step_time_s == found.step_time_s


def test_dualpipe_holds_the_parameters_twice() -> None:
    both, adaptive = estimated("dualpipe"), estimated("adaptive_pipe", vpp=2)
    assert [stage.holds for stage in both.stages] == [("embedding", "head"), (), (), ("embedding", "head")]
    assert [stage.layers for stage in both.stages] == [(4, 4)] * 4
    twice, once = both.stages[1].memory_gib, adaptive.stages[1].memory_gib
    assert twice.weights == pytest.approx(2.0 * once.weights)
    assert twice.gradients == pytest.approx(2.0 * once.gradients)
    assert twice.optimizer == pytest.approx(once.optimizer, rel=0.01)


def test_dualpipe_takes_layers_of_one_copy() -> None:
    rows = ((3, 5), (4, 4), (4, 4), (5, 3))
    spread = estimated("dualpipe", layers_per_stage=[3, 4, 4, 5])
    assert tuple(stage.layers for stage in spread.stages) == rows
    assert estimated("dualpipe", layers_per_stage=rows).step_time_s == spread.step_time_s
    with pytest.raises(SpecError, match="two devices"):
        estimated("dualpipe", layers_per_stage=((3, 5), (4, 4), (4, 4), (5, 4)))


def test_more_micro_batches_hide_a_larger_share_of_the_step() -> None:
    few, many = estimated("adaptive_pipe", vpp=2, micro_batch_size=4), estimated("adaptive_pipe", vpp=2)
    assert few.micro_batches < many.micro_batches
    assert few.hidden.paired_share < many.hidden.paired_share
    assert few.hidden.ep_share_step < few.hidden.ep_share_steady


@pytest.mark.parametrize(
    ("changes", "path", "match"),
    [
        ({"schedule": "dualpipev", "micro_batch_size": 16}, "/strategy/schedule", "at least 2 pp - 1"),
        ({"schedule": "dualpipe", "pp": 1, "tp": 8}, "/strategy/schedule", "even pp"),
        ({"schedule": "dualpipev", "vpp": 4}, "/strategy/vpp", "2 chunks"),
    ],
)
def test_a_schedule_that_does_not_exist_is_refused(changes: dict[str, Any], path: str, match: str) -> None:
    with pytest.raises(SpecError, match=match) as caught:
        estimated(**changes)
    assert caught.value.errors[0].path == path


def test_a_search_for_dualpipe_is_refused() -> None:
    for field, value in (("fix", "dualpipe"), ("allow", ["dualpipe", "1f1b"])):
        with pytest.raises(UnsupportedError) as caught:
            plan(spec_of(**{field: {"schedule": value}}))
        assert caught.value.errors[0].path == f"/search/{field}/schedule"


def test_dualpipev_is_searched_and_launched() -> None:
    spec = spec_of("mindspeed-llm", fix={"schedule": "dualpipev", "pp": 4, "tp": 2}, top_k=2)
    found = plan(spec, alone=True)
    best = found.plans[0]
    assert best.strategy.schedule == "dualpipev"
    assert "dualpipev" in best.strategy.features
    assert {layers for stage in best.stages for layers in stage.layers} == {2}, "MindSpeed's chunks are equal"
    assert estimate(spec.model_copy(update={"strategy": best.strategy})).step_time_s == best.step_time_s
    text = export(found, best, "mindspeed-llm").text
    assert "--schedules-method dualpipev" in text
    assert "--moe-fb-overlap" in text
    assert "--overlap-grad-reduce" not in text
    assert "virtual-pipeline" not in text


def test_dualpipev_competes_where_it_is_not_switched_off() -> None:
    document = Strategy.model_validate(strategy("dualpipev"))
    spec = spec_of("mindspeed-llm", fix={"tp": 2, "pp": 4, "ep": 4, "micro_batch_size": 1}, top_k=1)
    best = plan(spec, alone=True)
    assert why_not(spec_of("mindspeed-llm"), document, best=best).rule is None
    assert why_not(spec_of("megatron"), document, best=best).rule is None, "MindSpeed beside Megatron-LM has it too"
    refused = why_not(spec_of("mindformers"), document)
    assert refused.rule == "schedule_is_launched"
