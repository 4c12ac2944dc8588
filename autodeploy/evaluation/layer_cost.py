"""Time and bytes of a layer table: every formula of the cost models, applied to every candidate at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.exchanges import ExchangeTimes, exchange_times
from autodeploy.evaluation.pair_windows import Pairing, halves
from autodeploy.workload.memory_choices import CHOICES, EVERYTHING, MemoryChoice
from cost_models import compute
from cost_models.host_bound import exposed_host_s, issue_s
from cost_models.load_balance import rank_imbalance

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.machine import Machine
    from autodeploy.evaluation.options import ExchangeFeatures
    from autodeploy.workload.operators import Floats, LayerTable, Operator, Sharding


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Seconds of one operator [n]: forward, gradient of its input, gradient of its weight."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats

    @property
    def backward_s(self) -> Floats:
        """Both gradients."""
        return np.asarray(self.input_gradient_s + self.weight_gradient_s)


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """One pass over a layer for one micro batch [n]: its parts add up to its time."""

    compute_s: Floats
    imbalance_s: Floats
    exposed_tp_s: Floats
    exposed_ep_s: Floats
    exposed_cp_s: Floats
    host_bound_s: Floats

    @property
    def total_s(self) -> Floats:
        """Seconds of the pass."""
        return np.asarray(sum(getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class ChoiceCost:
    """What a memory choice frees and costs, per layer and micro batch [n]."""

    saved_bytes: Floats
    recompute_s: Floats
    swap_bytes: Floats


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Everything the schedule and the solver need to know about a layer, per micro batch on one rank [n]."""

    name: str
    forward: PhaseCost
    backward: PhaseCost
    pairing: Pairing | None  # what its passes bring to a pair, where a schedule pairs
    covering_s: Floats  # weight gradients beside the sends of a pair that ends with this layer's backward
    split_s: Floats  # weight gradients that a split backward runs after its output has left
    ep_shown_forward_s: Floats  # expert communication that one pass alone leaves exposed, uneven load included
    ep_shown_backward_s: Floats
    ep_total_s: Floats  # expert communication of both passes, hidden or not
    tp_total_s: Floats
    cp_total_s: Floats
    activation_bytes: Floats
    balanced_activation_bytes: Floats  # the same with evenly loaded experts
    dense_params: Floats
    expert_params: Floats
    choices: dict[str, ChoiceCost]


def operator_time(op: Operator, machine: Machine, imbalance: Floats | float) -> OperatorTime:
    """Seconds of an operator under `imbalance` (max / mean rows of the busiest rank) where it is per expert."""
    rates = machine.rates
    factor = imbalance if op.per_expert else 1.0
    if op.kind == "gemm":
        m, n, k, g = op.rows, op.columns, op.depth, op.groups
        once = rates.cube_op_s
        shapes = ((m, n, k), (m, k, n), (k, n, m))
        # A batch of equal products is one operator: its fixed cost is paid once.
        forward, dx, dw = ((compute.gemm_s(*shape, rates) - once) * g + once for shape in shapes)
        times = (forward, dx, dw)
    elif op.kind == "grouped_gemm":
        m, n, k, g = op.rows * factor, op.columns, op.depth, op.groups
        times = (
            compute.grouped_gemm_s(g, m, n, k, rates, fused=op.fused),
            compute.grouped_gemm_s(g, m, k, n, rates, fused=op.fused),
            compute.grouped_gemm_s(g, k, n, m, rates, fused=op.fused),
        )
    elif op.kind == "attention":
        times = (
            compute.attention_s(op.flops, op.head_dim, op.seq, rates, backward=False),
            compute.attention_s(op.flops, op.head_dim, op.seq, rates, backward=True),
            np.zeros(1),
        )
    else:
        seconds = compute.vector_s if op.kind == "vector" else compute.movement_s
        times = (
            seconds(op.forward_bytes * factor, op.launches, rates),
            seconds(op.backward_bytes * factor, op.launches, rates),
            np.zeros(1),
        )
    slower = machine.software_factor
    return OperatorTime(*(np.asarray(t * slower) for t in times))


def layer_cost(
    table: LayerTable, shard: Sharding, machine: Machine, features: ExchangeFeatures, *, peak_imbalance: float = 1.0
) -> LayerCost:
    """Cost of a layer table for every candidate of `shard`.

    Imbalance is priced as the difference between the busiest and the mean rank: compute_s is the balanced work.
    """
    ep_imbalance = rank_imbalance(features.imbalance, shard.ep)
    balanced = {op.name: operator_time(op, machine, 1.0) for op in table.operators}
    busiest = {
        op.name: operator_time(op, machine, ep_imbalance) if op.per_expert else balanced[op.name]
        for op in table.operators
    }
    exchanged = exchange_times(table, shard, machine, features, busiest, ep_imbalance)
    forward = _phase(table, machine, features, balanced, busiest, exchanged, backward=False)
    backward = _phase(table, machine, features, balanced, busiest, exchanged, backward=True)
    pairing = _pairing(table, shard, machine, features, busiest, exchanged, (forward, backward))
    peak = rank_imbalance(peak_imbalance, shard.ep)
    kept = {t.name: np.asarray(t.kept_bytes * (peak if t.per_expert else 1.0)) for t in table.tensors}
    activation = np.asarray(sum(kept.values()) + np.zeros_like(shard.tp))
    return LayerCost(
        name=table.name,
        forward=forward,
        backward=backward,
        pairing=pairing,
        covering_s=np.zeros_like(shard.tp) if pairing is None else np.where(features.paired, pairing.covering_s, 0.0),
        split_s=np.zeros_like(shard.tp) if pairing is None else np.where(features.paired, pairing.split_s, 0.0),
        ep_shown_forward_s=np.asarray(sum(exchanged.exposed_ep(backward=False))),
        ep_shown_backward_s=np.asarray(sum(exchanged.exposed_ep(backward=True))),
        ep_total_s=exchanged.ep_total_s,
        tp_total_s=exchanged.tp_total_s,
        cp_total_s=exchanged.cp_total_s,
        activation_bytes=activation,
        balanced_activation_bytes=np.asarray(sum(t.kept_bytes for t in table.tensors) + np.zeros_like(shard.tp)),
        dense_params=table.dense_params,
        expert_params=table.expert_params,
        choices=_choices(table, kept, busiest, exchanged, shard),
    )


def _phase(
    table: LayerTable,
    machine: Machine,
    features: ExchangeFeatures,
    balanced: dict[str, OperatorTime],
    busiest: dict[str, OperatorTime],
    exchanged: ExchangeTimes,
    *,
    backward: bool,
) -> PhaseCost:
    part: Callable[[OperatorTime], Floats] = (lambda t: t.backward_s) if backward else (lambda t: t.forward_s)
    mean = np.asarray(sum(part(t) for t in balanced.values()))
    busy = np.asarray(sum(part(t) for t in busiest.values()))
    ep, ep_imbalance = exchanged.exposed_ep(backward=backward)
    tp, cp = exchanged.exposed_tp(backward=backward), exchanged.exposed_cp(backward=backward)
    synchronisations = 0.0 if features.sync_free or backward else table.synchronisations
    host = issue_s(_issued(table, backward=backward), machine.host.issue_s, synchronisations, machine.host.sync_s)
    device = busy + ep + ep_imbalance + tp + cp
    exposed = exposed_host_s(host, device, synchronisations, machine.host.sync_s)
    zero = np.zeros_like(device)
    return PhaseCost(mean + zero, busy - mean + ep_imbalance + zero, tp + zero, ep + zero, cp + zero, exposed + zero)


def _launches(op: Operator, *, backward: bool) -> Floats | float:
    """Operators the host issues: a matrix multiplication has two gradients."""
    return op.launches * (2.0 if backward and op.kind in {"gemm", "grouped_gemm"} else 1.0)


def _issued(table: LayerTable, *, backward: bool) -> Floats | float:
    return sum(_launches(op, backward=backward) for op in table.operators) + len(table.exchanges)


def _pairing(
    table: LayerTable,
    shard: Sharding,
    machine: Machine,
    features: ExchangeFeatures,
    times: dict[str, OperatorTime],
    exchanged: ExchangeTimes,
    passes: tuple[PhaseCost, PhaseCost],
) -> Pairing | None:
    """What the layer's passes bring to a pair; None where no candidate's schedule pairs."""
    if not features.paired.any():
        return None
    waits = 0.0 if features.sync_free else table.synchronisations * np.asarray(machine.host.sync_s)
    issue = tuple(np.asarray(_issued(table, backward=b) * np.asarray(machine.host.issue_s)) for b in (False, True))
    device = tuple(np.asarray(each.total_s - each.host_bound_s) for each in passes)
    return Pairing(
        *halves(table, shard, machine, features, times, exchanged),
        alone_s=(passes[0].total_s, passes[1].total_s),
        device_s=(device[0], device[1]),
        issue_s=(issue[0], issue[1]),
        waits_s=np.asarray(waits),
    )


def _choices(
    table: LayerTable,
    kept: dict[str, Floats],
    times: dict[str, OperatorTime],
    exchanged: ExchangeTimes,
    shard: Sharding,
) -> dict[str, ChoiceCost]:
    """What each memory choice of this layer frees and costs; choices that free nothing here are left out."""
    found = {}
    for choice in CHOICES.values():
        freed = _freed(choice, kept)
        if not freed:
            continue
        saved = np.asarray(sum(kept[name] for name in freed) + np.zeros_like(shard.tp))
        replayed = np.zeros_like(shard.tp)
        for name, time in times.items():
            if EVERYTHING in choice.replays or name in choice.replays:
                replayed = replayed + time.forward_s
        for name, seconds in exchanged.forward_s.items():
            if EVERYTHING in choice.replays_exchanges or name in choice.replays_exchanges:
                replayed = replayed + seconds
        swapped = saved if choice.kind == "swap" else np.zeros_like(saved)
        found[choice.name] = ChoiceCost(saved, replayed, swapped)
    return found


def _freed(choice: MemoryChoice, kept: dict[str, Floats]) -> list[str]:
    if EVERYTHING in choice.frees:
        return [name for name in kept if name != "attention_norm_in"]
    return [name for name in choice.frees if name in kept]
