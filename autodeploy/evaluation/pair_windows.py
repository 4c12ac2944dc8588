"""What a layer gains when the forward of one micro batch runs against the backward of another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.exchanges import Groups, expert_s, group_of
from cost_models.load_balance import rank_imbalance
from cost_models.schedule import ExpertExchange, Lanes, PairedLayer, pair_s, pair_time

if TYPE_CHECKING:
    from autodeploy.evaluation.exchanges import ExchangeTimes
    from autodeploy.evaluation.layer_cost import OperatorTime
    from autodeploy.evaluation.machine import Machine
    from autodeploy.evaluation.options import ExchangeFeatures
    from autodeploy.workload.operators import Exchange, Floats, LayerTable, Sharding

ROUTED = ("expert_", "sort_by_")  # operators between dispatch and combine
SHARED = "shared_"
CUBE = frozenset({"gemm", "grouped_gemm", "attention"})
FAST = 1e30  # bytes a second of a link that takes no time


@dataclass(frozen=True, slots=True)
class PairCost:
    """What a pair of this layer's passes changes, per micro batch [n]; zero where the schedule does not pair.

    hidden_s : forward + backward - pair, for a layer after another one of its chunk. hidden_exchange_s : the part of it
    that is expert communication; the rest is waiting for the host. first_s : how much less the first layer of a chunk
    hides. covering_s : weight gradients beside which a pair sends its outputs. split_s : weight gradients that a split
    backward runs after its output has left.
    """

    hidden_s: Floats
    hidden_exchange_s: Floats
    first_s: Floats
    covering_s: Floats
    split_s: Floats

    @classmethod
    def nothing(cls, shard: Sharding) -> PairCost:
        """No pairs."""
        return cls(*(np.zeros_like(shard.tp) for _ in range(5)))


def pair_cost(
    layer: PairedLayer,
    paired: np.ndarray,
    *,
    passes_s: tuple[Floats, Floats],
    device_s: Floats,
    host_s: Floats,
    waits_s: Floats,
) -> PairCost:
    """The gain of a pair over its two passes alone.

    Parameters
    ----------
    passes_s : forward and backward alone. device_s : both on the device, without waiting for the host.
    host_s : issuing the operators of both. waits_s : synchronisations.
    """
    forward, backward = passes_s
    time = pair_time(layer)
    inner = pair_s(time.inner_s, forward, backward, host_s, waits_s)
    first = pair_s(time.inner_s + time.first_s, forward, backward, host_s, waits_s)
    hidden = forward + backward - inner
    exchange = np.minimum(hidden, np.maximum(device_s - time.inner_s, 0.0))
    split = layer.left_over_dw + np.maximum(layer.expert_dw - layer.dispatch.seconds, 0.0)
    values = (hidden, exchange, first - inner, layer.left_over_dw, split)
    return PairCost(*(np.asarray(np.where(paired, value, 0.0)) for value in values))


def paired_layer(
    table: LayerTable,
    shard: Sharding,
    machine: Machine,
    features: ExchangeFeatures,
    times: dict[str, OperatorTime],
    exchanged: ExchangeTimes,
) -> PairedLayer:
    """The layer's operators and collectives by the step of a pair in which they run."""
    groups = Groups.of(shard, machine)
    zero = np.zeros_like(shard.tp)
    collected = _Collectives(exchanged, groups, machine, zero)
    experts_dw, left_over = zero, zero
    work: dict[str, list[Floats]] = {step: [zero, zero] for step in ("ahead", "experts", "back_experts", "back")}
    for op in table.operators:
        time, lane = times[op.name], 0 if op.kind in CUBE else 1
        routed, shared = op.name.startswith(ROUTED), op.name.startswith(SHARED)
        step = "experts" if routed else "ahead"
        work[step][lane] = work[step][lane] + time.forward_s
        step = "back_experts" if routed or shared else "back"
        work[step][lane] = work[step][lane] + time.input_gradient_s
        if routed:
            experts_dw = experts_dw + time.weight_gradient_s
        elif shared or op.window == "attention":
            left_over = left_over + time.weight_gradient_s
        else:
            work["back"][lane] = work["back"][lane] + time.weight_gradient_s
    return PairedLayer(
        forward_around=collected.lanes(work["ahead"], ("attention", "mlp"), backward=False),
        forward_experts=collected.lanes(work["experts"], ("experts",), backward=False),
        backward_experts=collected.lanes(work["back_experts"], ("mlp", "experts"), backward=True),
        expert_dw=np.asarray(experts_dw),
        backward_around=collected.lanes(work["back"], ("attention",), backward=True),
        left_over_dw=np.asarray(left_over),
        dispatch=_expert_exchange("dispatch", table, groups, shard, machine, features, exchanged.dispatch_s),
        combine=_expert_exchange("combine", table, groups, shard, machine, features, exchanged.combine_s),
    )


class _Collectives:
    """Collectives other than dispatch and combine, by the half of the layer in which they run."""

    def __init__(self, exchanged: ExchangeTimes, groups: Groups, machine: Machine, zero: Floats) -> None:
        self._zero, self._tiers = zero, range(len(machine.tiers))
        self._found: list[tuple[str, bool, Floats, Floats, Floats]] = []
        for one in exchanged.each:
            if one.exchange.kind in {"dispatch", "combine"}:
                continue
            half = "experts" if one.exchange.name.startswith(ROUTED) else one.exchange.window
            tier = _outermost(one.exchange, groups, zero)
            passes = (
                (False, one.exchange.forward_count, one.exposed_forward_s),
                (True, one.exchange.backward_count, one.exposed_backward_s),
            )
            for backward, count, shown in passes:
                self._found.append((half, backward, tier, np.asarray(one.once_s * count), shown))

    def lanes(self, work: list[Floats], halves: tuple[str, ...], *, backward: bool) -> Lanes:
        """Work of the cube and the vector units, with the collectives of these halves of the layer."""
        exposed, tiers = self._zero, [self._zero for _ in self._tiers]
        for half, back, tier, seconds, shown in self._found:
            if half in halves and back == backward:
                exposed = exposed + shown
                for number in self._tiers:
                    tiers[number] = tiers[number] + np.where(tier == number, seconds, 0.0)
        return Lanes(np.asarray(work[0]), np.asarray(work[1]), np.asarray(exposed), tuple(map(np.asarray, tiers)))


def _outermost(exchange: Exchange, groups: Groups, zero: Floats) -> Floats:
    """The outermost tier that a group spans [n]: its collectives are counted there."""
    tier = zero
    for number, fan_out in enumerate(group_of(exchange, groups).fan_out):
        tier = np.where(fan_out > 1, float(number), tier)
    return np.asarray(tier)


def _expert_exchange(
    name: str,
    table: LayerTable,
    groups: Groups,
    shard: Sharding,
    machine: Machine,
    features: ExchangeFeatures,
    seconds: Floats,
) -> ExpertExchange:
    """One dispatch or combine; on each tier it takes what it would take if the other tiers took no time."""
    exchange = next((e for e in table.exchanges if e.kind == name), None)
    if exchange is None:
        return ExpertExchange(np.zeros_like(shard.tp), tuple(np.zeros_like(shard.tp) for _ in machine.tiers))
    imbalance = rank_imbalance(features.imbalance, shard.ep)
    tiers = []
    for number in range(len(machine.tiers)):
        alone = tuple(
            tier if n == number else replace(tier, bytes_per_s=FAST, latency_s=0.0)
            for n, tier in enumerate(machine.tiers)
        )
        only = replace(machine, tiers=alone, comm_op_s=0.0)
        tiers.append(expert_s(exchange, groups, shard, only, features, table, imbalance))
    return ExpertExchange(seconds, tuple(np.minimum(tier, seconds) for tier in tiers))
