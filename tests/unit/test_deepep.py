"""DeepEP as a dispatcher: what it sends, what it takes from products beside it, and how launches say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.formats import registry as exporters
from autodeploy.formats.import_document import import_document
from autodeploy.search import planner
from autodeploy.space.facts import launched_facts
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.record import Record
from autodeploy.stack.releases import releases
from tests.unit.test_plans_are_exportable import given_plans

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

EXPERTS = {"tp": 1, "pp": 4, "ep": 32, "etp": 1, "micro_batch_size": 1}


def spec_with(dispatcher: str, *, cards: int = 128, target: str = "megatron", **strategy: Any) -> Spec:
    return read_spec_document(
        {
            "model": "qwen3-235b-a22b",
            "cluster": {"profile": "nvidia-h800", "num_npus": cards},
            "training": {"seq_length": 4096, "global_batch_size": 1024},
            "search": {"target": target},
            "strategy": {**EXPERTS, **strategy, "moe_dispatcher": dispatcher},
        }
    )


def seconds(dispatcher: str, **strategy: Any) -> float:
    return planner.estimate(spec_with(dispatcher, **strategy)).step_time_s


@pytest.mark.parametrize("ep", [16, 32, 64])
def test_between_nodes_a_token_that_is_sent_once_is_faster(ep: int) -> None:
    assert seconds("deepep", ep=ep, pp=2) < seconds("alltoall", ep=ep, pp=2)


def test_a_faster_network_brings_the_two_closer() -> None:
    def ratio(gb_per_s: float) -> float:
        spec = spec_with("alltoall")
        cluster = spec.cluster.model_copy(update={"overrides": {"scale_out.gb_per_s_per_npu": gb_per_s}})
        slow, fast = (
            planner.estimate(
                spec.model_copy(
                    update={
                        "cluster": cluster,
                        "strategy": spec.strategy and spec.strategy.model_copy(update={"moe_dispatcher": name}),
                    }
                )
            ).step_time_s
            for name in ("alltoall", "deepep")
        )
        return slow / fast

    ratios = [ratio(rate) for rate in (25.0, 50.0, 200.0)]
    assert ratios == sorted(ratios, reverse=True)


@pytest.mark.parametrize("word", ["deepep", "hybridep", "flex"])
@pytest.mark.parametrize("as_feature", [False, True])
def test_records_name_it_in_any_word(word: str, as_feature: bool) -> None:
    strategy: dict[str, Any] = {"tp": 1, "ep": 8}
    strategy |= {"features": [word, "grouped_gemm"]} if as_feature else {"moe_dispatcher": word}
    record = Record.model_validate(
        {
            "id": "own",
            "framework": "megatron",
            "model": {
                "name": "own",
                "hidden_size": 2048,
                "num_hidden_layers": 8,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
                "vocab_size": 32000,
                "n_routed_experts": 16,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 1024,
            },
            "cluster": {"profile": "nvidia-h100", "num_npus": 16},
            "training": {"seq_length": 4096, "global_batch_size": 32},
            "strategy": strategy,
            "measured": {"step_time_s": 1.0},
        }
    )
    assert record.strategy.moe_dispatcher == "deepep"
    assert word not in record.strategy.features


@pytest.mark.parametrize(("profile", "searched"), [("nvidia-h100", True), ("ascend-800t-a2", False)])
def test_searches_without_a_target_consider_it_where_a_release_of_the_chips_launches_it(
    profile: str, searched: bool
) -> None:
    spec = read_spec_document(
        {
            "model": "qwen3-30b-a3b",
            "cluster": {"profile": profile, "num_npus": 16},
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "search": {"target": "any"},
        }
    )
    assert planner.prepare(spec).context.launches_deepep is searched


def test_only_releases_without_mindspeed_launch_it() -> None:
    """Every release of Megatron-LM alone: MindSpeed brings no kernels of it, though its parsers know the word."""
    launch = {release.name for release in releases() if launched_facts(release)["launches_deepep"]}
    assert launch == {r.name for r in releases() if r.has("megatron") and not r.has("mindspeed")}
    assert "megatron-main" in launch
    assert any(r.has("mindspeed") and r.registers("--moe-token-dispatcher-type", "flex") for r in releases())


def test_its_script_is_read_as_it_was_written() -> None:
    spec = spec_with("deepep")
    plan = planner.estimate(spec)
    text = exporters.export(given_plans(spec, plan), plan, "megatron").text
    assert "--moe-token-dispatcher-type flex" in text
    assert "--moe-flex-dispatcher-backend deepep" in text
    again = import_document(text, "train.sh").document
    assert again["strategy"]["moe_dispatcher"] == "deepep"


@pytest.mark.parametrize("held", [0.0, 0.15, 0.4])
def test_products_beside_it_lose_what_its_kernels_hold(held: float) -> None:
    """With nothing else to wait for, a pair takes longer by the share of the exchanges that its kernels hold."""

    def paired(share: float) -> float:
        spec = spec_with("deepep", schedule="adaptive_pipe", vpp=2)
        cluster = spec.cluster.model_copy(update={"overrides": {"efficiency.link_overlap_contention": share}})
        return planner.estimate(spec.model_copy(update={"cluster": cluster})).step_time_s

    assert paired(held) <= paired(held + 0.1)
