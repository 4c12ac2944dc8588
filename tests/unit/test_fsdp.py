"""Fully sharded data parallelism: bytes, exchanges of every pass, launch rules and the way through a search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.ablation.feature_ablation import ablate
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.search.planner import estimate, plan, prepare
from autodeploy.specs.reading import read_spec_document
from cost_models.data_parallel import sharded_pass_s

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan

STACK = frozenset({"flash_attention", "fused_swiglu", "fused_rmsnorm"})
OVERLAPPED = STACK | {"overlap_grad_reduce", "overlap_param_gather"}
BASE: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 64},
    "training": {"seq_length": 8192, "global_batch_size": 256},
    "search": {"target": "any"},
}


def run(features: frozenset[str] = OVERLAPPED, **strategy: Any) -> Plan:
    stated = {"tp": 1, "pp": 1, "micro_batch_size": 1, "recompute": {"granularity": "full"}} | strategy
    return estimate(read_spec_document(BASE | {"strategy": stated}), features=features)


def test_weights_gradients_and_states_are_split_over_the_replicas() -> None:
    whole, split = run(), run(fsdp=True)
    for kind in ("weights", "gradients"):
        before, after = (getattr(p.stages[0].memory_gib, kind) for p in (whole, split))
        assert after == pytest.approx(before / 64, rel=0.01)
    assert split.stages[0].memory_gib.optimizer == pytest.approx(whole.stages[0].memory_gib.optimizer, rel=0.01)
    # Two gathered units of 16-bit weights and one FP32 gradient: 8 B a parameter of the largest, the embedding.
    held = [
        sum(getattr(p.stages[0].memory_gib, k) for k in ("weights", "gradients", "optimizer")) for p in (whole, split)
    ]
    gathered = split.allocator_peak_gib - whole.allocator_peak_gib + held[0] - held[1]
    assert gathered == pytest.approx(8 * 128_256 * 4096 / 2**30, rel=0.02)


def test_every_micro_batch_gathers_and_reduces() -> None:
    bare = [run(STACK, fsdp=True, micro_batch_size=size).breakdown.exposed_dp_s for size in (1, 2, 4)]
    assert bare[0] == pytest.approx(2.0 * bare[1], rel=0.01)
    assert bare[1] == pytest.approx(2.0 * bare[2], rel=0.01)
    assert run(STACK, fsdp=True).breakdown.exposed_dp_s > 4.0 * run(STACK).breakdown.exposed_dp_s


def test_what_overlaps_hides_behind_the_pass() -> None:
    steps = [
        run(STACK.union(on), fsdp=True).step_time_s
        for on in ((), ("overlap_grad_reduce",), ("overlap_grad_reduce", "overlap_param_gather"))
    ]
    assert steps[0] > steps[1] > steps[2]


def test_a_pass_pays_what_stands_alone_and_what_is_longer_than_its_window() -> None:
    free = {"contention": 1.0, "overlap_gather": True, "overlap_reduce": True}
    assert float(sharded_pass_s(1.0, 2.0, 5.0, **free)[0]) == 0.0
    assert float(sharded_pass_s(1.0, 2.0, 2.5, **free)[0]) == pytest.approx(0.5)
    assert float(sharded_pass_s(1.0, 2.0, 5.0, **(free | {"overlap_gather": False}))[0]) == pytest.approx(1.0)
    assert float(sharded_pass_s(1.0, 2.0, 5.0, **(free | {"overlap_gather": False, "overlap_reduce": False}))[0]) == 3.0


def test_paired_passes_have_no_place_for_it() -> None:
    model = {"model": "qwen3-30b-a3b"}
    strategy = {"tp": 1, "pp": 2, "vpp": 2, "ep": 8, "schedule": "adaptive_pipe", "fsdp": True}
    with pytest.raises(SpecError) as caught:
        estimate(read_spec_document(BASE | model | {"strategy": strategy}))
    assert caught.value.errors[0].path == "/strategy/fsdp"


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        ({"target": "mindformers"}, "mindformers can't launch it"),
        ({"target": "any", "numerics": "exact"}, "numerics are reordered"),
    ],
)
def test_it_is_refused_where_it_cannot_be(search: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        prepare(read_spec_document(BASE | {"search": search | {"features": {"fsdp": "on"}}}))
    assert reason in caught.value.errors[0].message


def test_a_search_uses_it_where_it_is_asked_for_and_only_there() -> None:
    wanted = {"tp": 1, "pp": 1, "micro_batch_size": 1}
    found = {}
    for switch in ("on", "auto"):
        search = {"target": "mindspeed-llm", "effort": 0.02, "top_k": 1, "fix": wanted, "features": {"fsdp": switch}}
        found[switch] = plan(read_spec_document(BASE | {"model": "llama2-7b", "search": search})).plans[0]
    assert found["on"].strategy.fsdp
    assert "fsdp" in found["on"].strategy.features
    assert not found["auto"].strategy.fsdp
    assert not found["on"].strategy.reuse_fp32_param
    assert found["on"].peak_memory_gib < found["auto"].peak_memory_gib
    assert "switch it on" in prepare(read_spec_document(BASE)).choice.off_reasons["fsdp"]


def test_ablation_prices_it() -> None:
    strategy = {"tp": 1, "pp": 1, "micro_batch_size": 1, "recompute": {"granularity": "full"}, "fsdp": True}
    rows = ablate(read_spec_document(BASE | {"strategy": strategy | {"features": sorted(OVERLAPPED)}})).rows
    alone = next(row for row in rows if row.feature == "fsdp" and row.mode == "alone")
    baseline = next(row for row in rows if row.mode == "baseline")
    assert alone.peak_memory_gib < baseline.peak_memory_gib - 20.0
    assert alone.predicted < 0.0
    assert alone.moved["exposed_dp_s"] > 0.0
