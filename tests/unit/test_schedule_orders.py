"""Operation orders: legal, free of deadlock, with the warm-up counts of the frameworks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.schedule import (
    group_size,
    in_flight,
    in_flight_closed,
    in_flight_moments,
    operation_order,
    schedule_problem,
    warm_up_slots,
)
from cost_models.schedule.simulation import compile_order

CASES = (
    [("1f1b", p, 1, m) for p in (1, 2, 5, 8) for m in (1, 3, 8, 17)]
    + [
        (k, p, v, m)
        for k in ("interleaved", "adaptive_pipe")
        for p in (1, 2, 4)
        for v in (2, 3)
        for m in (1, 3, 4, 5, 8, 9, 16)
    ]
    + [("adaptive_pipe", 1, 1, 4), ("adaptive_pipe", 4, 1, 8)]
    + [("dualpipev", p, 2, m) for p in (1, 2, 4) for m in (2 * p - 1, 2 * p, 16)]
    + [("dualpipe", p, 2, m) for p in (2, 4, 8) for m in (2 * p - 2, 2 * p, 32)]
)


@pytest.mark.parametrize(("kind", "pp", "vpp", "m"), CASES)
def test_every_operation_runs_once_and_in_order(kind: str, pp: int, vpp: int, m: int) -> None:
    order = operation_order(kind, pp, vpp, m)
    share = m // 2 if kind == "dualpipe" else m
    for device in range(pp):
        seen: dict[tuple[str, int], list[int]] = {}
        done: set[tuple[int, int]] = set()
        for slot in range(int(order.slots[device])):
            backward = (int(order.backward_chunk[device, slot]), int(order.backward_micro_batch[device, slot]))
            if backward[0] >= 0:
                assert backward in done, "a backward runs after its own forward has ended"
                seen.setdefault(("b", backward[0]), []).append(backward[1])
            forward = (int(order.forward_chunk[device, slot]), int(order.forward_micro_batch[device, slot]))
            if forward[0] >= 0:
                done.add(forward)
                seen.setdefault(("f", forward[0]), []).append(forward[1])
        assert seen == {(half, chunk): list(range(share)) for half in "fb" for chunk in range(vpp)}


@pytest.mark.parametrize(("kind", "pp", "vpp", "m"), CASES)
def test_slots_come_after_their_inputs(kind: str, pp: int, vpp: int, m: int) -> None:
    order = operation_order(kind, pp, vpp, m)
    graph = compile_order(order)
    when = {
        (half, device, int(chunks[device, slot]), int(batches[device, slot])): int(graph.slot_of[device, slot])
        for half, chunks, batches in (
            ("f", order.forward_chunk, order.forward_micro_batch),
            ("b", order.backward_chunk, order.backward_micro_batch),
        )
        for device in range(pp)
        for slot in np.flatnonzero(chunks[device] >= 0)
    }
    for (half, device, chunk, batch), at in when.items():
        sender = int((order.forward_from if half == "f" else order.backward_from)[device, chunk])
        if sender >= 0:
            assert when[half, sender // vpp, sender % vpp, batch] < at
        elif half == "b":
            assert when["f", device, chunk, batch] < at
    assert graph.count == order.slots.sum()


def test_warm_up_counts_of_megatron_and_mindspeed() -> None:
    assert warm_up_slots("1f1b", 4, 1, 8).tolist() == [3, 2, 1, 0]
    assert warm_up_slots("interleaved", 4, 2, 8).tolist() == [10, 8, 6, 4]
    assert warm_up_slots("adaptive_pipe", 4, 2, 8).tolist() == [11, 9, 7, 5]
    # Megatron-core before 0.10 runs all forwards first where M = P.
    assert warm_up_slots("interleaved", 4, 2, 4).tolist() == [8, 8, 8, 8]


def test_group_size_avoids_short_last_groups() -> None:
    assert [group_size(4, m) for m in (2, 4, 5, 6, 7, 8, 9, 11)] == [2, 4, 5, 6, 7, 4, 5, 6]


def test_a_deadlocking_order_is_named() -> None:
    order = operation_order("1f1b", 2, 1, 2)
    swapped = order.forward_micro_batch.copy()
    backward = order.backward_micro_batch.copy()
    chunks, back_chunks = order.forward_chunk.copy(), order.backward_chunk.copy()
    for array in (swapped, backward, chunks, back_chunks):
        array[0] = array[0][::-1]
    broken = replace(
        order,
        forward_micro_batch=swapped,
        backward_micro_batch=backward,
        forward_chunk=chunks,
        backward_chunk=back_chunks,
    )
    with pytest.raises(RuntimeError, match="deadlocks"):
        compile_order(broken)


@pytest.mark.parametrize(
    ("kind", "pp", "vpp", "m"),
    [
        ("1f1b", 2, 2, 4),
        ("dualpipev", 4, 2, 6),
        ("dualpipev", 4, 1, 8),
        ("dualpipe", 3, 2, 8),
        ("gpipe", 2, 1, 4),
        ("1f1b", 0, 1, 1),
    ],
)
def test_schedules_that_do_not_exist(kind: str, pp: int, vpp: int, m: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        operation_order(kind, pp, vpp, m)


@pytest.mark.parametrize(("kind", "pp", "vpp", "m"), CASES)
def test_in_flight_formula_matches_the_graph(kind: str, pp: int, vpp: int, m: int) -> None:
    counts = in_flight(kind, pp, vpp, m)
    closed = in_flight_closed(kind, np.arange(pp), np.array(pp), np.array(vpp), np.array(m))
    assert counts.sum(axis=1).tolist() == closed.tolist()
    assert in_flight_moments(kind, pp, vpp, m).sum(axis=2).max(axis=1).tolist() == closed.tolist()


def test_in_flight_published_counts() -> None:
    # Megatron: the first stage holds L (1 + (P - 1) / (P V)) layers; MindSpore SAPP's counts by chunk.
    p, v = 8, 3
    counts = in_flight("interleaved", p, v, 32)
    assert counts[0].sum() / (p * v) == pytest.approx(1 + (p - 1) / (p * v))
    for stage in range(p):
        assert counts[stage].tolist() == [p + max(0, p - 2 * stage - 1), p, p + min(0, p - 2 * stage - 1)]
    # DualPipeV: 2 P chunks, and at most one more where a pair is not fused (its forward comes before its backward).
    assert in_flight("dualpipev", 8, 2, 32).sum(axis=1).tolist() == [16] * 7 + [17]


def test_a_pair_hands_over_layer_by_layer() -> None:
    # MindSpeed, forward_backward_no_pipelining: the next forward runs beside the backward that frees its layers.
    assert in_flight("adaptive_pipe", 1, 1, 8).tolist() == [[1]]
    one_more = in_flight("adaptive_pipe", 4, 2, 16).sum(axis=1) - in_flight("interleaved", 4, 2, 16).sum(axis=1)
    assert one_more.tolist() == [0] * 4


def test_uneven_chunks_have_another_peak() -> None:
    moments = in_flight_moments("interleaved", 4, 2, 16)
    assert moments[1].tolist() == [[5, 4], [8, 1]]


@pytest.mark.parametrize(("pp", "vpp", "m"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_schedule_needs_one_of_everything(pp: int, vpp: int, m: int) -> None:
    assert schedule_problem("interleaved", pp, vpp, m) == (
        f"pp, vpp and micro_batches must be at least 1, not {pp}, {vpp}, {m}"
    )


def test_dualpipev_says_how_many_micro_batches_it_needs() -> None:
    assert schedule_problem("dualpipev", 4, 2, 7) is None
    assert "2 pp - 1 = 7 micro batches, not 6" in str(schedule_problem("dualpipev", 4, 2, 6))
