"""An embedding on the first and the last stage: both add up its gradient, once a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.search.planner import estimate
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan

SMALL = {
    "name": "small",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 8192,
    "vocab_size": 151936,
}


def estimated(*, tied: bool, pp: int) -> Plan:
    document: dict[str, Any] = {
        "model": {**SMALL, "tie_word_embeddings": tied},
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "strategy": {"tp": 1, "pp": pp, "features": ["flash_attention", "fused_rmsnorm", "fused_swiglu"]},
    }
    return estimate(read_spec_document(document))


def test_two_stages_add_up_the_gradient_of_what_both_hold() -> None:
    apart, shared = (estimated(tied=tied, pp=2) for tied in (False, True))
    gradient_bytes = 4.0 * 151936 * 2048
    within_a_pair_of_nodes_s = gradient_bytes / 25e9  # each of two ranks sends and receives half of it twice
    more_s = shared.breakdown.exposed_dp_s - apart.breakdown.exposed_dp_s
    assert within_a_pair_of_nodes_s <= more_s <= 2.0 * within_a_pair_of_nodes_s


def test_one_stage_holds_it_once() -> None:
    apart, tied = (estimated(tied=each, pp=1) for each in (False, True))
    assert tied.breakdown.exposed_dp_s < apart.breakdown.exposed_dp_s
    assert tied.step_time_s == pytest.approx(apart.step_time_s, rel=0.1)
