"""Peaks before the first step: buffers of parameters beside the parameters, and functions tried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.search import planner
from autodeploy.specs.reading import read_spec_document
from cost_models.hbm import GIB, MIB, building_bytes, building_moments, warm_up_bytes
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

CHATGLM = {
    "name": "two layers",
    "hidden_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "intermediate_size": 13696,
    "vocab_size": 65024,
}
QWEN = {"profile": "ascend-800t-a2", "num_npus": 32}
FRAGMENTATION = load_profile("ascend-800t-a2").memory.fragmentation
FULL: dict[str, object] = {"tp": 4, "pp": 2, "ep": 8, "etp": 1, "micro_batch_size": 1, "sequence_parallel": True}


def document(strategy: dict[str, object], **changes: object) -> Spec:
    base = {
        "model": "qwen3-235b-a22b",
        "cluster": QWEN,
        "training": {"seq_length": 1024, "global_batch_size": 16},
        "search": {"target": "megatron"},
        "strategy": strategy,
    }
    return read_spec_document(base | changes)


def test_tried_functions_are_the_published_peak_on_four_ranks_and_on_eight() -> None:
    assert warm_up_bytes(65536, 13696, 2.0) / MIB == 29104.0  # of 29,104.03 MiB, two biases beside it


@pytest.mark.parametrize("cards", [4, 8])
def test_the_published_peak_is_that_of_the_start(cards: int) -> None:
    context = {"cp": cards, "cp_algo": "hybrid", "ulysses_degree": cards // 2}
    cp: dict[str, object] = {"sequence_parallel": True, "tp": 1, "pp": 1, "micro_batch_size": 1, **context}
    spec: dict[str, object] = {
        "model": CHATGLM,
        "cluster": {"profile": "ascend-800t-a2", "num_npus": cards},
        "training": {"seq_length": 65536, "global_batch_size": 8, "precision": "fp16"},
        "search": {"target": "mindspeed-llm"},
    }
    old = document(cp, **spec, software={"stack": "mindspeed-llm-2024"})
    plan = planner.estimate(old)
    outside = plan.stages[0].memory_gib.communication_buffers + plan.stages[0].memory_gib.runtime
    fragmentation = 1.0 + FRAGMENTATION
    assert (plan.start_gib - outside) / fragmentation == pytest.approx(29104.034 / 1024, abs=1e-4)
    assert plan.highest_gib == plan.start_gib > plan.peak_memory_gib
    assert planner.estimate(document(cp, **spec)).start_gib < plan.start_gib / 2  # today's cuts the sequence


def test_experts_buffer_is_asked_for_beside_all_weights() -> None:
    experts = 47 * 16 * 3 * 4096 * 1536
    assert experts * 2 / GIB == pytest.approx(26.44, abs=0.005)  # the published request
    start = building_bytes(1e9, experts, (2.0, 2.0), 1.0)
    assert start == 2.0 * (1e9 + experts) + 2.0 * (1e9 + experts) + 2.0 * experts
    assert building_bytes(1e9, 0.0, (2.0, 4.0), 4.0) == 6.5e9  # one chunk of four at a time
    assert building_bytes(1e9, 1e9, (2.0, 4.0), 1.0, 8e9) == 14e9


def test_the_start_is_told_where_it_is_the_peak_and_a_frozen_model_has_none() -> None:
    offloaded = FULL | {"moe_dispatcher": "alltoall", "optimizer_offload_fraction": 1.0, "recompute": "full"}
    plan = planner.estimate(document(offloaded))
    assert plan.start_gib == plan.highest_gib > plan.peak_memory_gib
    assert not plan.fits
    fullest = max(plan.stages, key=lambda stage: stage.total_gib)
    assert sum(fullest.memory_gib.model_dump().values()) == pytest.approx(fullest.total_gib)
    lora = {"rank": 8, "target_modules": ["linear_qkv", "linear_fc1", "linear_fc2"]}
    frozen = document(
        FULL | {"moe_dispatcher": "alltoall"},
        training={"seq_length": 1024, "global_batch_size": 16, "kind": "sft", "lora": lora},
        search={"target": "mindspeed-llm"},
    )
    assert planner.estimate(frozen).start_gib < planner.estimate(frozen).peak_memory_gib / 2


def searched_for(objective: str, **search: Any) -> Spec:
    """A model whose start takes more than its step: many replicas, short sequences."""
    return read_spec_document(
        {
            "model": CHATGLM | {"num_hidden_layers": 24, "vocab_size": 32000},
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 128},
            "training": {"seq_length": 512, "global_batch_size": 256},
            "search": {"target": "megatron", "objective": objective, "top_k": 5, "effort": "fast"} | search,
        }
    )


def test_the_plan_of_least_memory_is_measured_by_its_start_and_none_is_bounded_above_it() -> None:
    result = planner.plan(searched_for("peak_memory"))
    taken = [plan.highest_gib for plan in result.plans]
    assert taken == sorted(taken)
    assert any(plan.start_gib > plan.peak_memory_gib for plan in result.plans)
    assert result.optimality.bound is not None
    assert result.optimality.bound <= taken[0]
    tight = planner.plan(searched_for("step_time", memory_limit_gib=taken[0] * 1.001))
    assert all(plan.fits and plan.highest_gib <= taken[0] * 1.002 for plan in tight.plans)


def test_the_sweep_bounds_the_start_of_the_fullest_stage_by_the_mean() -> None:
    dense, expert = np.array([1e9, 2e9, 3e9]), np.array([4e9, 1e9, 2e9])
    fullest = building_bytes(dense, expert, (2.0, 4.0), 2).max()
    assert building_bytes(dense.mean(), expert.mean(), (2.0, 4.0), 2) <= fullest
    assert np.maximum(*building_moments(dense, expert, (2.0, 4.0), 2)).max() == fullest
