"""What a layer gains when the forward of one micro batch runs against the backward of another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layers.exchanges import DENSE, HOT, SHARED, LayerInputs, expert_s, group_name
from cost_models.collectives import all_gather_s
from cost_models.schedule import BackwardHalf, ExpertExchange, ForwardHalf, Lanes, pair_s, pair_time

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.machine import Machine
    from autodeploy.evaluation.layers.exchanges import ExchangeTimes
    from autodeploy.evaluation.layers.operator_time import OperatorTime
    from autodeploy.workload.operators import Exchange, Operator
    from cost_models.arrays import Floats


# Reordering of rows on either side of the experts, with the exchange beside it.
VECTOR_LANE = {"dispatch": ("permute", "sort_by_expert"), "combine": ("sort_by_rank", "unpermute")}
SHARED_PRODUCTS = ("shared_up_proj", "shared_down_proj")
EXPERT_PRODUCTS = ("expert_up_proj", "expert_down_proj")


def beside_matrix_work_s(times: dict[str, OperatorTime], exchanged: ExchangeTimes, *, backward: bool) -> Floats:
    """Seconds of a pass in which rows are reordered on vector units beside independent matrix work.

    Notes
    -----
    Forward, the shared experts' products do not depend on the routed rows: half of them beside the way to the experts,
    half beside the way back. Backward, rows return to the experts beside the shared experts' gradients, and leave them
    beside the experts' weight gradients. An exchange that already runs behind the same work is in series with the
    reordering, so it takes its share of the window first: hidden = min(reordering, matrix work - exchange behind it).
    """
    hidden = np.zeros(1)
    for side, names in VECTOR_LANE.items():
        rows = [times[name] for name in names if name in times]
        moved = np.asarray(sum((t.backward_s if backward else t.forward_s for t in rows), np.zeros(1)))
        window = np.maximum(0.0, _window_s(times, side, backward) - exchanged.behind.get((side, backward), np.zeros(1)))
        hidden = hidden + np.minimum(moved, window)
    return np.asarray(hidden)


def _window_s(times: dict[str, OperatorTime], side: str, backward: bool) -> Floats:
    shared = [times[name] for name in SHARED_PRODUCTS if name in times]
    if not backward:
        return np.asarray(sum((t.forward_s for t in shared), np.zeros(1)) / 2.0)
    if side == "combine":
        return np.asarray(sum((t.backward_s for t in shared), np.zeros(1)))
    experts = [times[name] for name in EXPERT_PRODUCTS if name in times]
    return np.asarray(sum((t.weight_gradient_s for t in experts), np.zeros(1)))


ROUTED = ("expert_", "sort_by_")  # operators between dispatch and combine
OUTSIDE = ("permute", "unpermute")  # reordering before the dispatch and after the combine
CUBE = frozenset({"gemm", "grouped_gemm", "attention"})
FAST = 1e30  # bytes a second of a link that takes no time


@dataclass(frozen=True, slots=True)
class Pairing:
    """What one layer brings to a pair as its forward and as its backward, per micro batch [n].

    alone_s, device_s, issue_s: (forward, backward) of a pass alone, of it without waiting for the host, and of issuing
    its operators. waits_s: synchronisations of its forward.
    """

    forward: ForwardHalf
    backward: BackwardHalf
    alone_s: tuple[Floats, Floats]
    device_s: tuple[Floats, Floats]
    issue_s: tuple[Floats, Floats]
    waits_s: Floats

    @property
    def covering_s(self) -> Floats:
        """Weight gradients beside which a pair that ends with this layer's backward sends its outputs."""
        return self.backward.left_over_dw

    @property
    def split_s(self) -> Floats:
        """Weight gradients that a split backward runs after its output has left.

        The experts' dW hides their dispatch first; what is longer can wait.
        """
        spare = np.maximum(self.backward.expert_dw - self.backward.dispatch.seconds, 0.0)
        return np.asarray(self.backward.left_over_dw + spare)


@dataclass(frozen=True, slots=True)
class PairCost:
    """What a pair of a forward and a backward hides, per micro batch [n]; zero where the schedule does not pair.

    hidden_s : forward + backward - pair, for a layer after another one of its chunk. hidden_exchange_s : the part of it
    that is expert communication; the rest is waiting for the host. first_s : how much less the first layer of a chunk
    hides, and every layer where the two chunks have different numbers of layers.
    """

    hidden_s: Floats
    hidden_exchange_s: Floats
    first_s: Floats


def pair_cost(forward: Pairing, backward: Pairing, paired: np.ndarray) -> PairCost:
    """The gain of a pair over its two passes alone."""
    time = pair_time(forward.forward, backward.backward)
    alone = forward.alone_s[0], backward.alone_s[1]
    host = forward.issue_s[0] + backward.issue_s[1]
    inner = pair_s(time.inner_s, *alone, host, forward.waits_s)
    first = pair_s(time.inner_s + time.first_s, *alone, host, forward.waits_s)
    hidden = alone[0] + alone[1] - inner
    on_device = forward.device_s[0] + backward.device_s[1] - time.inner_s
    exchange = np.minimum(hidden, np.maximum(on_device, 0.0))
    return PairCost(*(np.asarray(np.where(paired, value, 0.0)) for value in (hidden, exchange, first - inner)))


def halves(
    layer: LayerInputs, times: dict[str, OperatorTime], exchanged: ExchangeTimes
) -> tuple[ForwardHalf, BackwardHalf]:
    """The layer's operators and collectives by the step of a pair in which they run."""
    zero, collected = layer.zero, _Collectives(layer, exchanged)
    experts_dw, left_over = zero, zero
    work: dict[str, list[Floats]] = {step: [zero, zero] for step in ("ahead", "middle", "back_middle", "back")}

    def add(step: str, op: Operator, seconds: Floats) -> None:
        lane = 0 if op.kind in CUBE else 1
        work[step][lane] = work[step][lane] + seconds

    for op in layer.table.operators:
        time = times[op.name]
        routed, shared, dense = (op.name.startswith(names) for names in (ROUTED, SHARED, DENSE))
        add("middle" if routed or dense else "ahead", op, time.forward_s)
        add("back_middle" if routed or shared or dense else "back", op, time.input_gradient_s)
        if routed:
            experts_dw = experts_dw + time.weight_gradient_s
        elif shared or op.window == "attention":
            left_over = left_over + time.weight_gradient_s
        else:
            add("back_middle" if dense else "back", op, time.weight_gradient_s)
    if layer.features.vector_parallel:
        _beside_matrix_work(work, times, exchanged)
    exchanges = [
        _expert_exchange(layer, name, seconds)
        for name, seconds in (("dispatch", exchanged.dispatch_s), ("combine", exchanged.combine_s))
    ]
    ahead = collected.lanes(work["ahead"], ("attention", "shared"), backward=False)
    middle = collected.lanes(work["middle"], ("middle",), backward=False)
    back_middle = collected.lanes(work["back_middle"], ("shared", "middle"), backward=True)
    back = collected.lanes(work["back"], ("attention",), backward=True)
    return (
        ForwardHalf(ahead, middle, *exchanges),
        BackwardHalf(back_middle, np.asarray(experts_dw), back, np.asarray(left_over), *exchanges),
    )


def _beside_matrix_work(
    work: dict[str, list[Floats]], times: dict[str, OperatorTime], exchanged: ExchangeTimes
) -> None:
    """Takes off what vector units do beside matrix work: of rows that leave and return first, then of the sorting."""
    for outer, inner, backward in (("ahead", "middle", False), ("back", "back_middle", True)):
        beside = beside_matrix_work_s(times, exchanged, backward=backward)
        moved = [times[name] for name in OUTSIDE if name in times]
        outside = sum((t.backward_s if backward else t.forward_s for t in moved), np.zeros(1))
        taken = np.minimum(beside, outside)
        work[outer][1] = work[outer][1] - taken
        work[inner][1] = work[inner][1] - (beside - taken)


class _Collectives:
    """Collectives other than dispatch and combine, by the half of the layer in which they run."""

    def __init__(self, layer: LayerInputs, exchanged: ExchangeTimes) -> None:
        self._zero, self._tiers = layer.zero, range(len(layer.machine.tiers))
        self._found: list[tuple[str, bool, tuple[Floats, ...], Floats]] = []
        for one in exchanged.each:
            if one.exchange.kind in {"dispatch", "combine"}:
                continue
            half, of = _half(one.exchange), (one.exchange, one.once_s)
            forward, backward = layer.prices.once(of, _passes_on_tiers, layer, *of)
            self._found.append((half, False, forward, one.exposed_forward_s))
            self._found.append((half, True, backward, one.exposed_backward_s))

    def lanes(self, work: list[Floats], halves: tuple[str, ...], *, backward: bool) -> Lanes:
        """Work of the cube and the vector units, with the collectives of these halves of the layer."""
        exposed, tiers = self._zero, [self._zero for _ in self._tiers]
        for half, back, on_tiers, shown in self._found:
            if half in halves and back == backward:
                exposed = exposed + shown
                for number in self._tiers:
                    tiers[number] = tiers[number] + on_tiers[number]
        return Lanes(np.asarray(work[0]), np.asarray(work[1]), np.asarray(exposed), tuple(map(np.asarray, tiers)))


def _half(exchange: Exchange) -> str:
    """Where a collective runs: beside attention, shared experts, or what is between dispatch and combine."""
    if exchange.name in HOT:
        return "attention" if exchange.name == "hot_gradients" else "middle"
    if exchange.name.startswith(ROUTED) or exchange.beside.startswith(DENSE):
        return "middle"
    return "attention" if exchange.window == "attention" else "shared"


def _passes_on_tiers(layer: LayerInputs, exchange: Exchange, once_s: Floats) -> list[tuple[Floats, ...]]:
    """Seconds that the runs of a forward and of a backward pass keep each tier busy [n]."""
    once = _on_tiers(layer, exchange, once_s)
    return [tuple(np.asarray(tier * n) for tier in once) for n in (exchange.forward_count, exchange.backward_count)]


def _on_tiers(layer: LayerInputs, exchange: Exchange, once_s: Floats) -> tuple[Floats, ...]:
    """Seconds that one run keeps each tier busy [n]: where its group's outermost members are, or each tier's share."""
    groups, machine = layer.groups, layer.machine
    if exchange.name in HOT:
        return tuple(
            all_gather_s(exchange.message_bytes, groups.ep, _alone(machine, number).tiers, 0.0)
            for number in range(len(machine.tiers))
        )
    tier = groups.outermost[group_name(exchange)]
    return tuple(np.asarray(np.where(tier == number, once_s, 0.0)) for number in range(len(machine.tiers)))


def _alone(machine: Machine, number: int) -> Machine:
    """The machine on which only one tier takes time."""
    tiers = tuple(
        tier if n == number else replace(tier, bytes_per_s=FAST, latency_s=0.0) for n, tier in enumerate(machine.tiers)
    )
    return replace(machine, tiers=tiers, comm_op_s=0.0)


def _expert_exchange(layer: LayerInputs, name: str, seconds: Floats) -> ExpertExchange:
    """One dispatch or combine beside computation; on each tier as long as if the other tiers took no time."""
    exchange = next((e for e in layer.table.exchanges if e.kind == name), None)
    if exchange is None:
        return ExpertExchange(layer.zero, tuple(layer.zero for _ in layer.machine.tiers))
    tiers = layer.prices.once((exchange, *layer.features.balance.busiest), _expert_tiers, layer, exchange)
    rate = layer.machine.exchange_beside
    return ExpertExchange(np.asarray(seconds / rate), tuple(np.minimum(tier, seconds) / rate for tier in tiers))


def _expert_tiers(layer: LayerInputs, exchange: Exchange) -> list[Floats]:
    machines = (_alone(layer.machine, number) for number in range(len(layer.machine.tiers)))
    return [expert_s(replace(layer, machine=machine), exchange, busiest=True) for machine in machines]
