"""Time of a layer's exchanges: which group they run in, what they take and what already runs behind computation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.inputs.context import ALL_GATHER, HIERARCHICAL, SEQUENTIAL, ExchangeFeatures
from autodeploy.costs.layers.operator_time import Prices
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

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Sharded
    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.costs.layers.operator_time import OperatorTime
    from autodeploy.costs.workload.operators import Exchange, LayerTable, Operator, Sharding
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

    Parameters
    ----------
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


HOT = frozenset({"hot_weights", "hot_gradients"})
ZERO = frozenset({"zero_dispatch", "zero_combine"})  # of tokens to experts that return what they get
EXPERT = frozenset({"dispatch", "combine", "expert_gather", "expert_scatter"}) | HOT | ZERO
# Names of operators begin so: of a dense MLP, and of shared experts.
DENSE, SHARED = ("mlp_up_", "mlp_activation", "mlp_down_"), "shared_"
CONTEXT = frozenset({"ring", "heads"})
# The collective that each kind of exchange is; with experts' tokens gathered, dispatch and combine are another.
COLLECTIVES = {
    **{"gather": "all_gather", "scatter": "reduce_scatter", "reduce": "all_reduce"},
    **{"dispatch": "all_to_all", "combine": "all_to_all", "heads": "all_to_all", "ring": "send_receive"},
}
GATHERING = COLLECTIVES | {"dispatch": "all_gather", "combine": "reduce_scatter"}
CORE = "core_attention"  # each pass of the ring runs beside it


@dataclass(frozen=True, slots=True)
class OneExchange:
    """Seconds of one exchange [n], uneven load included: a single run, and what is exposed in each pass.

    passes : in which some candidate runs it; True is the backward pass.
    """

    exchange: Exchange
    passes: tuple[bool, ...]
    once_s: Floats
    exposed_forward_s: Floats
    exposed_backward_s: Floats


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """Seconds of a layer's exchanges [n].

    forward_s : whole time of each exchange of the forward pass, by name.
    exposed : (lane, pass) -> exposed seconds with balanced experts; imbalance: what uneven experts add.
    dispatch_s, combine_s : one dispatch and one combine, uneven load included.
    behind : (dispatch or combine, pass) -> seconds of it that run behind computation.
    launches : pass -> exchanges that the host issues; a group of one rank has none.
    each : every exchange alone that some candidate runs.
    """

    forward_s: dict[str, Floats]
    exposed: dict[tuple[str, bool], Floats]
    imbalance: dict[bool, Floats]
    launches: dict[bool, Floats]
    dispatch_s: Floats
    combine_s: Floats
    ep_total_s: Floats
    tp_total_s: Floats
    cp_total_s: Floats
    behind: dict[tuple[str, bool], Floats]
    each: tuple[OneExchange, ...] = ()

    def shown_ep(self, *, backward: bool) -> Floats:
        """Expert-parallel seconds that nothing hides, with what imbalance adds."""
        return np.asarray(self.exposed["ep", backward] + self.imbalance[backward])

    def hidden_s(self, *, backward: bool) -> Floats:
        """Seconds of a pass [n] in which exchanges run behind computation, uneven load included."""
        hidden = np.zeros(1)
        for one in self.each:
            count = one.exchange.backward_count if backward else one.exchange.forward_count
            exposed_s = one.exposed_backward_s if backward else one.exposed_forward_s
            hidden = hidden + (one.once_s * count - exposed_s)
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


@dataclass(frozen=True)
class _Work:
    """What exchanges of a layer may run beside: its operators' seconds by name."""

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
        shared = [t for name, t in self.times.items() if name.startswith(SHARED)]
        experts = [t for name, t in self.times.items() if name.startswith("expert_")]
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
        shares = [(1.0 if op.name.startswith(DENSE) else 1.0 / op.runs, time) for op, time in rows]
        zero = np.zeros(1)
        return (
            np.asarray(sum((share * time.forward_s for share, time in shares), zero)),
            np.asarray(sum((share * time.backward_s for share, time in shares), zero)),
        )


def exchange_times(layer: LayerInputs, operators: dict[str, OperatorTime]) -> ExchangeTimes:
    """Seconds of every exchange of a layer, and what of them stays exposed inside one micro batch."""
    zero, balance, once = layer.zero, layer.features.balance, layer.prices.once
    exposed = {(lane, back): zero for lane in ("tp", "ep", "cp") for back in (False, True)}
    totals = {"tp": zero, "ep": zero, "cp": zero}
    extra = {False: zero, True: zero}
    forward_s: dict[str, Floats] = {}
    single = {"dispatch": zero, "combine": zero}
    behind: dict[tuple[str, bool], Floats] = {}
    launches = {False: zero, True: zero}
    each = []
    work = _Work(layer, operators)
    for exchange in layer.table.exchanges:
        passes = tuple(back for back in (False, True) if _runs(exchange, back=back))
        if not passes:
            continue
        lane = "ep" if exchange.name in EXPERT else "cp" if exchange.kind in CONTEXT else "tp"
        of = (exchange, balance.mean_exchange) if lane == "ep" else (exchange,)
        even = uneven = once(of, _once_s, layer, exchange, busiest=False)
        if lane == "ep" and exchange.name not in HOT and layer.uneven:
            uneven = once((exchange, *balance.busiest), _once_s, layer, exchange, busiest=True)
        if exchange.kind in single:
            single[exchange.kind] = single[exchange.kind] + uneven
        forward_s[exchange.name] = np.asarray(uneven * exchange.forward_count)
        totals[lane] = totals[lane] + uneven * (exchange.forward_count + exchange.backward_count)
        beside = operators.get(exchange.beside), operators.get(CORE)
        seen = {False: zero, True: zero}
        for back in passes:
            count = exchange.backward_count if back else exchange.forward_count
            if lane == "ep":
                shown = busiest = _exposed_s(work, exchange, even, back=back)
                if uneven is not even:
                    busiest = _exposed_s(work, exchange, uneven, back=back)
                    extra[back] = extra[back] + (busiest - shown) * count
            else:
                shown = busiest = once((exchange, *beside, back), _exposed_s, work, exchange, even, back=back)
            seen[back] = np.asarray(busiest * count)
            exposed[lane, back] = exposed[lane, back] + (seen[back] if shown is busiest else shown * count)
            launches[back] = launches[back] + np.where(even > 0.0, count, 0.0)
            if exchange.kind in single:
                hidden = np.asarray((uneven - busiest) * count)
                behind[exchange.kind, back] = behind.get((exchange.kind, back), 0.0) + hidden
        each.append(OneExchange(exchange, passes, uneven, seen[False], seen[True]))
    return ExchangeTimes(
        forward_s=forward_s,
        exposed=exposed,
        imbalance=extra,
        dispatch_s=single["dispatch"],
        combine_s=single["combine"],
        ep_total_s=totals["ep"],
        tp_total_s=totals["tp"],
        cp_total_s=totals["cp"],
        behind=behind,
        launches=launches,
        each=tuple(each),
    )


def _runs(exchange: Exchange, *, back: bool) -> bool:
    """Whether any candidate runs the exchange in a pass."""
    count = exchange.backward_count if back else exchange.forward_count
    return bool(np.count_nonzero(count)) if isinstance(count, np.ndarray) else count != 0.0


def _once_s(layer: LayerInputs, exchange: Exchange, *, busiest: bool) -> Floats:
    """Seconds of one run of an exchange if nothing hides it, on the mean or on the busiest rank."""
    machine, groups, shard = layer.machine, layer.groups, layer.shard
    fixed, tiers, size = machine.comm_op_s, machine.tiers, exchange.message_bytes
    if exchange.kind in {"dispatch", "combine"}:
        return expert_s(layer, exchange, busiest=busiest)
    if exchange.name in HOT:
        return all_gather_s(size, groups.ep, tiers, fixed, groups.rates["ep"])
    if exchange.name in EXPERT and busiest:
        # Every rank of an expert's tensor-parallel group needs the rows of the busiest expert rank.
        size = size * layer.features.balance.compute
    if exchange.kind == "ring":
        return np.asarray(np.where(shard.ring > 1, ring_pass_s(size, groups.ring, tiers, fixed), 0.0))
    if exchange.kind == "heads":
        # All-to-All of tensors cut by heads: each rank keeps 1/U and sends the rest.
        return all_to_all.flat_s(size, 1.0, groups.ulysses, tiers, 4.0 * np.asarray(fixed))
    name = group_name(exchange)
    group, rate = getattr(groups, name), groups.rates[name]
    if exchange.kind == "reduce":
        return all_reduce_s(size, group, tiers, fixed, rate)
    return all_gather_s(size, group, tiers, fixed, rate)


def group_name(exchange: Exchange) -> str:
    """The group in which an exchange runs."""
    if exchange.kind in {"dispatch", "combine"}:
        return "ep"
    if exchange.kind in CONTEXT:
        return "ring" if exchange.kind == "ring" else "ulysses"
    return "etp" if exchange.name in EXPERT else "tp"


def expert_s(layer: LayerInputs, exchange: Exchange, *, busiest: bool) -> Floats:
    """Seconds of one dispatch or combine under each candidate's dispatcher."""
    machine, groups, features = layer.machine, layer.groups, layer.features
    size, tiers, fixed = exchange.message_bytes, machine.tiers, machine.comm_op_s
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
    if exchange.name in HOT:
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
    if exchange.kind in {"dispatch", "combine"}:
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
    """Weights of hot experts arrive while the rank's own experts run; their gradients return beside attention's.

    Source: MindSpeed balanced_moe: balanced_moe_grouped_mlp waits for the broadcast after the local experts, and
    the reduction of their gradients overlaps with attention backward.
    """
    window = np.zeros(1)
    for name, time in work.times.items():
        if exchange.name == "hot_gradients":
            window = window + (time.backward_s if work.layer.operators[name].window == "attention" else 0.0)
        elif name.startswith("expert_"):
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
