"""A space is bounded before it is enumerated, and never by less than it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from autodeploy.space.grid import grid_cells, grid_of, most_candidates
from autodeploy.space.space import Space, default_space, restrict
from autodeploy.specs.reading import read_spec_document
from tests.support.pace import at_most

pytestmark = pytest.mark.unit

LARGE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"num_npus": 30_240}, {}, "/search/fix"),
    ({"num_npus": 8192, "use": "at_most"}, {}, "/search/fix"),
    ({}, {"allow": {axis: list(range(1, 400)) for axis in ("tp", "pp", "vpp", "cp", "ep")}}, "/search/allow"),
    ({}, {"allow": {axis: list(range(7, 90_000, 7)) for axis in ("tp", "pp")}}, "/search/allow"),
]


def spec_document(cluster: dict[str, Any], search: dict[str, Any], **training: Any) -> dict[str, Any]:
    return {
        "model": "deepseek-v3",
        "cluster": {"profile": "cloudmatrix-384", "num_npus": 384} | cluster,
        "training": {"seq_length": 4096, "global_batch_size": 15360} | training,
        "search": search,
    }


@pytest.mark.parametrize(
    ("model", "num_npus", "seq_length"),
    [("deepseek-v3", 384, 4096), ("deepseek-v3", 96, 65_536), ("qwen3-0.6b", 8, 4096), ("llama3-70b", 64, 32_768)],
)
@pytest.mark.parametrize(
    "search", [{}, {"fix": {"tp": 2}}, {"allow": {"schedule": ["1f1b", "interleaved"], "vpp": [1, 2]}}]
)
def test_no_less_than_there_are_and_not_many_more(model, num_npus, seq_length, search):
    document = spec_document({"num_npus": num_npus}, search, seq_length=seq_length) | {"model": model}
    prepared = planner.prepare(read_spec_document(document))
    context = prepared.context
    space = default_space(
        context.model,
        context.world,
        prepared.profile.ranks_per_node,
        context.seq_length,
        context.global_batch,
        prepared.choice.switches,
    )
    space = restrict(space, prepared.spec.search)
    sizes = {"world": context.world, "global_batch": context.global_batch, "moe": context.model.is_moe}
    found = len(grid_of(space, **sizes).whole())
    assert found <= most_candidates(space, context.world) <= 3 * found + 100
    assert grid_cells(space) < 2_000_000


@pytest.mark.parametrize(("cluster", "search", "pointer"), LARGE)
def test_an_enormous_space_is_refused_at_once(cluster, search, pointer):
    spec = read_spec_document(spec_document(cluster, search, seq_length=1_048_576))
    for refuse in (planner.check_space, planner.plan):
        with at_most(2.0), pytest.raises(SpecError) as caught:
            refuse(spec)
        assert [error.path for error in caught.value.errors] == [pointer]
        assert "strategies" in caught.value.errors[0].message
        assert caught.value.errors[0].hint


def test_the_most_is_what_there_is_where_nothing_contradicts():
    sizes = {"world": 16, "global_batch": 48, "moe": False}
    space = Space(
        **{"tp": [1, 2, 4], "pp": [2, 4], "vpp": [1, 2], "cp": [1, 2], "ep": [1], "micro_batch_size": [1, 3]},
        **{"cp_algo": [0, 1], "schedule": [0, 1], "moe_dispatcher": [0]},
        etp_modes=("as_tp",),
        memory_modes=("", "swap_optimizer"),
    )
    assert most_candidates(space, 16) == len(grid_of(space, **sizes).whole().candidates())
    alone = replace(space, tp=[16], pp=[1], vpp=[1], schedule=[0])
    assert most_candidates(alone, 16) == len(grid_of(alone, **sizes).whole().candidates())
    experts = replace(space, ep=[1, 2], etp_modes=("whole", "as_tp"), moe_dispatcher=[0, 2], cp=[1])
    assert most_candidates(experts, 16) == len(grid_of(experts, **sizes | {"moe": True}).whole().candidates())
