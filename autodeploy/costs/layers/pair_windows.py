"""Time gained by a layer when the forward of one micro batch runs against the backward of another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.inputs.context import DEEPEP
from autodeploy.costs.layers.exchanges import EXPERT_KINDS, LayerInputs, expert_s
from autodeploy.costs.workload.operators import BACKWARD, FORWARD, MATRIX_KINDS, ROUTED, group_of
from cost_models.collectives import all_gather_s
from cost_models.schedule import BackwardHalf, ExpertExchange, ForwardHalf, Lanes, pair_s, pair_time

if TYPE_CHECKING:
    from autodeploy.costs.layers.exchanges import ExchangeTimes
    from autodeploy.costs.layers.operator_time import OperatorTime
    from autodeploy.costs.workload.operators import Exchange, Operator
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


OUTSIDE = ("permute", "unpermute")  # reordering before the dispatch and after the combine
CUBE = frozenset({"gemm", "grouped_gemm", "attention"})


@dataclass(frozen=True, slots=True)
class Pairing:
    """A layer's part of a pair as its forward and as its backward, per micro batch [n].

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
    """Seconds hidden by a pair of a forward and a backward, per micro batch [n]; zero where the schedule does not pair.

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
        routed, shared, dense = op.role in ROUTED, op.role == "shared", op.role == "dense"
        add("middle" if routed or dense else "ahead", op, time.forward_s)
        add("back_middle" if routed or shared or dense else "back", op, time.input_gradient_s)
        if op.kind not in MATRIX_KINDS:
            continue  # it has no weight
        if routed:
            experts_dw = experts_dw + time.weight_gradient_s
        elif shared or op.window == "attention":
            left_over = left_over + time.weight_gradient_s
        else:
            add("back_middle" if dense else "back", op, time.weight_gradient_s)
    if layer.features.vector_parallel:
        _beside_matrix_work(work, times, exchanged)
    exchanges = [
        [_expert_exchange(layer, kind, exchanged.once_s(kind, backward=back), back) for kind in ("dispatch", "combine")]
        for back in (False, True)
    ]
    _processors_taken(layer, work, exchanges)
    ahead = collected.lanes(work["ahead"], ("attention", "shared"), backward=False)
    middle = collected.lanes(work["middle"], ("middle",), backward=False)
    back_middle = collected.lanes(work["back_middle"], ("shared", "middle"), backward=True)
    back = collected.lanes(work["back"], ("attention",), backward=True)
    return (
        ForwardHalf(ahead, middle, *exchanges[FORWARD]),
        BackwardHalf(back_middle, np.asarray(experts_dw), back, np.asarray(left_over), *exchanges[BACKWARD]),
    )


def _processors_taken(layer: LayerInputs, work: dict[str, list[Floats]], exchanges: list[list[ExpertExchange]]) -> None:
    """Adds what products lose to a dispatcher whose kernels hold multiprocessors while they send: those of the other
    pass, which has the same exchanges.

    Source: DeepEP holds 20 of 132 by default (Megatron-LM moe_flex_dispatcher_num_sms); the share is that of the
    profile's collectives.
    """
    share = np.where(layer.features.dispatcher == DEEPEP, np.asarray(layer.machine.contention) - 1.0, 0.0)
    if not share.any():
        return
    (dispatch, combine), (back_dispatch, back_combine) = exchanges[FORWARD], exchanges[BACKWARD]
    beside = {"ahead": back_combine, "middle": back_dispatch, "back_middle": dispatch, "back": combine}
    for step, exchange in beside.items():
        work[step][0] = work[step][0] + share * exchange.seconds


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
        self._zero = layer.zero
        self._none = np.zeros((len(layer.machine.tiers), *layer.zero.shape))
        self._exchanges: list[tuple[str, bool, Floats, Floats]] = []
        for one in exchanged.each:
            if one.exchange.kind in EXPERT_KINDS:
                continue
            for back in one.passes:
                of = one.exchange, one.once_s[back], one.exchange.sizes[back]
                on_tiers = layer.prices.once(of, _on_tiers, layer, *of) * one.exchange.counts[back]
                self._exchanges.append((_half(layer, one.exchange), back, on_tiers, one.exposed_s(backward=back)))

    def lanes(self, work: list[Floats], halves: tuple[str, ...], *, backward: bool) -> Lanes:
        """Work of the cube and the vector units, with the collectives of these halves of the layer."""
        exposed, tiers = self._zero, self._none
        for half, back, on_tiers, shown in self._exchanges:
            if half in halves and back == backward:
                exposed, tiers = exposed + shown, tiers + on_tiers
        return Lanes(np.asarray(work[0]), np.asarray(work[1]), np.asarray(exposed), tuple(tiers))


def _half(layer: LayerInputs, exchange: Exchange) -> str:
    """Window of a collective: beside attention, shared experts, or what is between dispatch and combine."""
    if not exchange.blocking:
        return "attention" if exchange.window == "attention" else "middle"
    beside = layer.operators.get(exchange.beside)
    if group_of(exchange) == "etp" or (beside is not None and beside.role == "dense"):
        return "middle"
    return "attention" if exchange.window == "attention" else "shared"


def _on_tiers(layer: LayerInputs, exchange: Exchange, once_s: Floats, size: Floats) -> Floats:
    """Seconds that one run keeps each tier busy [tiers, n]: where its group's outermost members are, or its share."""
    groups, machine = layer.groups, layer.machine
    group = group_of(exchange)
    if not exchange.blocking:
        each = [all_gather_s(size, getattr(groups, group), one.tiers, 0.0) for one in machine.with_one_tier]
        return np.stack(np.broadcast_arrays(*each))
    numbers = np.arange(len(machine.tiers))[:, None]
    return np.where(groups.outermost[group] == numbers, once_s, 0.0)


def _expert_exchange(layer: LayerInputs, kind: str, seconds: Floats, back: bool) -> ExpertExchange:
    """One dispatch or combine beside computation; on each tier as long as if the other tiers took no time."""
    exchange = next((e for e in layer.table.exchanges if e.kind == kind), None)
    if exchange is None:
        return ExpertExchange(layer.zero, tuple(layer.zero for _ in layer.machine.tiers))
    size = exchange.sizes[back]
    tiers = layer.prices.once((exchange, size, *layer.features.balance.busiest), _expert_tiers, layer, exchange, size)
    rate = layer.machine.exchange_beside
    return ExpertExchange(np.asarray(seconds / rate), tuple(np.minimum(tier, seconds) / rate for tier in tiers))


def _expert_tiers(layer: LayerInputs, exchange: Exchange, size: Floats) -> list[Floats]:
    return [expert_s(replace(layer, machine=one), exchange, size, busiest=True) for one in layer.machine.with_one_tier]
