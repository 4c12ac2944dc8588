"""Estimates and sweep agree with an accounting that walks over ranks, layers, operators and micro batches in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import template_layers
from autodeploy.costs.sweep.scheduled_placements import template_of as planned_template
from autodeploy.costs.sweep.sweep import Sweep, sweep
from tests.support.accounting.cases import (
    DENSE,
    ESTIMATED,
    LATENT,
    Case,
    candidates_of,
    case_of,
    cases,
    cluster,
    degrees,
    memory_choices,
    placements,
)
from tests.support.accounting.ranks import Degrees
from tests.support.accounting.step import Step, account
from tests.support.estimates import Placed, estimates
from tests.support.examples import examples

if TYPE_CHECKING:
    from autodeploy.costs.layers.layer_cost import LayerCost
    from autodeploy.costs.steps.estimate import Estimate

EXACT = 1e-9


def estimated(case: Case, d: Degrees, per_chunk: list[list[int]], applied: dict[str, list[int]]) -> Estimate:
    """The planner's estimate."""
    return estimates(case.context, [(d, per_chunk, applied)])[0]


def assert_equal(found: Estimate, expected: Step) -> None:
    """Time, every part, memory of every kind and stage."""
    assert found.step_time_s == pytest.approx(expected.step_s, rel=EXACT)
    assert found.makespan_s == pytest.approx(expected.makespan_s, rel=EXACT)
    np.testing.assert_allclose(found.forward_s, expected.forward_s, rtol=EXACT)
    np.testing.assert_allclose(found.backward_s, expected.backward_s, rtol=EXACT)
    pacing = found.pacing_stage
    assert expected.busy_s[pacing] == pytest.approx(max(expected.busy_s), rel=EXACT)
    small = EXACT * expected.step_s
    slowest = max(sum(tail.values()) for tail in expected.tails)
    computes = np.array([parts.get("compute_s", 0.0) for parts in expected.parts])
    beyond = [float(each[pacing] - np.mean(each)) for each in (computes, np.array(expected.busy_s))]
    uneven_s = max(0.0, min(beyond))
    paced = {**expected.parts[pacing], "uneven_stages_s": uneven_s}
    paced["compute_s"] = paced.get("compute_s", 0.0) - uneven_s
    totals = [
        {name: paced.get(name, 0.0) + tail.get(name, 0.0) for name in found.breakdown}
        for tail in expected.tails
        if sum(tail.values()) >= slowest * (1 - EXACT)
    ]
    assert any(found.breakdown == pytest.approx(parts, rel=EXACT, abs=small) for parts in totals), (
        found.breakdown,
        totals,
    )
    for stage, kinds in enumerate(expected.memory):
        mine = {kind: float(values[stage]) for kind, values in found.memory.items()}
        assert mine == pytest.approx(kinds, rel=EXACT, abs=1e-3)  # bytes: what is all freed leaves rounding
    np.testing.assert_allclose(found.allocator_bytes, expected.allocator, rtol=EXACT)
    np.testing.assert_allclose(found.first_step_bytes, expected.first_step, rtol=EXACT)
    np.testing.assert_allclose(found.card_bytes, [sum(kinds.values()) for kinds in expected.memory], rtol=EXACT)


# Several strategies of each case: the planner prices ten of them as fast as one.


@settings(max_examples=examples(16), phases=[Phase.generate])
@given(st.data(), cases())
def test_an_estimate_equals_the_accounting(data: st.DataObject, case: Case) -> None:
    placed: list[Placed] = []
    for _ in range(4):
        d = data.draw(degrees(case, schedules=ESTIMATED))
        per_chunk = data.draw(placements(case.run.num_hidden_layers, d.pp, d.vpp, d.schedule))
        placed.append((d, per_chunk, data.draw(memory_choices(per_chunk))))
    for found, (d, per_chunk, applied) in zip(estimates(case.context, placed), placed, strict=True):
        assert_equal(found, account(case.run, d, case.machine, per_chunk, applied))


def with_templates(case: Case, strategies: list[Degrees]) -> list[tuple[Degrees, list[list[int]]]]:
    """Those whose template in the sweep is a layout, with it."""
    candidates = candidates_of(strategies)
    classes = step_classes(unit_costs(case.context, candidates), candidates, case.context)
    found = []
    for index, d in enumerate(strategies):
        per_chunk = template_of(case, Priced(classes, candidates, case.context, index), d)
        if per_chunk is not None:
            found.append((d, per_chunk))
    return found


def template_of(case: Case, priced: Priced, d: Degrees) -> list[list[int]] | None:
    """The sweep's template as a layout; None where it isn't one.

    It knows a first, a middle and a last stage. It is a layout where they add up to the model's layers and all middle
    stages hold the same kinds of layers.
    """
    classes, pp = priced.classes, np.asarray([d.pp])
    balanced = "virtual_pipeline_balance" in case.context.features

    def seconds(cost: LayerCost) -> np.ndarray:
        """Both passes, of this strategy alone."""
        return np.array([priced.at(cost.forward.total_s) + priced.at(cost.backward.total_s)])

    first, *last = (seconds(p.cost) for p in classes.pieces)
    counts = tuple(c.count for c in classes.layers)
    layer_s = sum(c.count * seconds(c.cost) for c in classes.layers) / sum(counts)
    template = planned_template(counts, first / layer_s, sum(last) / layer_s, pp, d.vpp, balanced=balanced)
    kinds = np.array([row[0] for row in template.layers])  # [class, stage class]
    first, middle, last = (int(n) for n in kinds.sum(axis=0))
    sizes = {1: [last], 2: [first, last]}.get(d.pp, [first, *[middle] * (d.pp - 2), last])
    if sum(sizes) != case.run.num_hidden_layers:
        return None
    per_chunk = [[size] for size in sizes]
    held = template_layers(tuple(c.count for c in classes.layers), d.pp, 1, np.asarray(per_chunk))[:, 0]
    alike = all((stage == kinds[:, 1]).all() for stage in held[1:-1])
    return per_chunk if alike else None


def assert_parts(case: Case, d: Degrees, expected: Step, parts: dict[str, float]) -> None:
    """The sweep's parts are those of one stage; after the pipeline, of the slowest one."""
    slowest = max(expected.tails, key=lambda tail: sum(tail.values()))
    candidates = [{name: stage.get(name, 0.0) + slowest.get(name, 0.0) for name in parts} for stage in expected.parts]
    small = EXACT * expected.step_s
    assert any(parts == pytest.approx(stage, rel=EXACT, abs=small) for stage in candidates), (parts, candidates, d)


@settings(max_examples=examples(16), phases=[Phase.generate])
@given(st.data(), cases())
def test_the_sweep_equals_the_accounting(data: st.DataObject, case: Case) -> None:
    drawn = [data.draw(degrees(case, schedules=("1f1b",))) for _ in range(6)]
    placed = with_templates(case, [d for d in drawn if d.pp > 1] or drawn[:1])[:4]
    assume(placed and placed[0][0].pp > 1)
    table = sweep(candidates_of([d for d, _ in placed]), case.context)
    for row, (d, per_chunk) in enumerate(placed):
        expected = account(case.run, d, case.machine, per_chunk)
        assert table.memory_bytes[row] == pytest.approx(max(expected.allocator), rel=EXACT)
        if d.micro_batches > d.pp:
            assert table.step_time_s[row] == pytest.approx(expected.step_s, rel=EXACT)
            assert_parts(case, d, expected, {name: float(values[row]) for name, values in table.parts.items()})
        else:
            # With few micro batches the longest path may be one that the closed form does not see.
            assert table.step_time_s[row] <= expected.step_s * (1 + EXACT)
        assert table.bound_s[row] <= expected.step_s * (1 + EXACT)


ONE_STAGE = ("1f1b", "adaptive_pipe")


def one_stage(data: st.DataObject, case: Case, count: int) -> tuple[list[tuple[Degrees, Step]], Sweep]:
    """Strategies without a pipeline, by both."""
    drawn = [data.draw(degrees(case, schedules=ONE_STAGE).map(_without_pipeline)) for _ in range(count)]
    steps = [account(case.run, d, case.machine, [[case.run.num_hidden_layers]]) for d in drawn]
    return list(zip(drawn, steps, strict=True)), sweep(candidates_of(drawn), case.context)


def _without_pipeline(d: Degrees) -> Degrees:
    schedule = "1f1b" if d.schedule == "interleaved" else d.schedule
    return replace(d, pp=1, vpp=1, schedule=schedule)


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(st.data(), cases())
def test_one_stage_of_the_sweep_equals_the_accounting(data: st.DataObject, case: Case) -> None:
    accounted, table = one_stage(data, case, 3)
    for row, (d, expected) in enumerate(accounted):
        assert table.memory_bytes[row] == pytest.approx(expected.allocator[0], rel=EXACT)
        for name, seconds in expected.parts[0].items():
            if name not in expected.tails[0]:
                small = EXACT * expected.makespan_s
                assert table.parts[name][row] == pytest.approx(seconds, rel=EXACT, abs=small), (name, d)
        assert table.bound_s[row] <= expected.step_s * (1 + EXACT)


@settings(max_examples=examples(6), phases=[Phase.generate])
@given(st.data(), cases())
def test_the_tail_of_one_stage_equals_the_accounting(data: st.DataObject, case: Case) -> None:
    accounted, table = one_stage(data, case, 2)
    for row, (d, expected) in enumerate(accounted):
        assert table.step_time_s[row] == pytest.approx(expected.step_s, rel=EXACT)
        assert_parts(case, d, expected, {name: float(values[row]) for name, values in table.parts.items()})


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "hierarchical", "deepep"])
@pytest.mark.parametrize("where", ["nodes", "supernodes"])
@pytest.mark.parametrize(("ep", "etp"), [(16, 1), (16, 2), (32, 1)])
def test_expert_exchange_over_all_tiers(dispatcher: str, where: str, ep: int, etp: int) -> None:
    features = frozenset({"flash_attention", "grouped_gemm"})
    case = case_of(LATENT, cluster(where), features, imbalance=1.3, peak=2.0, network=0.1)
    d = Degrees(case.world, tp=2, ep=ep, etp=etp, micro_batches=2, dispatcher=dispatcher, sequence_parallel=True)
    assert_equal(estimated(case, d, [[8]], {}), account(case.run, d, case.machine, [[8]]))


@pytest.mark.parametrize(("overlap", "hides"), [("moe_alltoall_overlap", False), ("shared_expert_overlap", True)])
def test_deepep_runs_beside_shared_experts_where_the_software_lets_it(overlap: str, hides: bool) -> None:
    found = {}
    for on in (frozenset({"flash_attention", "grouped_gemm"}), frozenset({"flash_attention", "grouped_gemm", overlap})):
        case = case_of(LATENT, cluster("gpus"), on, imbalance=1.3, peak=2.0, network=0.1)
        for dispatcher in ("alltoall", "deepep"):
            d = Degrees(case.world, ep=8, micro_batches=2, dispatcher=dispatcher)
            found[overlap in on, dispatcher] = estimate = estimated(case, d, [[8]], {})
            assert_equal(estimate, account(case.run, d, case.machine, [[8]]))
    shown = {key: each.breakdown["exposed_ep_s"] for key, each in found.items()}
    assert shown[True, "alltoall"] < shown[False, "alltoall"]
    assert (shown[True, "deepep"] < shown[False, "deepep"]) == hides


@pytest.mark.parametrize("heads", [{}, {"sliding_attention_heads": 32, "attention_head_gate": True}])
@pytest.mark.parametrize("seq", [512, 4096])
def test_layers_with_a_window(seq: int, heads: dict[str, Any]) -> None:
    """On one stage: a pipeline's stages are taken to hold the same share of windowed layers."""
    kinds = [("full_attention", "sliding_attention")[layer % 3 > 0] for layer in range(8)]
    model = DENSE | {"sliding_window": 768, "layer_types": kinds} | heads
    case = case_of(model, cluster("node"), frozenset({"flash_attention"}), seq=seq)
    d = Degrees(case.world, tp=2, micro_batches=3, sequence_parallel=True)
    for applied in ({}, {"full": [8]}):
        assert_equal(estimated(case, d, [[8]], applied), account(case.run, d, case.machine, [[8]], applied))


@pytest.mark.parametrize("targets", [("linear_fc1",), ("linear_qkv", "linear_fc2")])
def test_what_frees_nothing_before_frozen_weights_takes_no_share_of_a_wait(targets: tuple[str, ...]) -> None:
    """Norms before them keep nothing, and leave the wait for an exchange to what is recomputed."""
    on = frozenset({"selective_recompute", "flash_attention"})
    model = LATENT | {"num_nextn_predict_layers": 0}
    case = case_of(model, cluster("supernodes"), on, imbalance=3.0, peak=3.0, adapters=(64, targets))
    d = Degrees(case.world, tp=4, ep=8, micro_batches=2, sequence_parallel=True)
    applied = {"moe_zero_memory_level0": [7]}
    assert_equal(estimated(case, d, [[8]], applied), account(case.run, d, case.machine, [[8]], applied))


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (2, False), (4, True)])
@pytest.mark.parametrize("model", [DENSE, DENSE | {"hidden_act": "gelu", "qk_norm": True}, LATENT], ids=str)
def test_every_second_product_is_computed_again(tp: int, sequence_parallel: bool, model: dict[str, Any]) -> None:
    on = {"flash_attention", "fsdp", "torch_fsdp2", "overlap_grad_reduce", "overlap_param_gather", "fused_swiglu"}
    applied = {"by_operator": [5]}
    sharded, whole = (case_of(model, cluster("gpus"), frozenset(each)) for each in (on, {"flash_attention"}))
    for case in (sharded, whole):
        d = Degrees(case.world, tp=tp, micro_batches=2, sequence_parallel=sequence_parallel)
        assert_equal(estimated(case, d, [[8]], applied), account(case.run, d, case.machine, [[8]], applied))
    replayed = estimated(sharded, Degrees(sharded.world, tp=tp), [[8]], applied).breakdown["recompute_s"]
    # Who has no such recomputation, or layers of other products, loses nothing.
    assert (replayed > 0.0) == ("kv_lora_rank" not in model)
    assert estimated(whole, Degrees(whole.world, tp=tp), [[8]], applied).breakdown["recompute_s"] == 0.0


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
@pytest.mark.parametrize(("model", "ep", "dp_replicate"), [(DENSE, 1, 1), (DENSE, 1, 2), (LATENT, 4, 1)], ids=str)
def test_a_pipeline_keeps_gathered_parameters_through_a_step(
    schedule: str, model: dict[str, Any], ep: int, dp_replicate: int
) -> None:
    on = {"flash_attention", "grouped_gemm", "fsdp", "torch_fsdp2", "overlap_grad_reduce", "overlap_param_gather"}
    case = case_of(model, cluster("gpus"), frozenset(on), network=0.2)
    vpp = 2 if schedule == "interleaved" else 1
    shape = {"pp": 2, "ep": ep, "micro_batches": 4, "schedule": schedule, "vpp": vpp, "dp_replicate": dp_replicate}
    d = Degrees(case.world, **shape)
    per_chunk = [[4 // vpp] * vpp] * 2
    found = estimated(case, d, per_chunk, {})
    assert_equal(found, account(case.run, d, case.machine, per_chunk, {}))
    # Twice the micro batches gather and reduce no more, but add up more gradients.
    twice = estimated(case, replace(d, micro_batches=8), per_chunk, {})
    assert twice.breakdown["exposed_dp_s"] < 1.5 * found.breakdown["exposed_dp_s"]
    alone = estimated(case, Degrees(case.world, ep=ep, micro_batches=4), [[8]], {})
    assert found.memory["gradients"].max() > 1.5 * alone.memory["gradients"].max()
