"""Time of a layer's exchanges: which group they run in, what they take and what already runs behind computation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.inputs.context import ALL_GATHER, HIERARCHICAL, SEQUENTIAL, ExchangeFeatures
from autodeploy.costs.layers.operator_time import Prices
from autodeploy.costs.workload.operators import FORWARD, RECOMPUTED, group_of
from cost_models import all_to_all
from cost_models.chunked_overlap import chunked_s, tile_loss
from cost_models.collectives import (
    GatherRate,
    Group,
    all_gather_s,
    all_reduce_s,
    fused_pieces,
    gather_rate,
    ring_pass_s,
)
from cost_models.compute import vector_s
from cost_models.data_parallel import added_s, copy_in_s, copy_out_s, sharded_pass_s, synchronisation
from cost_models.host_bound import slowest_of

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Sharded
    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.costs.layers.operator_time import OperatorTime
    from autodeploy.costs.workload.operators import Exchange, ExchangeGroup, LayerTable, Operator, Sharding
    from cost_models.arrays import Floats, Ints, Number


# Exchanges of sharded parameters.
@dataclass(frozen=True, slots=True)
class ShardTimes:
    """Seconds [n] to gather a unit's parameters and to reduce its gradients, and of copies in device memory."""

    gather_s: Floats
    reduce_s: Floats
    copied_s: Floats


def shard_times(
    dense_params: Number, expert_params: Number, sharded: Sharded, machine: Machine, *, gathers: Number, reduces: bool
) -> ShardTimes:
    """Exchanges of a unit with so many parameters on a rank.

    Where several groups hold all shards (HSDP), those that hold the same one add up its gradients after they were
    reduced: an all-reduce of 1 / D of them.

    gathers : how often parameters are gathered [n]. reduces : whether gradients are copied to their reduction.
    """
    memory = machine.rates.hbm_bytes_per_s * np.asarray(machine.rates.hbm_fraction)
    element = machine.rates.element_bytes
    gather, reduce, copied = np.zeros(1), np.zeros(1), np.zeros(1)
    for params, group, holders, gradient, copies in (
        (dense_params, sharded.dense, sharded.dense_copies, sharded.gradient_bytes, sharded.copies),
        (
            *(expert_params, sharded.expert, sharded.expert_copies_group),
            *(sharded.expert_gradient_bytes, sharded.expert_copies),
        ),
    ):
        sync = synchronisation(
            params,
            group,
            machine.tiers,
            distributed_optimizer=True,
            gradient_bytes=gradient,
            weight_bytes=element,
            operations=np.where(np.asarray(params) > 0.0, 1.0, 0.0),
            fixed_s=machine.comm_op_s,
        )
        gather, reduce = gather + sync.gather_s * gathers, reduce + sync.reduce_s
        if np.any(holders.size > 1):
            shard = np.asarray(params) * gradient / group.size
            once = np.where(np.asarray(params) > 0.0, machine.comm_op_s, 0.0)
            rate = gather_rate(holders, machine.tiers)
            rate = GatherRate(rate.s_per_byte, np.asarray(rate.latency_s * (np.asarray(params) > 0.0)))
            reduce = reduce + all_reduce_s(shard, holders, machine.tiers, once, rate)
        copied = copied + copy_out_s(params, copies, element, memory) * gathers
        if reduces:
            copied = copied + copy_in_s(params, copies, element, gradient, memory)
    return ShardTimes(gather, reduce, copied)


def accumulated_s(dense_params: Number, expert_params: Number, sharded: Sharded, machine: Machine) -> Floats:
    """Seconds in which a micro batch's gradients are added to those that stay whole until the step's reduction [n]."""
    memory = machine.rates.hbm_bytes_per_s * np.asarray(machine.rates.hbm_fraction)
    element = machine.rates.element_bytes
    return np.asarray(
        added_s(dense_params, element, sharded.gradient_bytes, memory)
        + added_s(expert_params, element, sharded.expert_gradient_bytes, memory)
    )


LANES: dict[ExchangeGroup, str] = {"tp": "tp", "etp": "ep", "ep": "ep", "ring": "cp", "ulysses": "cp"}
# The collective that each kind of exchange is; with experts' tokens gathered, dispatch and combine are another.
COLLECTIVES = {
    **{"gather": "all_gather", "scatter": "reduce_scatter", "reduce": "all_reduce"},
    **{"dispatch": "all_to_all", "combine": "all_to_all", "heads": "all_to_all", "ring": "send_receive"},
}
GATHERING = COLLECTIVES | {"dispatch": "all_gather", "combine": "reduce_scatter"}
EXPERT_KINDS = frozenset({"dispatch", "combine"})
CORE = "core_attention"  # each pass of the ring runs beside it


@dataclass(frozen=True, slots=True)
class OneExchange:
    """Seconds of one exchange [n], by pass.

    passes : in which some candidate runs it; True is the backward pass.
    even_s, once_s : of a single run with evenly loaded experts, and on the busiest rank; forward, backward, recomputed.
    shown_s, busiest_s : what stays exposed of such a run, forward and backward.
    """

    exchange: Exchange
    lane: str
    passes: tuple[bool, ...]
    even_s: tuple[Floats, ...]
    once_s: tuple[Floats, ...]
    shown_s: dict[bool, Floats]
    busiest_s: dict[bool, Floats]

    def exposed_s(self, *, backward: bool) -> Floats:
        """Of all runs of a pass on the busiest rank [n]."""
        shown = self.busiest_s.get(backward)
        return np.zeros_like(self.once_s[FORWARD]) if shown is None else shown * self.exchange.counts[backward]


@dataclass(frozen=True)
class ExchangeTimes:
    """Seconds of a layer's exchanges [n], summed in the layer's order; `each` that some candidate runs."""

    each: tuple[OneExchange, ...]
    zero: Floats

    @cached_property
    def exposed(self) -> dict[tuple[str, bool], Floats]:
        """(lane, pass) -> exposed seconds with balanced experts."""
        exposed = {(lane, back): self.zero for lane in ("tp", "ep", "cp") for back in (False, True)}
        for one in self.each:
            for back in one.passes:
                exposed[one.lane, back] = exposed[one.lane, back] + one.shown_s[back] * one.exchange.counts[back]
        return exposed

    @cached_property
    def imbalance(self) -> dict[bool, Floats]:
        """Seconds of a pass that uneven experts add to those."""
        extra = {False: self.zero, True: self.zero}
        for one in self.each:
            for back in one.passes:
                if one.busiest_s[back] is not one.shown_s[back]:
                    more = (one.busiest_s[back] - one.shown_s[back]) * one.exchange.counts[back]
                    extra[back] = extra[back] + more
        return extra

    @cached_property
    def recomputed(self) -> tuple[tuple[Exchange, Floats], ...]:
        """Exchanges that a replay may repeat, and the whole time of each then."""
        each = ((one, one.exchange.counts[RECOMPUTED]) for one in self.each)
        return tuple((one.exchange, np.asarray(one.once_s[RECOMPUTED] * count)) for one, count in each if runs(count))

    @cached_property
    def behind(self) -> dict[tuple[str, bool], Floats]:
        """(dispatch or combine, pass) -> seconds of it that run behind computation."""
        behind: dict[tuple[str, bool], Floats] = {}
        for one in self.each:
            for back in one.passes if one.exchange.kind in EXPERT_KINDS else ():
                hidden = np.asarray((one.once_s[back] - one.busiest_s[back]) * one.exchange.counts[back])
                behind[one.exchange.kind, back] = behind.get((one.exchange.kind, back), 0.0) + hidden
        return behind

    def total_s(self, lane: str) -> Floats:
        """Seconds of a lane's exchanges in both passes, hidden or not."""
        total = self.zero
        for one in self.each:
            for of, count in one.exchange.sent if one.lane == lane else ():
                total = total + one.once_s[of] * count
        return total

    def once_s(self, kind: str, *, backward: bool) -> Floats:
        """Seconds of one dispatch or one combine, uneven load included."""
        return np.asarray(sum((one.once_s[backward] for one in self.each if one.exchange.kind == kind), self.zero))

    def launches(self, *, backward: bool) -> Floats:
        """Exchanges of a pass that the host issues; a group of one rank has none."""
        counted = (one for one in self.each if backward in one.passes)
        each = (np.where(one.even_s[backward] > 0.0, one.exchange.counts[backward], 0.0) for one in counted)
        return np.asarray(sum(each, self.zero))

    def shown_ep(self, *, backward: bool) -> Floats:
        """Expert-parallel seconds that nothing hides, with what imbalance adds."""
        return np.asarray(self.exposed["ep", backward] + self.imbalance[backward])

    def hidden_s(self, *, backward: bool) -> Floats:
        """Seconds of a pass [n] in which exchanges run behind computation, uneven load included."""
        hidden = np.zeros(1)
        for one in self.each:
            hidden = hidden + (one.once_s[backward] * one.exchange.counts[backward] - one.exposed_s(backward=backward))
        return hidden


@dataclass(frozen=True, slots=True)
class Groups:
    """The communication groups of a layer, from rank order: tp, cp, dp, pp inside out; for experts etp, ep, edp, pp."""

    tp: Group
    ring: Group
    ulysses: Group
    ep: Group
    etp: Group
    experts: Group  # all ranks that hold the experts of a layer
    rates: dict[str, GatherRate]  # of all-gathers in these groups
    outermost: dict[str, Ints]  # tier that each group spans

    @classmethod
    def of(cls, shard: Sharding, machine: Machine) -> Groups:
        """Groups of every candidate."""
        one = np.ones_like(shard.tp)
        gathering = {
            "tp": (one, shard.tp),
            "ep": (shard.etp, shard.ep),
            "etp": (one, shard.etp),
            "experts": (one, shard.etp * shard.ep),
        }
        ways = gathering | {"ulysses": (shard.tp, shard.ulysses), "ring": (shard.tp * shard.ulysses, shard.ring)}
        groups = machine.groups(ways.values())
        rates, outermost = gather_rate(groups.take(slice(len(gathering))), machine.tiers), groups.outermost_tier
        return cls(
            **{name: groups.take(place) for place, name in enumerate(ways)},
            rates={name: rates.take(place) for place, name in enumerate(gathering)},
            outermost=dict(zip(ways, outermost, strict=True)),
        )


@dataclass(frozen=True)
class LayerInputs:
    """A layer of every candidate of `shard`, and what its formulas read.

    prices : of other tables of the same candidates, whose features differ in the balance of experts alone.
    """

    table: LayerTable
    shard: Sharding
    machine: Machine
    features: ExchangeFeatures
    groups: Groups
    prices: Prices = field(default_factory=Prices)

    @cached_property
    def operators(self) -> dict[str, Operator]:
        """Operators by name."""
        return {op.name: op for op in self.table.operators}

    @cached_property
    def zero(self) -> Floats:
        """Nothing [n]."""
        return np.zeros_like(self.shard.tp)

    @cached_property
    def uneven(self) -> bool:
        """Whether a busiest rank's experts have other work than the mean rank's, in any candidate."""
        return self.features.balance.uneven

    @cached_property
    def issue_each_s(self) -> Floats:
        """Seconds to issue one operator on the slowest of the hosts whose ranks meet in the layer's collectives [n]."""
        host, shard = self.machine.host, self.shard
        if not host.scatter:
            return np.asarray(host.issue_s)
        routed = np.where(self.table.choices_per_token > 0.0, shard.etp * shard.ep, 1.0)
        return np.asarray(host.issue_s * slowest_of(np.maximum(shard.tp * shard.cp, routed), host.scatter))


@dataclass(frozen=True)
class _Work:
    """Operators that exchanges of a layer may run beside: their seconds by name."""

    layer: LayerInputs
    times: dict[str, OperatorTime]

    def once(self, name: str) -> OperatorTime | None:
        """One run of an operator; None where the layer has none of the name."""
        time = self.times.get(name)
        return time and time.each(self.layer.operators[name].runs)

    @cached_property
    def pieces(self) -> dict[str, Floats]:
        """Pieces [n] in which each matrix multiplication runs beside its collective; 1: it doesn't.

        A chunked one has as many as its flag says, a fused kernel chooses by the size of the multiplication. Empty
        where no candidate cuts any.
        """
        features = self.layer.features
        if not (features.tp_fusion > 1).any():
            return {}
        products = [op for op in self.layer.table.operators if op.kind == "gemm"]
        pieces = {op.name: features.tp_fusion for op in products}
        if features.tp_fused_kernel:
            for op in products:
                sized = fused_pieces(op.rows, op.columns, op.depth, self.layer.shard.tp)
                pieces[op.name] = np.minimum(sized, features.tp_fusion)
        return pieces

    @cached_property
    def windows(self) -> tuple[Floats, Floats, Floats]:
        """Beside which dispatch and combine may run: the shared expert's forward and backward, the experts' dW."""
        zero = np.zeros(1)
        operators = self.layer.table.operators
        shared = [self.times[op.name] for op in operators if op.role == "shared"]
        experts = [self.times[op.name] for op in operators if op.role == "experts"]
        return (
            np.asarray(sum((t.forward_s for t in shared), zero)),
            np.asarray(sum((t.backward_s for t in shared), zero)),
            np.asarray(sum((t.weight_gradient_s for t in experts), zero)),
        )

    @cached_property
    def dense_path(self) -> tuple[Floats, Floats]:
        """Forward and backward of what a layer does beside experts on a shortcut: its dense MLPs, and the second half
        of what else it does twice.
        """
        rows = [(op, self.times[op.name]) for op in self.layer.table.operators if op.runs > 1.0]
        shares = [(1.0 if op.role == "dense" else 1.0 / op.runs, time) for op, time in rows]
        zero = np.zeros(1)
        return (
            np.asarray(sum((share * time.forward_s for share, time in shares), zero)),
            np.asarray(sum((share * time.backward_s for share, time in shares), zero)),
        )


def exchange_times(layer: LayerInputs, operators: dict[str, OperatorTime]) -> ExchangeTimes:
    """Seconds of every exchange of a layer, and what of them stays exposed inside one micro batch."""
    work, each = _Work(layer, operators), []
    for exchange in layer.table.exchanges:
        passes = tuple(back for back in (False, True) if runs(exchange.counts[back]))
        if passes or runs(exchange.counts[RECOMPUTED]):
            each.append(_one_exchange(work, exchange, passes))
    return ExchangeTimes(tuple(each), layer.zero)


def runs(count: Floats | float) -> bool:
    """Whether any candidate runs an exchange that runs so often."""
    return bool(np.count_nonzero(count)) if isinstance(count, np.ndarray) else count != 0.0


def _one_exchange(work: _Work, exchange: Exchange, passes: tuple[bool, ...]) -> OneExchange:
    """An exchange with even load and on the busiest rank, who alone may have more tokens to send."""
    layer, lane = work.layer, LANES[group_of(exchange)]
    balance, once = layer.features.balance, layer.prices.once
    of_experts = lane == "ep"
    of: tuple[object, ...] = (exchange, balance.mean_exchange) if of_experts else (exchange,)
    even = uneven = tuple(once((*of, size), _once_s, layer, exchange, size, busiest=False) for size in exchange.sizes)
    if of_experts and exchange.carries == "tokens" and layer.uneven:
        of = (exchange, *balance.busiest)
        uneven = tuple(once((*of, size), _once_s, layer, exchange, size, busiest=True) for size in exchange.sizes)
    if of_experts:
        shown = busiest = {back: _exposed_s(work, exchange, even[back], back=back) for back in passes}
        if uneven is not even:
            busiest = {back: _exposed_s(work, exchange, uneven[back], back=back) for back in passes}
    else:
        beside = work.times.get(exchange.beside), work.times.get(CORE)
        shown = busiest = {
            back: once((exchange, *beside, back), _exposed_s, work, exchange, even[back], back=back) for back in passes
        }
    return OneExchange(exchange, lane, passes, even, uneven, shown, busiest)


def _once_s(layer: LayerInputs, exchange: Exchange, size: Floats, *, busiest: bool) -> Floats:
    """Seconds of one run of an exchange if nothing hides it, on the mean or on the busiest rank."""
    machine, groups, shard, name = layer.machine, layer.groups, layer.shard, group_of(exchange)
    fixed, tiers = machine.comm_op_s, machine.tiers
    if exchange.kind in EXPERT_KINDS:
        return expert_s(layer, exchange, size, busiest=busiest)
    if exchange.kind == "ring":
        return np.asarray(np.where(shard.ring > 1, ring_pass_s(size, groups.ring, tiers, fixed), 0.0))
    if exchange.kind == "heads":
        # All-to-All of tensors cut by heads: each rank keeps 1/U and sends the rest.
        return all_to_all.flat_s(size, 1.0, groups.ulysses, tiers, 4.0 * np.asarray(fixed))
    if name == "etp" and busiest:
        # Every rank of an expert's tensor-parallel group needs the rows of the busiest expert rank.
        size = size * layer.features.balance.compute
    collective = all_reduce_s if exchange.kind == "reduce" else all_gather_s
    return collective(size, getattr(groups, name), tiers, fixed, groups.rates[name])


def expert_s(layer: LayerInputs, exchange: Exchange, size: Floats, *, busiest: bool) -> Floats:
    """Seconds of one dispatch or combine under each candidate's dispatcher."""
    machine, groups, features = layer.machine, layer.groups, layer.features
    tiers, fixed = machine.tiers, machine.comm_op_s
    choices, balance = layer.table.choices_of(exchange), features.balance
    imbalance = balance.exchange if busiest else balance.mean_exchange
    loss = machine.dispatch_loss if exchange.kind == "dispatch" else machine.combine_loss
    of_nodes = balance.node if busiest else balance.mean_exchange
    routing = all_to_all.Routing(imbalance, of_nodes, features.deduplicate, features.groups)
    flat = all_to_all.flat_s(size, choices, groups.ep, tiers, fixed, routing, loss=loss)
    dispatcher = features.dispatcher
    seconds = flat
    if (dispatcher == SEQUENTIAL).any():
        turn = layer.prices.once((size, machine), all_to_all.turn_s, size, groups.etp, tiers, fixed)
        seconds = np.where(dispatcher == SEQUENTIAL, flat + turn, seconds)
    if (dispatcher == ALL_GATHER).any():
        gathered = all_to_all.all_gather_dispatch_s(size, groups.experts, tiers, fixed)
        seconds = np.where(dispatcher == ALL_GATHER, gathered, seconds)
    if (dispatcher == HIERARCHICAL).any():
        stepped = all_to_all.hierarchical_s(
            size, choices, groups.ep, tiers, fixed, imbalance=imbalance, pipelined=features.pipelined, loss=loss
        )
        seconds = np.where(dispatcher == HIERARCHICAL, stepped, seconds)
    return np.asarray(seconds)


def _exposed_s(work: _Work, exchange: Exchange, seconds: Floats, *, back: bool) -> Floats:
    """Seconds of one run that stay exposed: chunked with its matrix multiplication, or behind other work."""
    if not exchange.blocking:
        return _behind_layer(work, exchange, seconds, back=back)
    beside = work.once(exchange.beside)
    if beside is not None and back and exchange.behind:
        window = beside.input_gradient_s if exchange.behind == "input_gradient" else beside.weight_gradient_s
        return np.asarray(np.maximum(0.0, seconds * work.layer.machine.contention - window))
    if beside is not None:
        return _beside_chunks(work, exchange, seconds, beside.input_gradient_s if back else beside.forward_s, back=back)
    if exchange.kind == "ring":
        core = work.once(CORE)
        if core is not None:
            # Each pass of the ring runs beside the attention of the block that arrived before.
            step = (core.backward_s / 2.0 if back else core.forward_s) / work.layer.shard.ring
            return np.asarray(np.maximum(0.0, seconds - step))
    if exchange.kind in EXPERT_KINDS:
        return _behind_experts(work, exchange, seconds, back=back)
    return seconds


def _beside_chunks(work: _Work, exchange: Exchange, seconds: Floats, product_s: Floats, *, back: bool) -> Floats:
    """A collective beside the chunks of its matrix multiplication; what the chunks cost counts as the collective's.

    CoC's chunks leave gathered rows, or need rows to scatter, in another order than the framework's: a copy of the
    product's output or input, and of the gathered gradient. The kernels of MC2 place rows themselves.
    Source: MindSpeed coc_parallel_linears_sequence_parallel.py, shuffle_as_coc_*.
    """
    chunks = work.pieces.get(exchange.beside)
    if chunks is None or not (chunks > 1).any():
        return seconds
    machine, product = work.layer.machine, work.layer.operators[exchange.beside]
    m, n, k = product.rows, product.columns, product.depth
    copied, copies = np.zeros(1), 0.0
    if not work.layer.features.tp_fused_kernel and exchange.kind in {"gather", "scatter"}:
        inner = np.asarray(m * (n if exchange.kind == "gather" and not back else k))
        copied, copies = (inner + np.asarray(m * n), 2.0) if back else (inner, 1.0)
    together = chunked_s(
        product_s,
        seconds,
        chunks,
        loss=tile_loss(m, *((k, n) if back else (n, k)), chunks, machine.rates),
        contention=machine.contention,
        collective_s=machine.comm_op_s,
        copies_s=vector_s(4.0 * copied, copies, machine.rates) * machine.software_factor,
    )
    return np.asarray(np.where(chunks > 1, together - product_s, seconds))


def _behind_layer(work: _Work, exchange: Exchange, seconds: Floats, *, back: bool) -> Floats:
    """An exchange that nothing waits for: beside attention's backward pass, or while the rank's own experts run."""
    window = np.zeros(1)
    for op in work.layer.table.operators:
        time = work.times[op.name]
        if exchange.window == "attention":
            window = window + (time.backward_s if op.window == "attention" else 0.0)
        elif op.role == "experts":
            window = window + (time.input_gradient_s if back else time.forward_s)
    return np.asarray(np.minimum(np.maximum(0.0, seconds * work.layer.machine.contention - window), seconds))


def _behind_experts(work: _Work, exchange: Exchange, seconds: Floats, *, back: bool) -> Floats:
    """Dispatch and combine behind the shared expert, and behind expert weight gradients in the backward pass.

    Forward: half of the shared expert each. Backward: combine behind the shared expert's backward, dispatch behind
    the experts' weight gradients. Source: MindSpeed moe-alltoall-overlap-comm; Megatron moe-shared-expert-overlap.
    A pass of a pairing schedule that runs alone hides dispatch behind the shared expert, and backward as above.
    Source: MindSpeed docs/zh/features/megatron_moe/megatron-moe-fb-overlap.md, self-hiding in warm-up and cool-down.
    """
    shared_forward, shared_backward, expert_weights = work.windows
    features = work.layer.features
    alone = features.paired
    if np.any(features.shortcut_overlap):
        return _behind_dense_path(work, exchange, seconds, back=back)
    if not back:
        window = np.where(features.alltoall_overlap | features.shared_expert_overlap, shared_forward / 2.0, 0.0)
        window = np.where(alone, shared_forward if exchange.kind == "dispatch" else 0.0, window)
    elif exchange.kind == "dispatch":
        window = np.where(features.alltoall_overlap | alone, expert_weights, 0.0)
    else:
        window = np.where(features.alltoall_overlap | features.shared_expert_overlap | alone, shared_backward, 0.0)
    beside = seconds / work.layer.machine.exchange_beside
    return np.asarray(np.minimum(np.maximum(0.0, beside - window), seconds))


def _behind_dense_path(work: _Work, exchange: Exchange, seconds: Floats, *, back: bool) -> Floats:
    """Dispatch and combine of experts on a shortcut, each behind half of the layer's dense path, in both passes.

    Two of a kind share its half by the tokens that they send. What runs beside what is arXiv 2509.01322's, section
    2.1.2; that the halves are equal, and that nothing but contention is lost, is assumed.
    """
    table = work.layer.table
    sent = sum(table.choices_of(each) for each in table.exchanges if each.kind == exchange.kind)
    window = work.dense_path[back] * (table.choices_of(exchange) / sent / 2.0)
    hidden = np.maximum(0.0, seconds / work.layer.machine.exchange_beside - window)
    return np.where(work.layer.features.shortcut_overlap, np.minimum(hidden, seconds), seconds)


def sharded_s(layer: LayerInputs, work_s: Floats, exchanged: ExchangeTimes, *, backward: bool) -> Floats:
    """Seconds of a pass in which sharded parameters are gathered or their gradients reduced, and nothing hides it.

    Computation (`work_s`) that hides another exchange has no time left for these. What stays gathered after the forward
    pass is there for the backward pass. Copies in device memory run on the computation's own stream. What stays whole
    through a step is exchanged at its ends (`step_parts.synchronised_of`): a pass only adds its gradients up.
    """
    table, machine, sharded = layer.table, layer.machine, layer.features.sharded
    if sharded is None:
        return np.zeros(1)
    gathers: Floats = np.where(sharded.keeps_gathered & backward, 0.0, 1.0)
    times = shard_times(table.dense_params, table.expert_params, sharded, machine, gathers=gathers, reduces=backward)
    # Frozen weights are gathered like trained ones, and have no gradients.
    frozen = shard_times(table.frozen_params, 0.0, sharded, machine, gathers=gathers, reduces=False)
    times = ShardTimes(times.gather_s + frozen.gather_s, times.reduce_s, times.copied_s + frozen.copied_s)
    passing = sharded_pass_s(
        times.gather_s,
        times.reduce_s if backward else 0.0,
        np.maximum(0.0, work_s - exchanged.hidden_s(backward=backward)) * machine.overlap,
        overlap_gather=sharded.overlap_gather,
        overlap_reduce=sharded.overlap_reduce,
        contention=machine.contention,
    )
    copied_s = np.asarray(passing + times.copied_s)
    if not np.any(sharded.through_step):
        return copied_s
    added = accumulated_s(table.dense_params, table.expert_params, sharded, machine) if backward else 0.0
    return np.where(sharded.through_step, added, copied_s)
