"""What the host issues and what moves rows in a layer with experts, by the kernels that flags name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autodeploy.costs.layers.layer_cost import launches
from autodeploy.costs.workload import host_operators as host
from autodeploy.costs.workload.layers import layer_table
from autodeploy.costs.workload.operators import LayerTable, Operator, OperatorFeatures
from autodeploy.search.planner import estimate
from autodeploy.specs.presets import load_preset
from autodeploy.specs.reading import read_spec_document
from tests.support.sharding import shard

PLAIN = OperatorFeatures()
FUSED = OperatorFeatures(fused_operators=True)
MODEL = load_preset("deepseek-v3")
H, K, TOKENS = 7168, 8, 4096


def rows(on: OperatorFeatures, **degrees: int) -> dict[str, Operator]:
    return {op.name: op for op in table(on, **degrees).operators}


def table(on: OperatorFeatures, **degrees: int) -> LayerTable:
    return layer_table(MODEL, shard(**degrees), on, ("moe", None))


def calls(found: LayerTable, *, backward: bool) -> float:
    return float(np.sum([np.asarray(launches(op, backward=backward)).item() for op in found.operators]))


def test_a_fused_permutation_streams_each_token_once() -> None:
    moved = 2 * H * TOKENS * (1 + K)
    fused = rows(FUSED, ep=8)
    for name in ("permute", "unpermute"):
        assert float(fused[name].forward_bytes[0]) == float(fused[name].backward_bytes[0]) == moved


def test_an_unfused_one_picks_and_adds_rows_by_index() -> None:
    picked, added = 4 * H * K * TOKENS, 2 * H * TOKENS + 6 * H * K * TOKENS
    plain = rows(PLAIN, ep=8)
    there, back = plain["permute"], plain["unpermute"]
    assert (float(there.forward_bytes[0]), float(there.backward_bytes[0])) == (picked, added)
    assert (float(back.forward_bytes[0]), float(back.backward_bytes[0])) == (added, picked)
    weighted = rows(replace(PLAIN, weighted_rows=True), ep=8)["unpermute"]
    assert float(weighted.backward_bytes[0]) == 2 * picked


def test_rows_of_several_experts_are_sorted_within_one_rank_too() -> None:
    # Megatron-LM core_v0.12.1, token_dispatcher.py: sort_chunks_by_idxs wherever a rank has several experts.
    assert float(np.asarray(rows(PLAIN, ep=1)["sort_by_expert"].forward_bytes).item()) == 4 * H * K * TOKENS


@pytest.mark.parametrize(("once", "ep"), [(True, 8), (False, 256)])
def test_rows_that_arrive_in_order_are_not_sorted_again(once: bool, ep: int) -> None:
    for name in ("sort_by_expert", "sort_by_rank"):
        again = rows(PLAIN, ep=ep, once=once)[name]
        assert float(np.asarray(again.forward_bytes).item()) == float(np.asarray(again.launches).item()) == 0
        assert launches(again, backward=False) == launches(again, backward=True) == 0


def test_the_router_is_fused_by_its_own_flag() -> None:
    logits = 256 * TOKENS
    assert rows(FUSED, ep=8)["routing"].forward_bytes == pytest.approx(48 * logits)
    assert rows(replace(FUSED, fused_router=True), ep=8)["routing"].forward_bytes == pytest.approx(24 * logits)


def test_gathered_rows_by_one_index_each_leave_out_eight_bytes_an_element() -> None:
    wide, narrow = (rows(replace(PLAIN, row_index=on), ep=8, gathers=True)["permute"] for on in (False, True))  # type: ignore[arg-type]
    received = K * TOKENS
    assert float((wide.forward_bytes - narrow.forward_bytes)[0]) == pytest.approx(8 * H * received)


def test_fusing_issues_fewer_operators_and_kernels_of_each_expert_more() -> None:
    plain, fused = table(PLAIN, ep=8), table(replace(FUSED, fused_router=True), ep=8)
    for backward in (False, True):
        assert calls(fused, backward=backward) < calls(plain, backward=backward)
    apart = table(replace(PLAIN, group_launches=0.5), ep=8)
    # Two products of 32 experts, half an operator each; backward both gradients, and a hook for each parameter.
    assert calls(apart, backward=False) - calls(plain, backward=False) == 2 * 0.5 * 32
    assert calls(apart, backward=True) - calls(plain, backward=True) == 4 * 0.5 * 32 + 2 * 31


def test_small_micro_batches_of_experts_are_bound_by_the_host() -> None:
    def share(seq: int, *features: str) -> float:
        spec = read_spec_document(
            {
                "model": "qwen3-30b-a3b",
                "cluster": {"profile": "nvidia-h100", "num_npus": 32},
                "training": {"seq_length": seq, "global_batch_size": 2048, "routing_imbalance": 1.0},
                "search": {"target": "any"},
                "strategy": {"ep": 8, "dp": 32},
            }
        )
        on = frozenset({"flash_attention", "fused_swiglu", "fused_rmsnorm", "grouped_gemm", *features})
        plan = estimate(spec, features=on)
        return plan.breakdown.host_bound_s / plan.step_time_s

    assert share(256) > 0.15 > 0.05 > share(16384)
    assert share(256, "fused_operators", "fused_router") < share(256)
    assert share(256, "cuda_graphs") < share(256)


# Operators that Megatron-LM core_v0.12.1's _apply_rotary_pos_emb_thd calls on packs of 1, 2 and 5 documents with
# MindSpeed @028de58c's _apply_rotary_pos_emb_bshd, counted on the CPU (TorchDispatchMode, views and allocations apart).
@pytest.mark.parametrize(
    ("fused", "cp", "forward", "backward"),
    [
        (True, 1, (11, 19, 43), (5, 8, 17)),
        (True, 4, (12, 21, 48), (5, 8, 17)),
        (False, 1, (15, 27, 63), (9, 16, 37)),
        (False, 4, (16, 29, 68), (9, 16, 37)),
    ],
)
def test_packs_are_rotated_by_as_many_operators_as_the_framework_calls(
    *, fused: bool, cp: int, forward: tuple[int, ...], backward: tuple[int, ...]
) -> None:
    for documents, ahead, back in zip((1, 2, 5), forward, backward, strict=True):
        on = OperatorFeatures(
            fused_rotary=fused, mean_keys=64.0, documents=float(documents), rotates_documents=True, makes_angles=True
        )
        issued = host.of_rotation(shard(cp=cp), on)
        assert [float(np.max(each)) for each in issued] == [2.0 * ahead, 2.0 * back]
    whole = OperatorFeatures(fused_rotary=fused)
    assert host.of_rotation(shard(cp=cp), whole) == ((16.0, 8.0) if fused else (24.0, 16.0))
