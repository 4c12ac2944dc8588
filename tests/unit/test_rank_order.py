"""The second order of ranks: whose groups move, when it is searched, and that it is launched and read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autodeploy.costs.inputs.machine import replica_groups, stage_stride
from autodeploy.costs.stages.step_parts import faster_somewhere
from autodeploy.costs.steps.one_strategy import candidate_for
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from autodeploy.reports.figures import group_spans
from autodeploy.reports.figures.strategy import place_of
from autodeploy.search import planner
from autodeploy.search.branch_and_bound.search_space import legal_candidates, space_of
from autodeploy.search.planner import Prepared, prepare
from autodeploy.space.grid import grid_of, judge_grid
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Strategy
from tests.support.accounting.cases import cluster as accounted
from tests.support.accounting.cases import numbers_of
from tests.support.accounting.ranks import Degrees, groups_of

NAME = "tp_pp_dp_mapping"
TWO_SUPERNODES = [{"supernode": n, "nodes": 2} for n in (0, 1)]


def document(switch: str = "auto", model: str = "qwen3-32b", target: str = "mindspeed-llm", **search: Any) -> Any:
    """Four nodes of sixteen dies in two supernodes."""
    return {
        "model": model,
        "cluster": {"profile": "cloudmatrix-384", "blocks": TWO_SUPERNODES},
        "training": {"seq_length": 4096, "global_batch_size": 64},
        "search": {"target": target, "risk": "neutral", "features": {NAME: switch}, **search},
    }


def prepared(*words: str, **search: Any) -> Prepared:
    return prepare(read_spec_document(document(*words, **search)))


SMALL: dict[str, Any] = {"allow": {"tp": [4, 8], "pp": [2, 4], "vpp": [1, 8], "micro_batch_size": [1, 2]}, "gap": 0.0}


@pytest.mark.parametrize("where", ["nodes", "supernodes"])
@pytest.mark.parametrize("degrees", [{"tp": 2, "pp": 4}, {"tp": 2, "pp": 2, "cp": 2, "ep": 4}, {"pp": 4, "ep": 1}])
@pytest.mark.parametrize("other", [False, True])
def test_groups_span_the_tiers_that_their_ranks_do(where: str, degrees: dict[str, int], other: bool) -> None:
    """Rank by rank, as Megatron-LM generates the groups."""
    model = "mixtral-8x7b" if "ep" in degrees else "llama2-7b"
    spec = document(model=model, target="any") | {"cluster": accounted(where).spec.model_dump(exclude_unset=True)}
    context = prepare(read_spec_document(spec)).context
    strategy = Strategy(**degrees, etp=1, features=(NAME,) if other else ())
    candidate = candidate_for(context, strategy)
    links = numbers_of(context.machine, accounted(where))
    groups = groups_of(0, Degrees(context.world, **degrees, replicas_outside=other))
    assert groups["pp"][1] == stage_stride(candidate, context.world)[0]
    for group, ranks in zip(
        replica_groups(candidate, context.machine, context.world), (groups["dense"], groups["edp"]), strict=True
    ):
        inside = [float(group.members_inside(tier)[0]) for tier in range(len(links.links))]
        assert inside == links.together(ranks)


@pytest.mark.parametrize("model", ["qwen3-32b", "mixtral-8x7b"])
def test_what_is_left_out_is_no_faster(model: str) -> None:
    """Of every strategy that both orders allow, with the same memory."""
    found = prepared(model=model, target="any")
    search, context = found.spec.search, found.context
    space = replace(space_of(search, context, found.profile, found.choice), memory_modes=("",))
    grid = grid_of(space, world=context.world, global_batch=context.global_batch, moe=context.model.is_moe)
    legal = judge_grid(grid, context.facts, search.target)[0].candidates()
    second = legal.take(np.flatnonzero(legal.tp_pp_dp_mapping))
    first = replace(second, tp_pp_dp_mapping=np.zeros(len(second), dtype=np.bool_))
    worth = faster_somewhere(second, first, context)
    mine, theirs = sweep(second, context), sweep(first, context)
    assert 0 < np.count_nonzero(worth) < len(second)
    assert np.all(mine.step_time_s[~worth] >= theirs.step_time_s[~worth])
    assert np.any(mine.step_time_s[worth] < theirs.step_time_s[worth])
    np.testing.assert_array_equal(mine.memory_bytes, theirs.memory_bytes)
    searched = candidates(found)
    plain = ~(searched.reuse_fp32_param | searched.swap_optimizer | searched.virtual_optimizer)
    assert np.count_nonzero(searched.tp_pp_dp_mapping & plain) == np.count_nonzero(worth)


def test_the_search_finds_the_better_order() -> None:
    best = {}
    for switch in ("auto", "on", "off"):
        plan = planner.plan(read_spec_document(document(switch, **SMALL)), alone=True).plans[0]
        assert (NAME in plan.strategy.features) == (switch != "off")
        best[switch] = plan.step_time_s
    assert best["auto"] == best["on"] < best["off"]


def test_switched_off_nothing_of_it_is_enumerated() -> None:
    off, auto = prepared("off"), prepared()
    assert not candidates(off).tp_pp_dp_mapping.any()
    assert candidates(auto).tp_pp_dp_mapping.any()
    assert candidates(prepared("on")).tp_pp_dp_mapping.all()


@pytest.mark.parametrize(("nodes", "searched"), [([1], False), ([4], True), ([2, 2], True), ([1, 3], True)])
def test_it_is_searched_where_a_boundary_lies_between_nodes(nodes: list[int], searched: bool) -> None:
    given = document()
    given["cluster"]["blocks"] = [{"supernode": number, "nodes": count} for number, count in enumerate(nodes)]
    assert bool(candidates(prepare(read_spec_document(given))).tp_pp_dp_mapping.any()) == searched


def candidates(found: Prepared) -> Any:
    return legal_candidates(found.spec.search, found.context, found.profile, found.choice)[0]


def test_mindformers_has_no_such_order() -> None:
    with pytest.raises(SpecError, match=NAME):
        prepared("on", target="mindformers")
    assert not candidates(prepared(target="mindformers")).tp_pp_dp_mapping.any()


@pytest.mark.parametrize("target", ["mindspeed-llm", "megatron"])
def test_a_plan_is_launched_with_it_and_read_back(target: str) -> None:
    found = planner.plan(read_spec_document(document("on", target=target, **SMALL)), alone=True)
    script = export(found, found.plans[0], target).text
    assert "--use-tp-pp-dp-mapping" in script
    imported = import_document(script, "plan.sh")
    assert NAME in imported.spec().strategy.features
    assert imported.diagnostics.unmodelled == ()


def test_ranks_stand_in_that_order() -> None:
    strategy = Strategy(tp=2, cp=2, pp=4, dp=3, ep=4, etp=1, features=(NAME,))
    places = [place_of(rank, strategy) for rank in range(48)]
    assert len({(p.tp, p.cp, p.dp, p.pp) for p in places}) == 48
    for rank, place in enumerate(places):
        assert rank == place.tp + 2 * (place.cp + 2 * (place.pp + 4 * place.dp))
        assert rank == place.ep + 4 * (place.pp + 4 * place.edp)
    spans = {span.name: span for span in group_spans(strategy, 16)}
    assert spans["PP"].first_ranks == (0, 4, 8, 12)
    assert spans["DP"].first_ranks == spans["EDP"].first_ranks == (0, 16, 32)
