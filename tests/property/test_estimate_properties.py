"""What holds of every estimate and of every row of the sweep."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import Layout, estimate_layout, template_layers
from autodeploy.costs.sweep.sweep import Sweep, sweep
from tests.support.accounting.cases import (
    DENSE,
    ESTIMATED,
    LATENT,
    MOE,
    SWEPT,
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
from tests.support.estimates import Placed, estimated, estimates
from tests.support.examples import examples

ROUNDING = 1e-9
MODELS = {"dense": DENSE, "experts": MOE, "latent": LATENT}
ON = frozenset({"flash_attention", "fused_swiglu", "fused_rmsnorm", "grouped_gemm", "overlap_grad_reduce"})


def placed(data: st.DataObject, case: Case, count: int, schedules: tuple[str, ...] = SWEPT) -> list[Placed]:
    """So many strategies of a case, each with a layout: what takes time is a case, not another strategy of it."""
    found = []
    for _ in range(count):
        d = data.draw(degrees(case, schedules=schedules))
        per_chunk = data.draw(placements(case.run.num_hidden_layers, d.pp, d.vpp, d.schedule))
        found.append((d, per_chunk, data.draw(memory_choices(per_chunk))))
    return found


@settings(max_examples=examples(12), phases=[Phase.generate])
@given(st.data(), cases())
def test_parts_of_a_sweep_add_up_and_none_is_negative(data: st.DataObject, case: Case) -> None:
    table = sweep(candidates_of([data.draw(degrees(case)) for _ in range(12)]), case.context)
    total = sum(table.parts.values())
    np.testing.assert_allclose(total, table.step_time_s, rtol=ROUNDING)
    for name, seconds in table.parts.items():
        assert (seconds >= 0.0).all(), name
    assert (table.bound_s > 0.0).all()
    assert (table.bound_s <= table.step_time_s * (1 + ROUNDING)).all()
    assert (table.least_bytes <= table.memory_bytes * (1 + ROUNDING)).all()


@settings(max_examples=examples(14), phases=[Phase.generate])
@given(st.data(), cases())
def test_parts_of_an_estimate_add_up_and_no_layout_beats_the_bound(data: st.DataObject, case: Case) -> None:
    layouts = placed(data, case, 6)
    table = sweep(candidates_of([d for d, _, _ in layouts]), case.context)
    for index, found in enumerate(estimates(case.context, layouts)):
        assert sum(found.breakdown.values()) == pytest.approx(found.step_time_s, rel=ROUNDING)
        assert min(found.breakdown.values()) >= -ROUNDING * found.step_time_s, found.breakdown
        assert all((kind >= 0.0).all() for kind in found.memory.values())
        np.testing.assert_allclose(sum(found.memory.values()), found.card_bytes, rtol=ROUNDING)
        assert table.bound_s[index] <= found.step_time_s * (1 + ROUNDING)
        assert table.least_bytes[index] <= found.allocator_bytes.max() * (1 + ROUNDING)


@settings(max_examples=examples(12), phases=[Phase.generate])
@given(st.data(), cases(), st.sampled_from(["network", "memory", "matrix", "host_link"]))
def test_a_faster_machine_is_never_slower(data: st.DataObject, case: Case, part: str) -> None:
    layouts = placed(data, case, 3, ESTIMATED)
    context = case.context
    machine = context.machine
    if part == "network":
        tiers = tuple(replace(tier, bytes_per_s=2.0 * tier.bytes_per_s) for tier in machine.tiers)
        machine = replace(machine, tiers=tiers)
    elif part == "memory":
        machine = replace(machine, rates=replace(machine.rates, hbm_bytes_per_s=2.0 * machine.rates.hbm_bytes_per_s))
    elif part == "matrix":
        machine = replace(machine, rates=replace(machine.rates, peak_flops=2.0 * machine.rates.peak_flops))
    else:
        machine = replace(machine, host=replace(machine.host, link_bytes_per_s=2.0 * machine.host.link_bytes_per_s))
    faster = estimates(replace(context, machine=machine), layouts)
    for before, after in zip(estimates(context, layouts), faster, strict=True):
        assert after.step_time_s <= before.step_time_s * (1 + ROUNDING)
        np.testing.assert_array_equal(after.card_bytes, before.card_bytes)


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(st.data(), cases())
def test_more_tokens_take_longer_and_need_no_less_memory(data: st.DataObject, case: Case) -> None:
    layouts: list[Placed] = []
    for d, per_chunk, _ in placed(data, case, 3, ("1f1b",)):
        longer = replace(d, micro_batches=d.micro_batches + 1), replace(d, micro_batch_size=2 * d.micro_batch_size)
        layouts += [(each, per_chunk, {}) for each in (d, *longer)]
    found = estimates(case.context, layouts)
    for number in range(0, len(found), 3):
        before, *longer = found[number : number + 3]
        for after in longer:  # more rows of a pass cost nothing where it waits for the host
            assert after.step_time_s > before.step_time_s or case.context.host.changing_shapes
            assert after.step_time_s >= before.step_time_s * (1 - ROUNDING)
            assert (after.allocator_bytes >= before.allocator_bytes * (1 - ROUNDING)).all()


def rows(table: Sweep) -> dict[str, np.ndarray]:
    """Every column of a sweep."""
    named = {field.name: getattr(table, field.name) for field in fields(table) if field.name != "parts"}
    return named | table.parts


def assert_alone_is_as_in_a_batch(case: Case, batch: list[Degrees], alone: int) -> None:
    """Bit for bit; of so many, the first, a sweep of their own is made."""
    together = rows(sweep(candidates_of(batch), case.context))
    for index, d in enumerate(batch[:alone]):
        for name, values in rows(sweep(candidates_of([d]), case.context)).items():
            assert values[0] == together[name][index], (name, d)


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(st.data(), cases().filter(lambda case: "grouped_gemm" in case.run.on))
def test_a_candidate_alone_is_the_same_as_in_a_batch(data: st.DataObject, case: Case) -> None:
    assert_alone_is_as_in_a_batch(case, [data.draw(degrees(case)) for _ in range(5)], 2)


@settings(max_examples=examples(6), phases=[Phase.generate])
@given(st.data(), st.sampled_from(sorted(MODELS)))
def test_an_estimate_is_the_same_alone_and_in_a_batch(data: st.DataObject, name: str) -> None:
    case = case_of(MODELS[name], cluster("supernodes"), ON, imbalance=1.3, peak=2.0)
    batch = [data.draw(degrees(case)) for _ in range(4)]
    candidates = candidates_of(batch)
    classes = step_classes(unit_costs(case.context, candidates), candidates, case.context)
    counts = tuple(c.count for c in classes.layers)
    for index, d in enumerate(batch):
        layout = Layout(template_layers(counts, d.pp, d.vpp, kind=d.schedule), {})
        together = estimate_layout(Priced(classes, candidates, case.context, index), layout)
        alone = estimated(case.context, d, layout.layers.sum(axis=2).tolist(), {})
        assert together.step_time_s == alone.step_time_s
        assert together.breakdown == alone.breakdown
        np.testing.assert_array_equal(together.card_bytes, alone.card_bytes)


def test_experts_issued_one_by_one_do_not_depend_on_the_batch() -> None:
    case = case_of(MOE, cluster("node"), ON - {"grouped_gemm"}, seq=256)
    few, many = (Degrees(world=case.world, ep=ep, micro_batches=2) for ep in (8, 1))
    assert_alone_is_as_in_a_batch(case, [few, many], 2)


def test_dualpipev_hides_an_exchange_once() -> None:
    case = case_of(LATENT, cluster("supernodes"), ON | {"moe_alltoall_overlap"})
    d = Degrees(world=case.world, pp=2, vpp=2, ep=16, schedule="dualpipev", micro_batches=64)
    found = estimated(case.context, d, [[2, 2], [2, 2]], {})
    assert min(found.breakdown.values()) >= 0.0, found.breakdown
