"""Rehearsals: a rank's work is the plan's, operator by operator, and so is what a layer takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.analysis.launch_checks.legality import judge_script
from autodeploy.analysis.rehearsal.rehearse import launches_before, rehearse
from autodeploy.analysis.rehearsal.shape import kept_layers, model_of_layers
from autodeploy.costs.layers.unit_costs import sharding_of
from autodeploy.costs.workload.layers import layer_kinds, layer_table
from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import in_language
from autodeploy.reports.comparison import rehearsal_lines
from autodeploy.search import planner
from autodeploy.specs.answers import CheckLimits
from autodeploy.specs.artefact import with_remarks
from autodeploy.specs.spec import Spec
from cost_models.host_bound import slowest_of
from hardware_profiles import load_profile
from tests.support.rehearsed_plans import PLANS, searched

if TYPE_CHECKING:
    from autodeploy.analysis.rehearsal.rehearse import Rehearsal
    from autodeploy.costs.workload.operators import LayerTable
    from autodeploy.specs.planset import Plan

pytestmark = pytest.mark.unit

# As many columns as there are experts, of which a rehearsal has fewer: the router and what follows its logits.
OF_ALL_EXPERTS = frozenset({"router", "routing", "router_logits", "unpermute_in"})
KEPT = ("tp", "cp", "vpp", "micro_batch_size", "schedule", "moe_dispatcher", "features", "swap", "sequence_parallel")
_FOUND: dict[tuple[str, str], Rehearsal] = {}


def rehearsed(name: str, nodes: str) -> Rehearsal:
    """The rehearsal of a named plan, made once."""
    if (name, nodes) not in _FOUND:
        _FOUND[name, nodes] = rehearse(*searched(name), nodes, planner)
    return _FOUND[name, nodes]


def tables(spec: Spec, plan: Plan) -> dict[str, LayerTable]:
    """The table of every kind of layer."""
    context, candidate = planner.lowered(spec, plan)
    shard = sharding_of(candidate, context)
    found = [layer_table(context.model, shard, context.operators, kind) for kind, _ in layer_kinds(context.model)]
    return {table.name: table for table in found}


def numbers(row: Any) -> dict[str, object]:
    """The fields of a row, arrays as numbers."""
    values = row._asdict().items()
    return {name: np.asarray(v).tolist() if isinstance(v, np.ndarray | float) else v for name, v in values}


@pytest.mark.parametrize("nodes", ["2nodes", "4nodes"])
@pytest.mark.parametrize("name", PLANS)
def test_the_tables_of_a_rank_are_the_plans(name, nodes):
    plan_set, plan = searched(name)
    found = rehearsed(name, nodes)
    mine = tables(found.spec, found.plan)
    theirs = tables(Spec.model_validate(plan_set.search.spec), plan)
    assert mine.keys() == theirs.keys()
    for kind, table in mine.items():
        for rows in ("operators", "tensors", "exchanges"):
            here, there = getattr(table, rows), getattr(theirs[kind], rows)
            assert [row.name for row in here] == [row.name for row in there]
            assert len(here) > 2 or rows == "exchanges"
            for one, other in zip(here, there, strict=True):
                if one.name not in OF_ALL_EXPERTS or "n_routed_experts" not in found.changed:
                    assert numbers(one) == numbers(other), (kind, one.name)
        assert np.array_equal(table.expert_params, theirs[kind].expert_params)


def slower(found: Rehearsal, plan: Plan) -> float:
    """Time of the slowest of a plan's devices against that of a node."""
    chips = load_profile(found.spec.cluster.profile)
    scatter = chips.efficiency["device_scatter"]
    both = slowest_of([plan.num_npus_used * chips.devices_per_npu, chips.ranks_per_node], scatter)
    return float(1.0 + both[0] - both[1])


@pytest.mark.parametrize("nodes", ["2nodes", "4nodes"])
@pytest.mark.parametrize("name", PLANS)
def test_a_layer_takes_as_long_where_nothing_of_it_differs(name, nodes):
    """The slowest of more devices is slower, which no rehearsal has: that is taken off before comparing."""
    found = rehearsed(name, nodes)
    group_differs = "ep" in found.changed
    growth = slower(found, found.of) / slower(found, found.plan)
    checked = 0
    for there, here in found.layer_s.values():
        for part, seconds in there.items():
            if group_differs and part in {"imbalance_s", "exposed_ep_s"}:
                continue
            grown = growth if part == "compute_s" else 1.0
            assert grown * here[part] == pytest.approx(seconds, rel=0.02, abs=1e-6), part
            if not found.changed.keys() & {"n_routed_experts", "ep"} and part == "compute_s":
                assert grown * here[part] == pytest.approx(seconds, rel=1e-3)
            checked += seconds > 0.0
    assert checked


@pytest.mark.parametrize("nodes", ["2nodes", "4nodes"])
@pytest.mark.parametrize("name", PLANS)
def test_what_is_kept_and_what_is_less(name, nodes):
    _, plan = searched(name)
    found = rehearsed(name, nodes)
    old, new = plan.strategy, found.plan.strategy
    assert [getattr(new, axis) for axis in KEPT] == [getattr(old, axis) for axis in KEPT]
    assert found.plan.num_npus_used == int(nodes[0]) * 8 < plan.num_npus_used
    assert found.plan.micro_batches == plan.micro_batches
    assert new.pp <= old.pp
    assert (new.dp or 0) <= (old.dp or 0)
    assert found.plan.fits
    assert (found.plan.p_fits or 0.0) >= min(0.9, plan.p_fits or 0.0)
    model, full = found.spec.model, Spec.model_validate(searched(name)[0].search.spec).model
    if model.n_routed_experts is not None and full.n_routed_experts is not None:
        assert model.n_routed_experts // new.ep == full.n_routed_experts // old.ep
        assert model.num_experts_per_tok == full.num_experts_per_tok
    if "layers_of_a_chunk" not in found.changed:
        ends = plan.stages[0].layers, plan.stages[-1].layers
        assert (found.plan.stages[0].layers, found.plan.stages[-1].layers) == ends
    assert found.plan.stages[0].holds == plan.stages[0].holds
    assert found.plan.stages[-1].holds == plan.stages[-1].holds


@pytest.mark.parametrize("name", PLANS)
def test_the_script_starts_the_rehearsal(name):
    found = rehearsed(name, "2nodes")
    artefact = export(found.plan_set, found.plan, "mindspeed-llm")
    remarks = rehearsal_lines(found.of, found.plan, found.changed, found.layer_s)
    told = with_remarks(artefact, tuple(remarks), "rehearsal_2nodes")
    assert told.filename.endswith("_rehearsal_2nodes.sh")
    lines = told.text.splitlines()
    assert lines[0] == artefact.text.splitlines()[0]
    assert lines[1] == f"# rehearsal of plan {found.of.plan_id} on 16 of its {found.of.num_npus_used} cards"
    assert f"GBS={found.spec.training.global_batch_size.value}" in lines
    assert f"PP={found.plan.strategy.pp}" in lines
    read_back = planner.estimate(import_document(told.text).spec())
    # The script binds cores of the host, which these plans don't name: 0.02 % of the step.
    assert read_back.step_time_s == pytest.approx(found.plan.step_time_s, rel=1e-3)
    assert read_back.peak_memory_gib == pytest.approx(found.plan.peak_memory_gib, rel=1e-3)
    for remark in remarks:
        assert in_language(remark, "zh") != remark
    script, chips = read_launch_script(told.text), load_profile("ascend-800t-a2")
    assert judge_script(script, "mindspeed-llm", chips, script.ranks, CheckLimits(), None).broken == ()


@pytest.mark.parametrize("name", PLANS)
def test_scripts_of_all_launches_before_a_plans_own_are_legal(name):
    for nodes in launches_before(*searched(name)):
        found = rehearsed(name, nodes)
        script = read_launch_script(export(found.plan_set, found.plan, "mindspeed-llm").text)
        chips = load_profile(PLANS[name][1])
        assert judge_script(script, "mindspeed-llm", chips, script.ranks, CheckLimits(), None).broken == ()
        assert script.ranks == found.plan.num_npus_used * chips.devices_per_npu


def test_the_same_twice():
    plan_set, plan = searched("MLA A3")
    again = rehearse(plan_set, plan, "2nodes", planner)
    assert again.plan_set == rehearsed("MLA A3", "2nodes").plan_set


def test_layers_stay_of_their_kind_under_a_folded_pipeline():
    """61 layers of which three are dense on eight stages of two chunks, folded: the ends meet on the first stage."""
    plan_set, plan = searched("MLA A3")
    model = Spec.model_validate(plan_set.search.spec).model
    kept = kept_layers(plan, 2, 0)
    assert kept.stages == (0, 7)
    assert kept.layers == (0, 1, 2, 3, 28, 29, 30, 31, 32, 33, 34, 35, 60)
    assert kept.per_stage == ((4, 1), (4, 4))
    assert model_of_layers(model, kept.layers) == {
        "num_hidden_layers": 13,
        "first_k_dense_replace": 3,
        "mlp_only_layers": (),
    }
    fewer = kept_layers(plan, 2, 2)
    assert fewer.layers == (0, 1, 28, 29, 32, 33, 60)
    assert fewer.per_stage == ((2, 1), (2, 2))


def test_nodes_that_are_no_rehearsal_are_refused():
    plan_set, plan = searched("dense A3")
    with pytest.raises(SpecError, match="'3 nodes' is not 1node"):
        rehearse(plan_set, plan, "3 nodes", planner)
    few = plan.model_copy(update={"num_npus_used": 16})
    with pytest.raises(SpecError, match="2 nodes have 16 cards, but the plan runs on 16"):
        rehearse(plan_set, few, "2nodes", planner)
    assert launches_before(plan_set, few) == ("1node",)
    assert launches_before(plan_set, plan) == ("1node",)
    assert launches_before(*searched("MLA A2")) == ("1node", "8nodes")
    assert launches_before(*searched("MLA A3")) == ("1node", "4nodes", "8nodes")


def test_a_tensor_parallel_group_larger_than_the_nodes_is_refused():
    plan_set, plan = searched("dense A2")
    wide = plan.model_copy(update={"strategy": plan.strategy.model_copy(update={"cp": 2})})
    with pytest.raises(UnsupportedError, match="are 16 ranks, which do not divide the 8"):
        rehearse(plan_set, wide, "1node", planner)


def test_a_plan_without_the_layers_of_its_chunks_is_refused():
    plan_set, plan = searched("MLA A3")
    bare = tuple(stage.model_copy(update={"layers": stage.layers[:1]}) for stage in plan.stages)
    with pytest.raises(UnsupportedError, match="layers of every chunk of its 8 stages"):
        rehearse(plan_set, plan.model_copy(update={"stages": bare}), "2nodes", planner)
