"""FSDP2 as a target of the search: what it shards, gathers and copies, its strategies, and the file it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.launch_requests import refuse_illegal
from autodeploy.formats.fsdp2.keys import TARGET
from autodeploy.formats.registry import export, formats_of
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.search.planner import estimate, launch_rules, plan, prepare
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.text_files import load_yaml
from cost_models.data_parallel import copy_in_s, copy_out_s
from cost_models.hbm import OptimizerFormat, state_bytes
from tests.support.sharded_plans import sharded_plan_set

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan

BASE: dict[str, Any] = {
    "model": "qwen3-30b-a3b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 64},
    "training": {"seq_length": 4096, "global_batch_size": 128},
    "search": {"target": TARGET},
}
FULL = {"granularity": "full"}


def run(*more: str, **strategy: Any) -> Plan:
    on = frozenset(prepare(read_spec_document(BASE)).choice.on - {"keep_gathered"}) | set(more)
    stated = {"ep": 8, "etp": 1, "recompute": FULL, "fsdp": True} | strategy
    return estimate(read_spec_document(BASE | {"strategy": stated | {"features": sorted(on)}}))


def test_a_parameter_is_held_once_in_fp32() -> None:
    """FP32 weight, gradient and two moments: 16 bytes a parameter of the shard, not 18."""
    form = OptimizerFormat.of(frozenset({"torch_fsdp2"}))
    assert float(state_bytes(8, distributed_optimizer=True, fsdp=True, optimizer=form).total) == pytest.approx(16 / 8)


def test_copies_move_device_memory() -> None:
    # A 16-bit weight is read and written; its gradient is read in 16 bits and written in 32.
    assert float(copy_out_s(1e9, 1.0, 2.0, 1e12)) == pytest.approx(4e-3)
    assert float(copy_in_s(1e9, 1.0, 2.0, 4.0, 1e12)) == pytest.approx(6e-3)
    # Shards of columns are put together in one more copy.
    assert float(copy_out_s(1e9, 2.0, 2.0, 1e12)) == pytest.approx(8e-3)
    assert float(copy_in_s(1e9, 2.0, 2.0, 4.0, 1e12)) == pytest.approx(10e-3)
    assert float(copy_in_s(1e9, 0.0, 2.0, 4.0, 1e12)) == 0.0


def test_what_stays_gathered_is_gathered_once_and_takes_its_memory() -> None:
    again, kept = run(), run("keep_gathered")
    assert kept.breakdown.exposed_dp_s < again.breakdown.exposed_dp_s
    more = kept.stages[0].memory_gib.weights - again.stages[0].memory_gib.weights
    # All experts of a rank and everything else, 2 bytes a parameter.
    assert more == pytest.approx(2 * (28.99e9 / 8 + 1.54e9) / 2**30, rel=0.01)


def test_experts_are_gathered_over_their_own_replicas() -> None:
    """Twice the expert parallel ranks: half of the experts arrive in each pass, over half as many ranks."""
    exposed = [run(ep=ep).breakdown.exposed_dp_s for ep in (4, 8, 16)]
    assert exposed[0] > exposed[1] > exposed[2]


def test_copies_of_all_shards_gather_in_smaller_groups_and_hold_more() -> None:
    """HSDP: a node holds all shards, and nodes add up their reduced gradients."""
    one, eight = run(micro_batch_size=2), run(micro_batch_size=2, dp_replicate=8)
    states = [
        sum(getattr(each.stages[0].memory_gib, kind) for kind in ("weights", "gradients", "optimizer"))
        for each in (one, eight)
    ]
    assert states[1] == pytest.approx(8.0 * states[0], rel=0.01)
    assert eight.strategy.dp_replicate == 8
    assert one.strategy.dp_replicate == 1
    assert "dp_replicate" not in one.strategy.model_dump()


def test_copies_of_all_shards_trade_gathers_for_a_sum() -> None:
    """Between nodes, two gathers and a reduction to FP32 are 2 + 2 + 4 bytes a parameter, the sum alone 2 x 4."""
    one, eight = (run(micro_batch_size=2, dp_replicate=copies, ep=1) for copies in (1, 8))
    assert eight.breakdown.exposed_dp_s == pytest.approx(one.breakdown.exposed_dp_s, rel=0.01)
    # In 16 bits the sum is half of that.
    one, eight = (run("bf16_gradients", micro_batch_size=2, dp_replicate=copies, ep=1) for copies in (1, 8))
    assert eight.breakdown.exposed_dp_s < 0.85 * one.breakdown.exposed_dp_s


def test_a_sum_has_one_window_and_gathers_have_two() -> None:
    """Experts with one replica a node gather nothing, and sum up in FP32 beside the backward pass alone."""
    exposed = [run(micro_batch_size=2, dp_replicate=copies).breakdown.exposed_dp_s for copies in (1, 2, 4, 8)]
    assert exposed == sorted(exposed)


@pytest.mark.parametrize("copies", [3, 16])
def test_copies_that_leave_a_fraction_are_refused(copies: int) -> None:
    with pytest.raises(SpecError) as caught:
        run(dp_replicate=copies)
    assert caught.value.errors[0].path == "/strategy/dp_replicate"


def test_reducing_in_16_bits_leaves_the_shards_as_they_are() -> None:
    plain, short = run(), run("bf16_gradients")
    assert short.breakdown.exposed_dp_s <= plain.breakdown.exposed_dp_s
    assert short.stages[0].memory_gib.gradients == plain.stages[0].memory_gib.gradients


def test_the_search_has_what_the_backend_has() -> None:
    found = plan(
        read_spec_document(BASE | {"search": {"target": TARGET, "effort": 0.02, "top_k": 4, "risk": "neutral"}}),
        alone=True,
    )
    assert len(found.plans) == 4
    for each in found.plans:
        strategy = each.strategy
        assert (strategy.tp, strategy.pp, strategy.fsdp) == (1, 1, True)
        assert {"fsdp", "torch_fsdp2", "overlap_param_gather"} <= set(strategy.features)
        assert strategy.moe_dispatcher == "alltoall"


def test_it_keeps_weights_gathered_where_that_is_faster_and_fits() -> None:
    """A small model at a small micro batch: gathering is what a pass waits for."""
    best = sharded_plan_set(TARGET).plans[0]
    assert "keep_gathered" in best.strategy.features
    off = BASE["search"] | {"features": {"keep_gathered": "off"}, "effort": 0.02, "top_k": 1, "risk": "neutral"}
    found = plan(read_spec_document(BASE | {"search": off}), alone=True)
    assert "keep_gathered" not in found.plans[0].strategy.features


def test_what_the_backend_always_does_is_not_switched_off() -> None:
    with pytest.raises(UnsupportedError) as caught:
        prepare(read_spec_document(BASE | {"search": {"target": TARGET, "features": {"fsdp": "off"}}}))
    assert "always has it" in caught.value.errors[0].message
    assert caught.value.errors[0].path == "/search/features/fsdp"


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [
        ({"pp": 2}, "fsdp2_one_stage"),
        ({"tp": 2}, "fsdp2_shards_over_all"),
        ({"dp_replicate": 2}, "fsdp2_shards_once"),
        ({"cp": 4, "cp_algo": "hybrid", "ulysses_degree": 2}, "fsdp2_context_algorithms"),
        ({"ep": 8, "moe_dispatcher": "allgather"}, "fsdp2_dispatches_to_all"),
    ],
)
def test_strategies_that_the_backend_lacks_fail_a_check(strategy: dict[str, Any], rule: str) -> None:
    stated = {"ep": 8, "etp": 1, "fsdp": True, "recompute": FULL} | strategy
    assert rule in {each.rule for each in launch_rules(read_spec_document(BASE | {"strategy": stated})).broken}


@pytest.mark.parametrize("model", ["qwen3-0.6b", "qwen3-30b-a3b"])
def test_the_file_says_the_plan(model: str) -> None:
    plan_set = sharded_plan_set(TARGET, model, 8 if model == "qwen3-0.6b" else 64)
    best = plan_set.plans[0]
    artefact = export(plan_set, best, TARGET)
    written = load_yaml(artefact.text)
    parallel, training = written["parallel"], written["training"]
    ranks, strategy = best.num_npus_used, best.strategy
    assert parallel["fsdp_size"] == ranks
    assert parallel["reshard_after_forward"] is ("keep_gathered" not in strategy.features)
    if strategy.ep > 1:
        assert parallel["ep_size"] * parallel["ep_fsdp_size"] == ranks
    batch = training["per_device_train_batch_size"] * training["gradient_accumulation_steps"]
    assert batch * ranks // parallel["cp_size"] == plan_set.search.spec["training"]["global_batch_size"]["value"]
    assert written["data"]["cutoff_len"] == 4096
    assert f"preset={model}" in artefact.text
    assert "torchrun --nproc_per_node 8" in artefact.text


def test_a_plan_with_stages_is_not_offered() -> None:
    assert TARGET in formats_of("1f1b")
    assert TARGET not in formats_of("1f1b", parts=2)
    assert TARGET not in formats_of("dualpipev")
    plan_set = sharded_plan_set(TARGET)
    best = plan_set.plans[0]
    cut = best.model_copy(update={"strategy": best.strategy.model_copy(update={"tp": 2})})
    with pytest.raises(UnsupportedError, match="fsdp2_shards_over_all"):
        refuse_illegal(plan_set, cut, TARGET, launch_rules)
