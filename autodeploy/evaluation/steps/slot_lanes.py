"""What fills a slot of the simulated schedule: work, communication that shows, waiting for the host or its link."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.stages.build_problem import chunk_sums
from autodeploy.evaluation.stages.inner_problem import fill_chunks

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.inner_problem import ChunkTimes, InnerProblem
    from autodeploy.evaluation.stages.step_classes import StepClasses
    from cost_models.arrays import Floats, Ints
    from cost_models.schedule import OperationOrder

COMPUTE, COMMUNICATION, HOST = range(3)
PASSES = ("forward", "backward")
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
        found = np.where(behind, self.backward[:, stage, chunks[1]], 0.0)
        found = np.where(ahead, self.forward[:, stage, chunks[0]], found)
        return np.maximum(np.where(ahead & behind, self.pair[:, stage, chunks[0], chunks[1]], found), 0.0)


def slot_lanes(
    problem: InnerProblem,
    classes: StepClasses,
    context: Context,
    index: int,
    layers: Ints,
    applied: Ints,
    times: ChunkTimes,
) -> SlotLanes:
    """The lanes of candidate `index`, from the parts that its breakdown adds up; layers and applied as `chunk_times`.

    What a pair hides comes off expert communication and off the host, as in `take_hidden`: beyond that it shortens
    uneven work.
    """
    given = (problem, classes, context, index, layers[0])
    forward, backward = (
        _pass(*given, name, swap_s[0]) for name, swap_s in zip(PASSES, (times.swap_out_s, times.swap_in_s), strict=True)
    )
    for number, option in enumerate(problem.options):
        run = fill_chunks(applied[:, :, number], layers[..., option.layer_class])[0]
        lane = COMPUTE if option.kind == "recompute" else HOST
        backward[lane] += run * (option.extra_backward_s - option.host_s)
        backward[HOST] += run * option.host_s
    pair = forward[..., :, None] + backward[..., None, :]
    exchange = np.minimum(times.hidden_exchange_s[0], times.hidden_pair_s[0])
    ahead, behind = (
        chunk_sums(problem, classes, index, layers[0], attrgetter(f"cost.{name}.exposed_ep_s")) for name in PASSES
    )
    hideable = {COMMUNICATION: ahead[..., :, None] + behind[..., None, :], HOST: pair[HOST]}
    for lane, hidden in ((COMMUNICATION, exchange), (HOST, times.hidden_pair_s[0] - exchange)):
        taken = np.minimum(hideable[lane], hidden)
        pair[lane] -= taken
        pair[COMPUTE] -= hidden - taken
    return SlotLanes(forward, backward, pair)


def _pass(
    problem: InnerProblem,
    classes: StepClasses,
    context: Context,
    index: int,
    layers: Ints,
    name: str,
    swap_s: Floats,
) -> Floats:
    """One pass of every chunk without its memory choices [lane, pp, vpp]."""

    def chunks(part: str) -> Floats:
        return chunk_sums(problem, classes, index, layers, attrgetter(f"cost.{name}.{part}"))

    compute = context.slowest_device_factor * chunks("compute_s") + chunks("imbalance_s")
    shown = sum((chunks(part) for part in _SHOWN), np.full(compute.shape, problem.blocking_p2p_s))
    return np.stack([compute, shown, chunks("host_bound_s") + swap_s])
