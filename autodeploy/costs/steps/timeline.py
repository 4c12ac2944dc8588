"""The simulated schedule of one strategy, slot by slot: the same simulation that an estimate is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.stages.inner_problem import fill_chunks, tail_s
from autodeploy.costs.stages.step_classes import PASSES
from autodeploy.costs.steps.estimate import Layout, Placed
from autodeploy.specs.plan_details import PipelineTimeline, Slot, StageTime
from cost_models.schedule import simulate

if TYPE_CHECKING:
    from autodeploy.costs.stages.step_classes import Priced
    from cost_models.arrays import Floats
    from cost_models.schedule import OperationOrder


MAX_SLOTS = 50_000


def pipeline_timeline(priced: Priced, layout: Layout, *, slots: bool = True) -> PipelineTimeline:
    """Every slot of a candidate under a layout; without slots, what each stage does in all.

    Of more than 50,000 slots the first and the last are kept: between them the pipeline repeats itself.
    """
    placed = Placed.of(priced, layout)
    problem, times, order = placed.problem, placed.times, placed.problem.order
    simulated = simulate(order, times.forward_s, times.backward_s, times.hidden_pair_s, times.sends, keep_times=True)
    assert simulated.start_s is not None
    assert simulated.end_s is not None
    lanes = slot_lanes(placed).along(order)
    kept, left_out = _kept(order, MAX_SLOTS if slots else 0)
    shown = tuple(
        _slot(
            order, lanes, stage, place, (float(simulated.start_s[stage, place]), float(simulated.end_s[stage, place]))
        )
        for stage, places in enumerate(kept)
        for place in places
    )
    makespan = float(simulated.makespan_s[0])
    return PipelineTimeline(
        pp=problem.pp,
        vpp=problem.vpp,
        micro_batches=problem.micro_batches,
        makespan_s=makespan,
        step_time_s=makespan + float(tail_s(problem, placed.layers)[0]),
        slots=shown,
        slots_left_out=left_out,
        stages=tuple(
            StageTime(compute_s=compute_s, communication_s=communication_s, host_s=host_s, idle_s=max(0.0, idle_s))
            for (compute_s, communication_s, host_s), idle_s in zip(
                lanes.sum(axis=2).T.tolist(), simulated.idle_s[0].tolist(), strict=True
            )
        ),
    )


def _kept(order: OperationOrder, most: int) -> tuple[list[list[int]], int]:
    """Places of each stage's slots that are shown, and how many of all stages are not."""
    share = most // order.pp
    kept, left_out = [], 0
    for count in order.slots:
        places = list(range(int(count)))
        if len(places) > share:
            left_out += len(places) - 2 * (share // 2)
            places = places[: share // 2] + places[len(places) - share // 2 :]
        kept.append(places)
    return kept, left_out


def _slot(order: OperationOrder, lanes: Floats, stage: int, place: int, between_s: tuple[float, float]) -> Slot:
    forward, backward = int(order.forward_micro_batch[stage, place]), int(order.backward_micro_batch[stage, place])
    has_forward, has_backward = forward >= 0, backward >= 0
    compute_s, communication_s, host_s = lanes[:, stage, place].tolist()
    return Slot(
        stage=stage,
        kind="pair" if has_forward and has_backward else "forward" if has_forward else "backward",
        start_s=max(0.0, between_s[0]),
        end_s=between_s[1],
        forward_micro_batch=forward if has_forward else None,
        forward_chunk=int(order.forward_chunk[stage, place]) if has_forward else None,
        backward_micro_batch=backward if has_backward else None,
        backward_chunk=int(order.backward_chunk[stage, place]) if has_backward else None,
        compute_s=compute_s,
        communication_s=communication_s,
        host_s=host_s,
    )


COMPUTE, COMMUNICATION, HOST = range(3)
_SHOWN = ("exposed_tp_s", "exposed_ep_s", "exposed_cp_s", "exposed_dp_s")


@dataclass(frozen=True, eq=False)
class SlotLanes:
    """Seconds by lane (COMPUTE, COMMUNICATION, HOST) of one micro batch in every chunk; they add up to the slot.

    forward, backward [lane, pp, vpp]; pair [lane, pp, f, b]: a forward of chunk f beside a backward of chunk b.
    """

    forward: Floats
    backward: Floats
    pair: Floats

    def along(self, order: OperationOrder) -> Floats:
        """Of every slot of a schedule [lane, pp, slots]; padding slots hold 0."""
        ahead, behind = order.forward_micro_batch >= 0, order.backward_micro_batch >= 0
        chunks = (np.where(ahead, order.forward_chunk, 0), np.where(behind, order.backward_chunk, 0))
        stage = np.arange(order.pp)[:, None]
        lanes = np.where(behind, self.backward[:, stage, chunks[1]], 0.0)
        lanes = np.where(ahead, self.forward[:, stage, chunks[0]], lanes)
        return np.maximum(np.where(ahead & behind, self.pair[:, stage, chunks[0], chunks[1]], lanes), 0.0)


def slot_lanes(placed: Placed) -> SlotLanes:
    """The lanes of a candidate under a layout, from the parts that its breakdown adds up.

    What a pair hides comes off expert communication and off the host, as in `take_hidden`: beyond that it shortens
    uneven work.
    """
    times = placed.times
    forward, backward = (
        _pass(placed, name, swap_s[0]) for name, swap_s in zip(PASSES, (times.swap_out_s, times.swap_in_s), strict=True)
    )
    for number, option in enumerate(placed.problem.options):
        run = fill_chunks(placed.applied[:, :, number], placed.layers[..., option.layer_class])[0]
        lane = COMPUTE if option.kind == "recompute" else HOST
        backward[lane] += run * (option.extra_backward_s - option.host_s)
        backward[HOST] += run * option.host_s
    pair = forward[..., :, None] + backward[..., None, :]
    exchange = np.minimum(times.hidden_exchange_s[0], times.hidden_pair_s[0])
    ahead, behind = (placed.chunk_sums(f"cost.{name}.exposed_ep_s") for name in PASSES)
    hideable = {COMMUNICATION: ahead[..., :, None] + behind[..., None, :], HOST: pair[HOST]}
    for lane, hidden in ((COMMUNICATION, exchange), (HOST, times.hidden_pair_s[0] - exchange)):
        taken = np.minimum(hideable[lane], hidden)
        pair[lane] -= taken
        pair[COMPUTE] -= hidden - taken
    return SlotLanes(forward, backward, pair)


def _pass(placed: Placed, name: str, swap_s: Floats) -> Floats:
    """One pass of every chunk without its memory choices [lane, pp, vpp]."""

    def chunks(part: str) -> Floats:
        return placed.chunk_sums(f"cost.{name}.{part}")

    compute = placed.priced.context.slowest_device_factor * chunks("compute_s") + chunks("imbalance_s")
    shown = sum((chunks(part) for part in _SHOWN), np.full(compute.shape, placed.problem.blocking_p2p_s))
    return np.stack([compute, shown, chunks("host_bound_s") + swap_s])
