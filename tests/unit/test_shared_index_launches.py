"""Launches of a model whose layers share chosen keys: flags out and in, and placements that its framework refuses."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import UnsupportedError
from autodeploy.search.planner import plan
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Strategy
from cost_models.schedule import sizes_from
from tests import factories

if TYPE_CHECKING:
    from random import Random

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
    with pytest.raises(UnsupportedError, match="cannot set"):
        export(*placed(PLACED), "megatron")


def test_a_search_places_whole_groups_where_its_target_wants_them() -> None:
    fixed = {"tp": 2, "pp": 8, "vpp": 1, "ep": 64, "cp": 1, "micro_batch_size": 1, "schedule": "1f1b"}
    spec = parse_spec(
        {
            "model": "glm-5.2",
            "cluster": {"profile": "cloudmatrix-384", "num_npus": 256},
            "training": {"seq_length": 4096, "global_batch_size": 2048},
            "search": {"target": "mindspeed-llm", "fix": fixed, "top_k": 1, "risk": "neutral"},
        }
    )
    found = plan(spec, alone=True)
    layers = found.plans[0].strategy.layers_per_stage
    assert layers is not None
    begins = set(accumulate(int(each) for each in layers[:-1] if isinstance(each, int)))
    assert begins <= set(load_preset("glm-5.2").index_starts)
    assert "--num-layer-list" in export(found, found.plans[0], "mindspeed-llm").text


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_sizes_begin_where_they_may_and_stay_where_they_do(sizes: list[int], random: Random) -> None:
    total = sum(sizes)
    others = sorted(random.sample(range(1, total), random.randint(len(sizes) - 1, total - 1)))
    aligned = sizes_from([0, *others], sizes)
    begins = list(accumulate(aligned[:-1]))
    assert sum(aligned) == total
    assert min(aligned) >= 1
    assert set(begins) <= set(others)
    assert sizes_from([0, *others], aligned) == aligned
