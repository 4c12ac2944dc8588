"""What holds of every feature: it never lengthens the lane that it frees, and a saving one never takes memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import step_classes
from autodeploy.costs.steps.estimate import Layout, template_layers
from autodeploy.costs.workload.memory_choices import CHOICES
from autodeploy.search.ranking.operator_report import lane_report
from autodeploy.search.ranking.plans import memory_menu
from autodeploy.specs.strategy import ChoiceKey
from tests.support.accounting.cases import (
    LATENT,
    Case,
    Cluster,
    candidates_of,
    case_of,
    cluster,
    degrees,
    models,
    placements,
)
from tests.support.accounting.ranks import Degrees
from tests.support.estimates import estimates
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.costs.steps.estimate import Estimate

ROUNDING = 1e-9
OPERATORS = ("rect_fa", "ascendp_mm", "vector_sort", "fused_operators", "fused_router", "fused_swiglu", "fused_rmsnorm")
HOST = ("host_sync_free", "host_reorder", "host_core_binding")
LOSSY = ("o2_optimizer", "quantized_optimizer")
# Communication features and the part that each frees. What uneven experts add is a part of its own, and reordering rows
# on vector units gives way to an exchange behind the same work: those may grow while the step does not.
COMMUNICATION = {
    "coc": "exposed_tp_s",
    "mc2": "exposed_tp_s",
    "overlap_grad_reduce": "exposed_dp_s",
    "overlap_param_gather": "exposed_dp_s",
    "moe_alltoall_overlap": "exposed_ep_s",
    "shared_expert_overlap": "exposed_ep_s",
}
BASE = frozenset({"flash_attention", "grouped_gemm"})


Layouts: TypeAlias = list[tuple[Degrees, list[list[int]]]]
Pair: TypeAlias = tuple[str, Case, Case, Layouts]


def estimated(case: Case, layouts: Layouts, choice: str = "") -> list[Estimate]:
    """Of every layout, all of whose layers use this memory choice."""

    def applied(per_chunk: list[list[int]]) -> dict[str, list[int]]:
        return {choice: [sum(stage) for stage in per_chunk]} if choice else {}

    return estimates(case.context, [(d, per_chunk, applied(per_chunk)) for d, per_chunk in layouts])


def both(off: Case, on: Case, layouts: Layouts) -> Iterator[tuple[Degrees, Estimate, Estimate]]:
    """Every layout without and with a feature."""
    strategies = [d for d, _ in layouts]
    return zip(strategies, estimated(off, layouts), estimated(on, layouts), strict=True)


@st.composite
def pairs(draw: st.DrawFn, features: tuple[str, ...]) -> Pair:
    """A run without and with one feature, on Ascend, beside others that are on in both; three strategies, as a second
    one costs little.
    """
    name = draw(st.sampled_from(features))
    others = draw(st.sets(st.sampled_from((*OPERATORS, *HOST, "cube_vector_parallel", "moe_alltoall_overlap"))))
    where: Cluster = cluster(draw(st.sampled_from(["node", "nodes", "supernode"])))
    model, imbalance = draw(models()), draw(st.sampled_from([1.0, 1.3, 3.0]))
    network = draw(st.sampled_from([1.0, 0.1]))
    without = BASE | (others - {name})
    before = case_of(model, where, frozenset(without), imbalance=imbalance, network=network)
    after = case_of(model, where, frozenset(without | {name}), imbalance=imbalance, network=network)
    strategies = [draw(degrees(before)) for _ in range(3)]
    return name, before, after, [(d, draw(placements(model["num_hidden_layers"], d.pp, d.vpp))) for d in strategies]


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(pairs((*OPERATORS, "cube_vector_parallel")))
def test_an_operator_feature_takes_no_more_time(pair: Pair) -> None:
    _, off, on, layouts = pair
    for d, before, after in both(off, on, layouts):
        assert after.step_time_s <= before.step_time_s * (1 + ROUNDING)
        worked = [e.breakdown["compute_s"] + e.breakdown["imbalance_s"] for e in (before, after)]
        if before.pacing_stage == after.pacing_stage and d.schedule != "adaptive_pipe":
            assert worked[1] <= worked[0] * (1 + ROUNDING)
        assert (after.allocator_bytes <= before.allocator_bytes * (1 + ROUNDING)).all()


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(pairs(HOST))
def test_a_host_feature_exposes_no_more_host_time(pair: Pair) -> None:
    _, off, on, layouts = pair
    for _, before, after in both(off, on, layouts):
        assert after.step_time_s <= before.step_time_s * (1 + ROUNDING)
        if before.pacing_stage == after.pacing_stage:
            assert after.breakdown["host_bound_s"] <= before.breakdown["host_bound_s"] * (1 + ROUNDING)
            assert after.breakdown["compute_s"] == pytest.approx(before.breakdown["compute_s"])
    events = [lane_report(candidates_of([layouts[0][0]]), case.context, 0).event_s for case in (off, on)]
    assert events[1] <= events[0] * (1 + ROUNDING)


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(pairs(tuple(COMMUNICATION)), st.booleans())
def test_a_communication_feature_exposes_no_more_of_its_lane(pair: Pair, sharded: bool) -> None:
    name, off, on, layouts = pair
    if name == "overlap_param_gather":  # rides on the buckets of the reduction
        off, on = (with_features(case, "overlap_grad_reduce") for case in (off, on))
    shardable = [(d, per_chunk) for d, per_chunk in layouts if d.schedule in ("1f1b", "interleaved")]
    if sharded and shardable:
        off, on = (with_features(case, "fsdp") for case in (off, on))
        layouts = shardable
    for _, before, after in both(off, on, layouts):
        assert after.step_time_s <= before.step_time_s * (1 + ROUNDING)
        small = ROUNDING * before.step_time_s
        if before.pacing_stage == after.pacing_stage:
            exposed = [e.breakdown[COMMUNICATION[name]] for e in (before, after)]
            assert exposed[1] <= exposed[0] + small
        assert (after.card_bytes <= before.card_bytes * (1 + ROUNDING)).all()


@st.composite
def paired(draw: st.DrawFn) -> tuple[Case, Layouts]:
    """A run under Adaptive Pipe, beside operators that are on."""
    network, imbalance = draw(st.sampled_from([1.0, 0.1])), draw(st.sampled_from([1.0, 1.3, 3.0]))
    on = BASE | draw(st.sets(st.sampled_from((*OPERATORS, *HOST))))
    where = cluster(draw(st.sampled_from(["node", "nodes", "supernode"])))
    case = case_of(LATENT, where, frozenset(on), imbalance=imbalance, network=network)
    cut = {"pp": 2, "vpp": 2, "tp": 1, "etp": 1, "cp": 1, "ulysses": 1, "sequence_parallel": False}
    layouts = []
    for _ in range(3):
        d = replace(draw(degrees(case, schedules=("1f1b",))), **cut, ep=draw(st.sampled_from([2, 4, 8])))
        d = replace(d, schedule="adaptive_pipe", micro_batches=2 * draw(st.integers(2, 5)))
        layouts.append((d, draw(placements(LATENT["num_hidden_layers"], d.pp, d.vpp))))
    return case, layouts


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(paired())
def test_pairing_exposes_less_expert_communication(drawn: tuple[Case, Layouts]) -> None:
    case, layouts = drawn
    alone = [(replace(d, schedule="interleaved"), per_chunk) for d, per_chunk in layouts]
    for before, after in zip(estimated(case, alone), estimated(case, layouts), strict=True):
        assert after.hidden["ep_share_step"] > before.hidden["ep_share_step"]
        assert sum(after.breakdown.values()) == pytest.approx(after.step_time_s)
        if before.pacing_stage == after.pacing_stage:
            shown = [e.breakdown["exposed_ep_s"] + e.breakdown["imbalance_s"] for e in (before, after)]
            assert shown[1] < shown[0]


def with_features(case: Case, *names: str) -> Case:
    """The case with more features on."""
    return replace(case, context=replace(case.context, features=case.context.features | set(names)))


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(pairs((*LOSSY, "adaptive_comm_buffers")))
def test_a_saving_feature_takes_no_memory(pair: Pair) -> None:
    _, off, on, layouts = pair
    for _, before, after in both(off, on, layouts):
        assert (after.card_bytes <= before.card_bytes * (1 + ROUNDING)).all()
    for d, per_chunk in layouts:
        saving = dict.fromkeys(("reuse_fp32", "swap_optimizer", "virtual_optimizer"), False)
        each = [replace(d, **saving | chosen) for chosen in ({}, *({name: True} for name in saving))]
        plain, *less = estimated(off, [(one, per_chunk) for one in each])
        for found in less:
            assert (found.card_bytes <= plain.card_bytes * (1 + ROUNDING)).all()


@settings(max_examples=examples(8), phases=[Phase.generate])
@given(pairs(OPERATORS), st.sampled_from(sorted(set(CHOICES) - {"full"})))
def test_a_memory_choice_saves_memory_and_takes_time(pair: Pair, choice: str) -> None:
    _, case, _, layouts = pair
    slower = case.context.machine.host.link_bytes_per_s / 2.0
    machine = replace(case.context.machine, host=replace(case.context.machine.host, link_bytes_per_s=slower))
    shared = replace(case, context=replace(case.context, machine=machine))
    every = estimated(case, layouts), estimated(case, layouts, choice), estimated(shared, layouts, choice)
    for plain, chosen, swapped in zip(*every, strict=True):
        assert (chosen.allocator_bytes <= plain.allocator_bytes * (1 + ROUNDING)).all()
        assert chosen.step_time_s >= plain.step_time_s * (1 - ROUNDING)
        assert swapped.step_time_s >= chosen.step_time_s * (1 - ROUNDING)


def test_choices_together_hide_no_more_than_the_backward_pass_waits() -> None:
    """Replays in waits: with every compatible choice on, an exchange hides at most its own length."""
    case = case_of(LATENT, cluster("nodes"), BASE | {"selective_recompute"}, network=0.1)
    plain = case_of(LATENT, cluster("nodes"), BASE, network=0.1)
    d = Degrees(case.world, tp=2, ep=16, micro_batches=2, sequence_parallel=True)
    chosen = {name: [8] for name in ("norm", "activation", "mla_up_proj", "permute", "shared_experts")}
    base, some, full = estimates(case.context, [(d, [[8]], each) for each in ({}, chosen, {"full": [8]})])
    some_s, full_s = (e.step_time_s for e in estimates(plain.context, [(d, [[8]], e) for e in (chosen, {"full": [8]})]))
    hidden, whole = some_s - some.step_time_s, full_s - full.step_time_s
    assert 0.0 < hidden <= base.breakdown["exposed_ep_s"] + base.breakdown["imbalance_s"]
    assert hidden < whole <= base.breakdown["exposed_ep_s"] + base.breakdown["imbalance_s"]


def test_the_lanes_of_a_layer_and_its_menu() -> None:
    case = case_of(LATENT, cluster("nodes"), BASE | {"cube_vector_parallel"})
    d = Degrees(case.world, tp=2, ep=16, micro_batches=2, sequence_parallel=True)
    report = lane_report(candidates_of([d]), case.context, 0)
    assert sum(report.shares.values()) == pytest.approx(1.0)
    assert 0.0 < report.sorting_hidden <= 1.0
    assert report.event_s > case.context.machine.host.sync_s
    candidates = candidates_of([d])
    classes = step_classes(unit_costs(case.context, candidates), candidates, case.context)
    layers = template_layers(tuple(c.count for c in classes.layers), 1, 1, np.asarray([[8]]))
    menu = memory_menu(classes, case.context, 0, Layout(layers, {ChoiceKey("norm"): np.asarray([3])}))
    assert {item.choice for item in menu if item.layers == "moe"} >= {"full", "norm", "swap_layer_input", "permute"}
    seconds_a_byte = [item.added_ms / item.saved_gib for item in menu if item.layers == "moe"]
    assert seconds_a_byte == pytest.approx(sorted(seconds_a_byte), rel=1e-12)  # the order is that of the exact numbers
    # The first layers of the stage use it: one dense layer, then two with experts.
    assert {item.layers: item.used_layers for item in menu if item.choice == "norm"} == {"dense": 1, "moe": 2}
