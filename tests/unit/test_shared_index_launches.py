"""Launches of a model whose layers share chosen keys: flags out and in, and placements that its framework refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autodeploy.errors import UnsupportedError
from autodeploy.exporters import export
from autodeploy.importers.import_document import import_document
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Strategy
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

# MindSpeed-LLM @c77308a1, examples/mcore/glm52: every stage begins with a layer that has an indexer.
PLACED = (10, 12, 8, 8, 8, 12, 12, 8)


def placed(layers: tuple[int, ...]) -> tuple[PlanSet, Plan]:
    strategy = Strategy(
        tp=2,
        pp=8,
        dp=32,
        ep=64,
        etp=1,
        sequence_parallel=True,
        layers_per_stage=layers,
        moe_dispatcher="alltoall",
        features=("flash_attention", "grouped_gemm"),
    )
    spec = parse_spec(
        {
            "model": "glm-5.2",
            "cluster": {"profile": "cloudmatrix-384", "num_npus": 256},
            "training": {"seq_length": 4096, "global_batch_size": 2048},
        }
    )
    plan = factories.plan(1, spec=spec, strategy=strategy, stages=(), run=None, micro_batches=64, num_npus_used=256)
    return factories.plan_set(1, spec=spec), plan


def test_a_launch_says_which_layers_have_an_indexer_and_is_read_back() -> None:
    text = export(*placed(PLACED), "mindspeed-llm").text
    assert "--num-layer-list 10,12,8,8,8,12,12,8" in text
    spec = import_document(text, "plan.sh").spec()
    assert spec.model.sparse_attention == load_preset("glm-5.2").sparse_attention
    assert spec.strategy is not None
    assert spec.strategy.layers_per_stage == PLACED


def test_a_stage_that_begins_inside_a_group_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="begins with layer 12") as caught:
        export(*placed((11, 11, 8, 8, 8, 12, 12, 8)), "mindspeed-llm")
    nearest = str(caught.value.errors[0].hint).rpartition(" ")[2]
    assert nearest == "10,12,8,8,8,12,12,8"
    assert export(*placed(tuple(map(int, nearest.split(",")))), "mindspeed-llm").text


def test_releases_without_the_flag_refuse_it_by_name() -> None:
    with pytest.raises(UnsupportedError, match="no flags for"):
        export(*placed(PLACED), "megatron")
