"""Time and bytes of a layer table: every formula of the cost models, applied to every candidate at once."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autodeploy.costs.inputs.context import ALL_GATHER
from autodeploy.costs.layers.exchanges import CORE, EXPERT_KINDS, ExchangeTimes, LayerInputs, exchange_times, sharded_s
from autodeploy.costs.layers.pair_windows import Pairing, beside_matrix_work_s, halves
from autodeploy.costs.workload.adapters import HOOK
from autodeploy.costs.workload.memory_choices import EVERYTHING, touched_by_choices
from autodeploy.costs.workload.operators import MATRIX_KINDS
from cost_models.host_bound import exposed_host_s, kernel_launch_s, restart_s
from cost_models.swap import beyond_own_layer_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autodeploy.costs.layers.operator_time import OperatorTime
    from autodeploy.costs.workload.memory_choices import MemoryChoice, Touched
    from autodeploy.costs.workload.operators import LayerTable, Operator
    from cost_models.arrays import Floats


EVEN = 1.0  # times the rows, bytes and FLOPs of the mean rank
PERMUTES = "permute"  # a replay with this operator selects its rows again
ROUTES = "routing"  # a replay with this operator synchronises as the forward pass does


@dataclass(frozen=True)
class PhaseCost:
    """One pass over a layer for one micro batch [n]: its parts add up to its time."""

    compute_s: Floats
    imbalance_s: Floats
    exposed_tp_s: Floats
    exposed_ep_s: Floats
    exposed_cp_s: Floats
    exposed_dp_s: Floats
    host_bound_s: Floats

    @cached_property
    def total_s(self) -> Floats:
        """Seconds of the pass."""
        return np.asarray(sum(getattr(self, name) for name in PHASE_PARTS))


PHASE_PARTS = tuple(field.name for field in fields(PhaseCost))


class ChoiceCost(NamedTuple):
    """Bytes that a memory choice frees and seconds that it costs, per layer and micro batch [n].

    recompute_s: all that it adds to the backward pass; host_s: the part of it that waits for the host.
    """

    saved_bytes: Floats
    recompute_s: Floats
    swap_bytes: Floats
    host_s: Floats
    uneven_bytes: Floats  # of saved_bytes, what uneven experts add


@dataclass(frozen=True)
class LayerCost:
    """Everything the schedule and the solver need to know about a layer, per micro batch on one rank [n]."""

    name: str
    layer_class: str  # as of its table
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
    activation_bytes: Floats  # as one of the layers of its stage
    worst_activation_bytes: Floats  # of the layer by itself, at its worst moment
    balanced_activation_bytes: Floats  # the same with evenly loaded experts
    expert_activation_bytes: Floats  # of evenly loaded experts alone: these grow with the imbalance
    workspace_bytes: Floats  # beyond what is kept, while it runs
    passing_bytes: Floats  # of what it keeps: gone before the backward pass of any layer begins
    moved_params: Floats  # arriving at the busiest rank in each interval of expert migration
    dense_params: Floats
    expert_params: Floats
    frozen_params: Floats  # of a rank, of weights that are not trained, before they are sharded
    frozen_bytes: Floats  # of these on the rank
    orthogonal_s: tuple[Floats, Floats]  # to orthogonalise all its matrices once: without its experts', and of experts
    choices: dict[str, ChoiceCost]

    @property
    def unit_params(self) -> Floats:
        """Parameters that are gathered together where they are sharded."""
        return np.asarray(self.dense_params + self.expert_params + self.frozen_params)

    @cached_property
    def alone_s(self) -> Floats:
        """Seconds of both passes with nothing beside them."""
        return np.asarray(self.forward.total_s + self.backward.total_s)


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of a layer's operators by name, under even load and on the busiest rank, and of its exchanges."""

    even: dict[str, OperatorTime]
    busiest: dict[str, OperatorTime]  # `even` itself where no rank is busier
    trained: dict[str, OperatorTime]  # `busiest` without operators of a model of reference
    exchanged: ExchangeTimes

    @cached_property
    def even_s(self) -> tuple[Floats, Floats]:
        """Of all operators in the forward and in the backward pass [n]."""
        return both_passes_s(self.even.values())

    @cached_property
    def busiest_s(self) -> tuple[Floats, Floats]:
        """The same on the busiest rank [n]."""
        return self.even_s if self.busiest is self.even else both_passes_s(self.busiest.values())

    @cached_property
    def trained_s(self) -> tuple[Floats, Floats]:
        """Of those in the forward and in the backward pass [n]."""
        return self.busiest_s if self.trained is self.busiest else both_passes_s(self.trained.values())


def both_passes_s(times: Iterable[OperatorTime]) -> tuple[Floats, Floats]:
    """Seconds of operators in the forward and in the backward pass [n]."""
    times = tuple(times)
    return np.asarray(sum(time.forward_s for time in times)), np.asarray(sum(time.backward_s for time in times))


def layer_times(layer: LayerInputs) -> LayerTimes:
    """Times of a layer."""
    operators, features, machine = layer.table.operators, layer.features, layer.machine
    even = layer.prices.operators(operators, machine, EVEN)
    longer: dict[str, OperatorTime] = {}
    if layer.uneven:
        experts = [op for op in operators if op.per_expert]
        longer |= layer.prices.operators(experts, machine, features.balance.compute)
    if np.any(features.attention_imbalance != EVEN):
        attention = [op for op in operators if op.kind == "attention"]
        longer |= layer.prices.operators(attention, machine, features.attention_imbalance)
    busiest = even | longer if longer else even
    trained = {op.name: busiest[op.name] for op in operators if op.role != "reference"}
    trained = trained if len(trained) < len(busiest) else busiest
    return LayerTimes(even, busiest, trained, exchange_times(layer, busiest))


def layer_cost(layer: LayerInputs, *, pairs: bool = True) -> LayerCost:
    """Cost of a layer for every candidate.

    Imbalance, of experts and of packed documents, is priced as the difference between the busiest and the mean rank:
    compute_s is the balanced work.

    pairs : a schedule may run its forward against a backward pass.
    """
    table, features, zero, times = layer.table, layer.features, layer.zero, layer_times(layer)
    exchanged = times.exchanged
    issuing = issuing_s(layer, exchanged, backward=False), issuing_s(layer, exchanged, backward=True)
    forward, backward = (_phase(layer, times, issuing[back], backward=back) for back in (False, True))
    pairing = _pairing(layer, times, issuing, (forward, backward)) if pairs and features.paired.any() else None
    peak = features.balance.peak
    kept = {t.name: np.asarray(t.kept_bytes * (peak if t.per_expert else 1.0)) for t in table.tensors}
    activation = np.asarray(sum(kept.values()) + zero)
    return LayerCost(
        name=table.name,
        layer_class=table.layer_class,
        forward=forward,
        backward=backward,
        pairing=pairing,
        covering_s=zero if pairing is None else np.where(features.paired, pairing.covering_s, 0.0),
        split_s=zero if pairing is None else np.where(features.paired, pairing.split_s, 0.0),
        ep_shown_forward_s=exchanged.shown_ep(backward=False),
        ep_shown_backward_s=exchanged.shown_ep(backward=True),
        ep_total_s=exchanged.total_s("ep"),
        tp_total_s=exchanged.total_s("tp"),
        cp_total_s=exchanged.total_s("cp"),
        activation_bytes=activation,
        worst_activation_bytes=activation,
        balanced_activation_bytes=np.asarray(sum(t.kept_bytes for t in table.tensors) + zero),
        expert_activation_bytes=np.asarray(sum(t.kept_bytes for t in table.tensors if t.per_expert) + zero),
        workspace_bytes=np.asarray(table.workspace_bytes + zero),
        passing_bytes=np.asarray(table.passing_bytes + zero),
        moved_params=np.asarray(table.expert_params * features.balance.moved_share),
        dense_params=table.dense_params,
        expert_params=table.expert_params,
        frozen_params=np.asarray(table.frozen_params + zero),
        frozen_bytes=_frozen_bytes(layer),
        orthogonal_s=_orthogonal_s(layer),
        choices=_choices(layer, kept, times, forward.host_bound_s),
    )


def _frozen_bytes(layer: LayerInputs) -> Floats:
    """Bytes of weights that are not trained on a rank: whole, or its shard and what stays gathered of it.

    Shards of FSDP2 are the parameters as they are loaded, in FP32 (verl workers/fsdp_workers.py, model_dtype fp32).
    """
    frozen, element, sharded = layer.table.frozen_params, layer.machine.rates.element_bytes, layer.features.sharded
    if sharded is None:
        return np.asarray(frozen * element + layer.zero)
    shard = 4.0 if sharded.copies else element
    whole = np.where(sharded.keeps_gathered | sharded.through_step, element, 0.0)
    return np.asarray(frozen * (shard / sharded.dense.size + whole) + layer.zero)


def _orthogonal_s(layer: LayerInputs) -> tuple[Floats, Floats]:
    seconds, rates, matrix_s = [layer.zero, layer.zero], layer.machine.rates.wide(), layer.table.matrix_s
    for each in layer.table.matrices:
        assert matrix_s is not None
        once = matrix_s(each.rows, each.columns, rates)
        seconds[each.experts] = np.asarray(seconds[each.experts] + each.count * once * layer.machine.software_factor)
    return seconds[0], seconds[1]


def over_layers(cost: LayerCost, share: Floats) -> LayerCost:
    """The cost as one of the layers of a stage, of which uneven experts add this share to a layer's bytes [n].

    See `expert_balance.peak_over_layers`. Seconds and transfers stay as they are: every layer waits for its own
    busiest rank.
    """
    less = 1.0 - share
    uneven = cost.activation_bytes - cost.balanced_activation_bytes
    if not np.any(less) or not np.any(uneven):
        return cost
    return replace(
        cost,
        activation_bytes=np.asarray(cost.activation_bytes - less * uneven),
        choices={name: _of_layers(choice, less) for name, choice in cost.choices.items()},
    )


def _of_layers(choice: ChoiceCost, less: Floats) -> ChoiceCost:
    if not np.any(choice.uneven_bytes):
        return choice
    off = np.asarray(less * choice.uneven_bytes)
    return choice._replace(saved_bytes=choice.saved_bytes - off, uneven_bytes=choice.uneven_bytes - off)


def _phase(layer: LayerInputs, times: LayerTimes, issuing: Floats, *, backward: bool) -> PhaseCost:
    exchanged = times.exchanged
    mean, busy = times.even_s[backward], times.busiest_s[backward]
    if layer.features.vector_parallel:
        mean = mean - beside_matrix_work_s(times.even, exchanged, backward=backward)
        busy = busy - beside_matrix_work_s(times.busiest, exchanged, backward=backward)
    tp, cp, ep = (exchanged.exposed[lane, backward] for lane in ("tp", "cp", "ep"))
    ep_imbalance = exchanged.imbalance[backward]
    dp = sharded_s(layer, busy, exchanged, backward=backward)
    device = busy + ep + ep_imbalance + tp + cp + dp
    exposed = _host_s(layer, times, issuing, device, backward=backward)
    zero = np.zeros_like(device)
    uneven = busy - mean + ep_imbalance
    parts = (mean, uneven, tp, ep, cp, dp, exposed)
    return PhaseCost(*(np.asarray(part + zero) for part in parts))


def _host_s(layer: LayerInputs, times: LayerTimes, issuing: Floats, device_s: Floats, *, backward: bool) -> Floats:
    """Seconds of a pass in which the device waits for the host, which takes `issuing` seconds for its operators."""
    rates, table, features = layer.machine.host, layer.table, layer.features
    if features.compiled:
        return np.zeros(1)
    if features.sync_free or backward or not np.any(table.synchronisations):
        return exposed_host_s(issuing, device_s, 0.0, 0.0)
    restart, queued = synchronisation_s(layer, times)
    host = issuing + kernel_launch_s(0.0, 0.0, table.synchronisations, rates.sync_s)
    return exposed_host_s(host, device_s, table.synchronisations, rates.sync_s, restart_s=restart, queued_s=queued)


def issue_of_s(layer: LayerInputs, op: Operator, *, backward: bool) -> Floats:
    """Seconds to issue an operator of a layer [n].

    One on routed rows has another number of them in each micro batch, and its tiling is computed anew, unless the host
    never learns that number: experts padded to a capacity, or a dispatch without synchronisation.
    Source: torch_npu, operators of dynamic shapes; the time is of the stack, `host.new_shape_us`.
    """
    each, host = layer.issue_each_s, layer.machine.host
    if op.per_expert and np.any(host.new_size_s) and not layer.features.sync_free:
        each = each + np.where(np.asarray(layer.table.synchronisations) > 0.0, host.new_size_s, 0.0)
    return np.asarray(launches(op, backward=backward) * each)


def synchronisation_s(layer: LayerInputs, times: LayerTimes) -> tuple[Floats, Floats]:
    """After a synchronisation: the wait until the host is ahead again, and the work still queued beside it.

    An all-gather of tokens does not depend on what the host waits for: issued asynchronously, it runs beside the wait.
    Otherwise nothing is queued where operators are issued in the order of the mathematics. Reordered, what does not
    depend on the sizes - the shared experts - is issued before the host waits for them. While an exchange runs the host
    gets ahead. Source: MindSpeed 2.0.0_core_r0.8.0, allgather_token_permutation under --moe-permutation-async-comm;
    Megatron-LM's own gathers, which later releases keep, end before its wait.
    """
    rows, features, busiest, exchanged = layer.operators, layer.features, times.busiest, times.exchanged
    names = [name for name in layer.table.after_synchronisation if name in rows or name in EXPERT_KINDS]
    early = [name for name in names if name in rows and rows[name].role == "shared"] if features.host_reorder else []
    along = {each.name: len(each.along) for each in layer.table.exchanges}
    sent = {kind: exchanged.once_s(kind, backward=False) for kind in sorted(EXPERT_KINDS & along.keys())}
    queued = np.asarray(sum((busiest[name].forward_s for name in early), np.zeros(1)))
    gathered = (features.dispatcher == ALL_GATHER) & features.async_gathers
    queued = queued + np.where(gathered, sent.get("dispatch", 0.0), 0.0)
    late = [name for name in names if name not in early]
    seconds = {name: busiest[name].forward_s for name in late if name in rows}
    issuing = {name: issue_of_s(layer, rows[name], backward=False) for name in seconds}
    for name, of_exchange in sent.items():
        calls = np.where(of_exchange > 0.0, 1.0 + along[name], 0.0)
        seconds[name], issuing[name] = of_exchange, np.asarray(calls * layer.issue_each_s)
    return restart_s([issuing[name] for name in late], [seconds[name] for name in late]), queued


def launches(op: Operator, *, backward: bool) -> Floats | float:
    """Operators the host issues: a matrix multiplication has two gradients, other rows say where they have more."""
    given = op.issued_backward if backward else op.issued
    if given is not None:
        return op.runs * given
    if op.kind not in MATRIX_KINDS:
        return op.runs * op.launches
    forward, of_input, of_weight = op.passes
    return op.runs * op.launches * (of_input + of_weight if backward else forward)


def issued(layer: LayerInputs, exchanged: ExchangeTimes, *, backward: bool) -> Floats:
    """Operators and exchanges that the host issues in a pass.

    Captured, all that comes before the sizes are known is one graph: attention, norms and router; of a layer without
    experts everything. Source: Megatron-LM --cuda-graph-modules attn moe_router moe_preprocess.
    """
    table = layer.table
    sized = {*table.after_synchronisation, HOOK}  # hooks of parameters run in no graph
    singly = [op for op in table.operators if not layer.features.captured or op.name in sized]
    graphs = 1.0 if len(singly) < len(table.operators) else 0.0
    return np.asarray(
        sum(launches(op, backward=backward) for op in singly) + graphs + exchanged.launches(backward=backward)
    )


def issuing_s(layer: LayerInputs, exchanged: ExchangeTimes, *, backward: bool) -> Floats:
    """Seconds in which the host issues a pass; none of a compiled graph [n]."""
    if layer.features.compiled:
        return layer.zero
    calls = issued(layer, exchanged, backward=backward)
    new = sum(
        issue_of_s(layer, op, backward=backward) - launches(op, backward=backward) * layer.issue_each_s
        for op in layer.table.operators
        if op.per_expert
    )
    return np.asarray(calls * layer.issue_each_s + new)


def _pairing(
    layer: LayerInputs, times: LayerTimes, issue: tuple[Floats, Floats], passes: tuple[PhaseCost, PhaseCost]
) -> Pairing:
    """The layer's passes as a part of a pair."""
    device = tuple(np.asarray(each.total_s - each.host_bound_s) for each in passes)
    # What the forward alone waits for the host beyond issuing is its synchronisation's: a pair waits as long.
    waits = passes[0].host_bound_s - np.maximum(0.0, issue[0] - device[0])
    return Pairing(
        *halves(layer, times.busiest, times.exchanged),
        alone_s=(passes[0].total_s, passes[1].total_s),
        device_s=(device[0], device[1]),
        issue_s=(issue[0], issue[1]),
        waits_s=np.asarray(waits),
    )


def _choices(
    layer: LayerInputs, kept: dict[str, Floats], times: LayerTimes, forward_host_s: Floats
) -> dict[str, ChoiceCost]:
    """Bytes freed and seconds cost by each memory choice of this layer; choices that free nothing here are left out."""
    table, zero = layer.table, layer.zero
    balanced = {t.name: t.kept_bytes for t in table.tensors if t.per_expert}
    touched = touched_by_choices(tuple(kept), tuple(times.trained), shares=table.by_operator is not None)
    saved = {each.choice.name: _saved_bytes(each, kept, layer) for each in touched}
    work = {each.choice.name: _replayed_s(each, times, table) for each in touched if each.choice.kind == "recompute"}
    waits = _waits(touched, saved, work, times.exchanged.shown_ep(backward=True) * layer.features.recompute_in_bubbles)
    choices = {}
    for each in touched:
        choice, bytes_ = each.choice, saved[each.choice.name]
        uneven = zero
        if any(name in balanced for name in each.freed):
            uneven = np.asarray(bytes_ - sum(balanced.get(name, kept[name]) for name in each.freed))
        if choice.record.shares and table.by_operator is not None:
            bytes_ = np.asarray(bytes_ - table.by_operator.kept_bytes)
        if choice.kind == "swap":
            cost = ChoiceCost(bytes_, _swapped_s(layer, choice, bytes_, times), bytes_, zero, uneven)
        else:
            replayed = zero + work[choice.name] - waits(choice)
            for exchange, seconds in times.exchanged.recomputed:
                if choice.replays_exchange(exchange):
                    replayed = replayed + seconds
            host = _replay_host_s(layer, each, replayed, forward_host_s)
            cost = ChoiceCost(bytes_, replayed + host, zero, host, uneven)
        choices[choice.name] = cost
    return choices


def _replay_host_s(layer: LayerInputs, touched: Touched, replayed_s: Floats, forward_host_s: Floats) -> Floats:
    """Seconds for which a replay of so much work waits for the host.

    One that routes again learns its split sizes again: as long as in the forward pass. One that only permutes again
    waits for the selections of its rows, any other until its operators are issued. Source: Megatron-LM checkpointed
    layers run the dispatcher's preprocess, with its device-to-host copy, a second time.
    """
    choice, features = touched.choice, layer.features
    if EVERYTHING in choice.replays or ROUTES in choice.replays:
        return forward_host_s
    if features.compiled:
        return layer.zero
    permutes = PERMUTES in choice.replays and not features.sync_free
    waits = layer.table.replayed_synchronisations * np.asarray(layer.machine.host.sync_s) if permutes else 0.0
    shares = layer.table.by_operator.operators if choice.record.shares and layer.table.by_operator is not None else {}
    issuing = sum(
        issue_of_s(layer, layer.operators[name], backward=False) * shares.get(name, 1.0)
        for name in touched.replayed
        if not features.captured or name in layer.table.after_synchronisation
    )
    late = np.maximum(0.0, issuing - replayed_s)
    return np.asarray(layer.zero + late + waits)


def _swapped_s(layer: LayerInputs, choice: MemoryChoice, swapped: Floats, times: LayerTimes) -> Floats:
    """Seconds in which what is swapped is read from device memory and written back, for which other operators wait."""
    rates = layer.machine.rates
    waited = 2.0 * swapped / (rates.hbm_bytes_per_s * np.asarray(rates.hbm_fraction))
    if choice.record.own_layer:
        waited = waited + np.where(layer.features.paired, 0.0, _own_layer_s(layer, swapped, times))
    return np.asarray(waited)


def _own_layer_s(layer: LayerInputs, swapped: Floats, times: LayerTimes) -> Floats:
    """Seconds in which a layer waits for swapping what its attention keeps, beyond what its whole passes hide.

    It leaves beside attention itself and what follows, and comes back beside the backward pass of what follows. A pair
    has another micro batch's pass in between.
    """
    trained = times.trained
    after = [op.name for op in layer.table.operators if op.window != "attention" and op.name in trained]
    core = [CORE] if CORE in trained else []
    out = sum((trained[name].forward_s for name in (*core, *after)), np.zeros(1))
    back = sum((trained[name].backward_s for name in after), np.zeros(1))
    link = layer.machine.host.link_bytes_per_s
    windows = zip((out, back), times.trained_s, strict=True)
    return np.asarray(sum(beyond_own_layer_s(swapped, link, window, whole) for window, whole in windows))


def _saved_bytes(touched: Touched, kept: Mapping[str, Floats], layer: LayerInputs) -> Floats:
    """Bytes of the kept tensors that a choice frees, or of its shares of them [n]."""
    if not touched.choice.record.shares or layer.table.by_operator is None:
        return np.asarray(sum(kept[name] for name in touched.freed) + layer.zero)
    shares = layer.table.by_operator.tensors
    return np.asarray(sum(kept[name] * shares[name] for name in touched.freed) + layer.zero)


def _replayed_s(touched: Touched, times: LayerTimes, table: LayerTable) -> Floats:
    """Seconds of the operators that a choice runs again [n]."""
    if EVERYTHING in touched.choice.replays:
        return times.trained_s[0]
    forward = {name: times.trained[name].forward_s for name in touched.replayed}
    if touched.choice.record.shares and table.by_operator is not None:
        forward = {name: seconds * table.by_operator.operators[name] for name, seconds in forward.items()}
    return np.asarray(sum(forward.values(), np.zeros(1)))


def _waits(
    touched: Sequence[Touched], saved: Mapping[str, Floats], work: Mapping[str, Floats], exposed: Floats
) -> Callable[[MemoryChoice], Floats | float]:
    """Share of a choice's replay that runs while the backward pass waits for an expert exchange (`exposed`).

    A replay needs no gradient, so it can run beside the exchanges of the backward pass that nothing else hides. Full
    recompute has them to itself; choices that may be combined share them in proportion to their work, so that together
    they never hide more than there is. One that frees no bytes, as of norms before frozen weights, has no share.
    """
    if not np.any(exposed):
        return lambda choice: 0.0
    together = np.zeros(1)
    for each in touched:
        if each.choice.kind == "recompute" and EVERYTHING not in each.choice.frees:
            name = each.choice.name
            together = together + np.where(saved[name] > 0.0, work[name], 0.0)

    def hidden(choice: MemoryChoice) -> Floats:
        hideable = work[choice.name]
        share = 1.0 if EVERYTHING in choice.frees else hideable / np.maximum(together, 1e-30)
        return np.minimum(hideable, exposed * share)

    return hidden
