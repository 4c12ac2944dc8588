"""Layers with experts on a shortcut: estimate and sweep against the independent accounting, over cuts and features."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from autodeploy.costs.sweep.sweep import sweep
from tests.property.test_independent_accounting import EXACT, assert_equal, assert_parts, with_templates
from tests.support.accounting.cases import SHORTCUT, Case, candidates_of, case_of, cluster, memory_choices, placements
from tests.support.accounting.ranks import Degrees
from tests.support.accounting.step import account
from tests.support.estimates import Placed, estimates
from tests.support.examples import examples

ON = (
    *("fused_swiglu", "fused_rmsnorm", "rect_fa", "fused_operators", "overlap_grad_reduce", "overlap_param_gather"),
    *("host_sync_free", "dropout", "mc2", "unfused_gradient_accumulation", "unfused_rotary", "fused_router"),
    *("selective_recompute", "vector_sort", "host_core_binding", "adaptive_comm_buffers"),
    "shortcut_overlap",
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    change: dict[str, Any] = draw(st.sampled_from([{}, {}, {"n_zero_experts": 0}, {"hidden_act": "gelu"}]))
    return case_of(
        SHORTCUT | change,
        cluster(draw(st.sampled_from(["nodes", "supernodes"]))),
        frozenset(draw(st.sets(st.sampled_from(ON))) | {"flash_attention", "grouped_gemm"}),
        seq=draw(st.sampled_from([2048, 8192])),
        imbalance=draw(st.sampled_from([1.0, 1.3])),
        peak=draw(st.sampled_from([1.0, 2.0])),
        network=draw(st.sampled_from([1.0, 0.1])),
    )


@st.composite
def degrees(draw: st.DrawFn, case: Case, *, pipelines: tuple[int, ...] = (1, 2, 3)) -> Degrees:
    pp = draw(st.sampled_from([pp for pp in pipelines if case.world % pp == 0]))
    tp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 1, 2]))
    return Degrees(
        case.world,
        tp=tp,
        cp=cp,
        ulysses=draw(st.sampled_from([1, cp])),
        pp=pp,
        ep=draw(st.sampled_from([1, 2, 8])),
        micro_batch_size=draw(st.sampled_from([1, 2])),
        micro_batches=draw(st.integers(pp + 1, 3 * pp + 1)),
        sequence_parallel=tp > 1,
        swap_optimizer=draw(st.booleans()),
    )


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(st.data(), cases())
def test_an_estimate_equals_the_accounting(data: st.DataObject, case: Case) -> None:
    placed: list[Placed] = []
    for _ in range(3):
        d = data.draw(degrees(case))
        per_chunk = data.draw(placements(case.run.num_hidden_layers, d.pp, d.vpp))
        placed.append((d, per_chunk, data.draw(memory_choices(per_chunk))))
    for found, (d, per_chunk, applied) in zip(estimates(case.context, placed), placed, strict=True):
        assert_equal(found, account(case.run, d, case.machine, per_chunk, applied))


@settings(max_examples=examples(8), phases=[Phase.generate])
@given(st.data(), cases())
def test_the_sweep_equals_the_accounting(data: st.DataObject, case: Case) -> None:
    placed = with_templates(case, [data.draw(degrees(case, pipelines=(2, 3))) for _ in range(4)])
    assume(placed)
    table = sweep(candidates_of([d for d, _ in placed]), case.context)
    for row, (d, per_chunk) in enumerate(placed):
        expected = account(case.run, d, case.machine, per_chunk)
        assert table.memory_bytes[row] == pytest.approx(max(expected.allocator), rel=EXACT)
        assert table.step_time_s[row] == pytest.approx(expected.step_s, rel=EXACT)
        assert_parts(case, d, expected, {name: float(values[row]) for name, values in table.parts.items()})
