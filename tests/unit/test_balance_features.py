"""What levels the load, in whole plans: exchanges by topology, whole experts, even layers, capacity, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.search.planner import estimate, plan
from autodeploy.specs.presets import load_preset
from autodeploy.specs.reading import read_spec_document
from autodeploy.stack.features import FEATURES

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan

STACK = ("flash_attention", "fused_swiglu", "fused_rmsnorm", "grouped_gemm")
PANGU: dict[str, Any] = {
    "model": "pangu-ultra-moe-718b",
    "cluster": {"profile": "ascend-800t-a2", "device": "910B3", "num_npus": 6144},
    "training": {"seq_length": 8192, "global_batch_size": 4608, "routing_imbalance": 1.0},
    "search": {"target": "any"},
}
LAYOUT = {
    "tp": 8,
    "pp": 16,
    "vpp": 2,
    "ep": 32,
    "etp": 1,
    "schedule": "interleaved",
    "recompute": {"granularity": "full"},
}

FEW = {"tp": [1], "pp": [2], "cp": [1], "ep": [8], "micro_batch_size": [1]}


def run(*features: str, training: dict[str, Any] | None = None, model: Any = None, **strategy: Any) -> Plan:
    document = PANGU | {"training": PANGU["training"] | (training or {}), "strategy": LAYOUT | strategy}
    if model is not None:
        document["model"] = model
    return estimate(read_spec_document(document), features=frozenset({*STACK, *features}))


@pytest.mark.parametrize(("nodes", "gains"), [(2, True), (4, True), (16, False)])
def test_hierarchical_exchange_gains_below_top_k_nodes(nodes: int, gains: bool) -> None:
    # Pangu Ultra MoE sends a token to 8 experts: 8 / O copies fewer cross O nodes, and as many over 8.
    flat, stepped = (run(ep=8 * nodes, moe_dispatcher=name) for name in ("alltoall", "hierarchical"))
    assert (stepped.breakdown.exposed_ep_s < flat.breakdown.exposed_ep_s) is gains
    assert (stepped.step_time_s < flat.step_time_s) is gains
    if nodes == 4:
        assert flat.breakdown.exposed_ep_s / stepped.breakdown.exposed_ep_s == pytest.approx(2.0, rel=0.1)


def test_as_many_nodes_as_experts_a_token_leave_no_gain() -> None:
    flat, stepped = (run(ep=64, moe_dispatcher=name) for name in ("alltoall", "hierarchical"))
    assert stepped.breakdown.exposed_ep_s == pytest.approx(flat.breakdown.exposed_ep_s, rel=0.03)


@pytest.mark.parametrize(("ep", "chosen"), [(32, "hierarchical"), (128, "alltoall")])
def test_the_search_chooses_the_dispatcher_by_nodes(ep: int, chosen: str) -> None:
    wanted = {
        "tp": 8,
        "pp": 16,
        "vpp": 2,
        "cp": 1,
        "ep": ep,
        "etp": 1,
        "micro_batch_size": 1,
        "schedule": "interleaved",
    }
    features = {name: "auto" if name in {*STACK, "hierarchical_a2a"} else "off" for name in FEATURES}
    search = {"target": "any", "fix": wanted, "features": features, "top_k": 1, "effort": 0.02, "risk": "neutral"}
    found = plan(read_spec_document(PANGU | {"search": search}), alone=True)
    assert found.plans[0].strategy.moe_dispatcher == chosen


def test_uneven_experts_move_the_crossover() -> None:
    # The gather between nodes is the same for every rank; a flat exchange waits for the busiest one.
    flat, stepped = (
        run(ep=64, moe_dispatcher=name, training={"routing_imbalance": 1.3}) for name in ("alltoall", "hierarchical")
    )
    assert stepped.step_time_s < flat.step_time_s


@pytest.mark.parametrize("ffn", [512, 2048])
def test_small_experts_gain_from_whole_experts(ffn: int) -> None:
    # MoE EDP: tensor-parallel ranks join the expert group instead of slicing each expert (--moe-tp-extend-ep).
    model = load_preset("pangu-ultra-moe-718b").model_dump(exclude_unset=True) | {"moe_intermediate_size": ffn}
    sliced = run(model=model, etp=8, ep=4, moe_dispatcher="alltoall_seq")
    whole = run("tp_extend_ep", model=model, etp=1, ep=32, moe_dispatcher="alltoall_seq")
    assert whole.breakdown.compute_s < sliced.breakdown.compute_s, "narrow slices lose matrix efficiency"
    assert whole.breakdown.exposed_ep_s < sliced.breakdown.exposed_ep_s, "no gather of the received rows"


def test_the_smaller_the_experts_the_more_whole_ones_gain() -> None:
    gains = []
    for ffn in (512, 2048):
        model = load_preset("pangu-ultra-moe-718b").model_dump(exclude_unset=True) | {"moe_intermediate_size": ffn}
        sliced = run(model=model, etp=8, ep=4, moe_dispatcher="alltoall_seq")
        whole = run(model=model, etp=1, ep=32, moe_dispatcher="alltoall_seq")
        gains.append(sliced.step_time_s / whole.step_time_s)
    assert gains[0] > gains[1] > 1.0


@pytest.mark.parametrize("imbalance", [1.3, 2.0])
def test_expert_migration_takes_off_imbalance(imbalance: float) -> None:
    uneven = {"routing_imbalance": imbalance, "routing_imbalance_peak": 2.0}
    off, on = run(training=uneven), run("expert_migration", training=uneven)
    assert on.breakdown.imbalance_s < off.breakdown.imbalance_s
    moved, kept = ((one.compute_s + one.uneven_stages_s) for one in (on.breakdown, off.breakdown))
    assert moved == pytest.approx(kept, rel=1e-12)
    assert any("experts migrated every 50 steps" in note for note in on.assumptions)
    assert not any("expert" in note for note in off.assumptions)


def test_a_slight_imbalance_triggers_no_migration() -> None:
    # A coefficient of variation below 0.08 can't fall by 0.08.
    slight = {"routing_imbalance": 1.1, "routing_imbalance_peak": 2.0}
    assert run("expert_migration", training=slight).step_time_s == pytest.approx(
        run(training=slight).step_time_s, rel=1e-12
    )


def test_hot_experts_are_copied_where_that_is_faster() -> None:
    # Their weights are worth their bytes when few experts take most tokens, and not for few tokens a rank.
    few, slight, early = (
        {"routing_imbalance": i, "routing_imbalance_peak": 3.0, "seq_length": n}
        for i, n in ((1.2, 256), (1.2, 8192), (3.0, 8192))
    )
    assert run("mutual_routing", training=few).step_time_s == run(training=few).step_time_s
    assert 0.97 < run("mutual_routing", training=slight).step_time_s / run(training=slight).step_time_s <= 1.0
    assert run("mutual_routing", training=early).step_time_s < 0.97 * run(training=early).step_time_s


def test_capacity_bounds_imbalance_and_activations() -> None:
    early = {"routing_imbalance": 2.5, "routing_imbalance_peak": 4.0}
    off, on = run(training=early), run("capacity_drop", training=early)
    assert on.breakdown.imbalance_s < 0.5 * off.breakdown.imbalance_s
    assert on.peak_memory_gib < off.peak_memory_gib
    tight = run("capacity_drop", training=early | {"expert_capacity_factor": 1.0})
    assert tight.peak_memory_gib < on.peak_memory_gib
    assert tight.step_time_s < on.step_time_s


def test_a_histogram_shortens_attention_and_rearranging_levels_it() -> None:
    lengths = {"sequence_length_histogram": {"512": 50, "2048": 30, "8192": 20}}
    full, packed, levelled = run(), run(training=lengths), run("sample_rearrangement", training=lengths)
    assert packed.breakdown.compute_s < full.breakdown.compute_s
    assert packed.breakdown.imbalance_s > levelled.breakdown.imbalance_s > 0.0
    assert levelled.step_time_s < packed.step_time_s
    assert any("rearranged" in note for note in levelled.assumptions)


@pytest.mark.parametrize("target", ["any", "mindspeed-llm"])
def test_layers_are_even_where_virtual_pipeline_balance_is_off(target: str) -> None:
    wanted = {"tp": 4, "pp": 4, "vpp": 1, "cp": 1, "ep": 1, "micro_batch_size": 1, "schedule": "1f1b"}
    found = {}
    for switch in ("auto", "off"):
        search = {"target": target, "fix": wanted, "features": {"virtual_pipeline_balance": switch}, "top_k": 1}
        document = {
            # A head as heavy as three layers: even stages wait for the last one.
            "model": {"preset": "llama2-7b", "vocab_size": 256_000},
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 64},
            "training": {"seq_length": 4096, "global_batch_size": 128},
            "search": search | {"effort": 0.02, "risk": "neutral"},
        }
        found[switch] = plan(read_spec_document(document), alone=True).plans[0]
    assert found["off"].strategy.layers_per_stage == (8, 8, 8, 8)
    assert found["auto"].step_time_s < found["off"].step_time_s


def test_migration_is_in_a_mindspeed_plan_only_under_its_overlapped_layer() -> None:
    search = {"target": "megatron", "top_k": 1, "effort": 0.02, "risk": "neutral"}
    document = {
        "model": "qwen3-30b-a3b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 64},
        "training": {"seq_length": 4096, "global_batch_size": 256},
    }
    for schedule in ("1f1b", "adaptive_pipe"):
        allowed = search | {"allow": FEW | {"schedule": [schedule]}}
        found = plan(read_spec_document(document | {"search": allowed}), alone=True)
        strategy = found.plans[0].strategy
        assert ("expert_migration" in strategy.features) is (strategy.schedule == "adaptive_pipe")
