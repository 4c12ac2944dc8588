"""Time of a layer's exchanges: which group they run in, what they take and what already runs behind computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.options import ALL_GATHER, HIERARCHICAL, ExchangeFeatures
from cost_models import all_to_all
from cost_models.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    overlapped_s,
    ring_pass_s,
)

if TYPE_CHECKING:
    from autodeploy.evaluation.layer_cost import OperatorTime
    from autodeploy.evaluation.machine import Machine
    from autodeploy.workload.operators import Exchange, Floats, LayerTable, Sharding

EXPERT = frozenset({"dispatch", "combine", "expert_gather", "expert_scatter"})
CONTEXT = frozenset({"ring", "heads"})


@dataclass(frozen=True, slots=True)
class OneExchange:
    """Seconds of one exchange [n], uneven load included: a single run, and what is exposed in each pass."""

    exchange: Exchange
    once_s: Floats
    exposed_forward_s: Floats
    exposed_backward_s: Floats


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """Seconds of a layer's exchanges [n].

    forward_s : whole time of each exchange of the forward pass, by name.
    exposed : (lane, pass) -> exposed seconds with balanced experts; imbalance: what uneven experts add.
    dispatch_s, combine_s : one dispatch and one combine, uneven load included.
    each : every exchange alone.
    """

    forward_s: dict[str, Floats]
    exposed: dict[tuple[str, bool], Floats]
    imbalance: dict[bool, Floats]
    dispatch_s: Floats
    combine_s: Floats
    ep_total_s: Floats
    tp_total_s: Floats
    cp_total_s: Floats
    each: tuple[OneExchange, ...] = ()

    def exposed_tp(self, *, backward: bool) -> Floats:
        """Tensor-parallel seconds that nothing hides."""
        return self.exposed["tp", backward]

    def exposed_cp(self, *, backward: bool) -> Floats:
        """Context-parallel seconds that nothing hides."""
        return self.exposed["cp", backward]

    def exposed_ep(self, *, backward: bool) -> tuple[Floats, Floats]:
        """Expert-parallel seconds that nothing hides: balanced, and what imbalance adds."""
        return self.exposed["ep", backward], self.imbalance[backward]


@dataclass(frozen=True, slots=True)
class Groups:
    """The communication groups of a layer, from rank order: tp, cp, dp, pp inside out; for experts etp, ep, edp, pp."""

    tp: Group
    ring: Group
    ulysses: Group
    ep: Group
    etp: Group

    @classmethod
    def of(cls, shard: Sharding, machine: Machine) -> Groups:
        """Groups of every candidate."""
        one = np.ones_like(shard.tp)
        return cls(
            tp=machine.group(one, shard.tp),
            ulysses=machine.group(shard.tp, shard.ulysses),
            ring=machine.group(shard.tp * shard.ulysses, shard.ring),
            ep=machine.group(shard.etp, shard.ep),
            etp=machine.group(one, shard.etp),
        )


def exchange_times(
    table: LayerTable,
    shard: Sharding,
    machine: Machine,
    features: ExchangeFeatures,
    operators: dict[str, OperatorTime],
    imbalance: Floats,
) -> ExchangeTimes:
    """Seconds of every exchange of a layer, and what of them stays exposed inside one micro batch."""
    groups = Groups.of(shard, machine)
    zero = np.zeros_like(shard.tp)
    exposed = {(lane, back): zero for lane in ("tp", "ep", "cp") for back in (False, True)}
    totals = {"tp": zero, "ep": zero, "cp": zero}
    extra = {False: zero, True: zero}
    forward_s: dict[str, Floats] = {}
    once = {"dispatch": zero, "combine": zero}
    each = []
    for exchange in table.exchanges:
        lane = "ep" if exchange.name in EXPERT else "cp" if exchange.kind in CONTEXT else "tp"
        even = _once_s(exchange, groups, shard, machine, features, table, np.ones_like(shard.tp))
        if lane == "ep" and exchange.kind in once:
            uneven = _once_s(exchange, groups, shard, machine, features, table, imbalance)
            once[exchange.kind] = uneven
        else:
            uneven = even
        forward_s[exchange.name] = np.asarray(uneven * exchange.forward_count)
        totals[lane] = totals[lane] + uneven * (exchange.forward_count + exchange.backward_count)
        seen = []
        for back, count in ((False, exchange.forward_count), (True, exchange.backward_count)):
            shown = _exposed_once(exchange, even, machine, features, operators, shard, back=back)
            exposed[lane, back] = exposed[lane, back] + shown * count
            more = _exposed_once(exchange, uneven, machine, features, operators, shard, back=back) - shown
            extra[back] = extra[back] + more * count
            seen.append(np.asarray((shown + more) * count))
        each.append(OneExchange(exchange, uneven, *seen))
    return ExchangeTimes(
        forward_s,
        exposed,
        extra,
        once["dispatch"],
        once["combine"],
        totals["ep"],
        totals["tp"],
        totals["cp"],
        tuple(each),
    )


def _once_s(
    exchange: Exchange,
    groups: Groups,
    shard: Sharding,
    machine: Machine,
    features: ExchangeFeatures,
    table: LayerTable,
    imbalance: Floats,
) -> Floats:
    """Seconds of one run of an exchange if nothing hides it."""
    fixed, tiers, size = machine.comm_op_s, machine.tiers, exchange.message_bytes
    if exchange.kind in {"dispatch", "combine"}:
        return expert_s(exchange, groups, shard, machine, features, table, imbalance)
    if exchange.kind == "ring":
        return np.asarray(np.where(shard.ring > 1, ring_pass_s(size, groups.ring, tiers, fixed), 0.0))
    if exchange.kind == "heads":
        # All-to-All of tensors cut by heads: each rank keeps 1/U and sends the rest.
        return all_to_all.flat_s(size, 1.0, groups.ulysses, tiers, 4.0 * np.asarray(fixed))
    group = group_of(exchange, groups)
    if exchange.kind == "reduce":
        return all_reduce_s(size, group, tiers, fixed)
    return all_gather_s(size, group, tiers, fixed)


def group_of(exchange: Exchange, groups: Groups) -> Group:
    """The group in which an exchange runs."""
    if exchange.kind in {"dispatch", "combine"}:
        return groups.ep
    if exchange.kind in CONTEXT:
        return groups.ring if exchange.kind == "ring" else groups.ulysses
    return groups.etp if exchange.name in EXPERT else groups.tp


def expert_s(
    exchange: Exchange,
    groups: Groups,
    shard: Sharding,
    machine: Machine,
    features: ExchangeFeatures,
    table: LayerTable,
    imbalance: Floats,
) -> Floats:
    """Seconds of one dispatch or combine under each candidate's dispatcher."""
    size, tiers, fixed = exchange.message_bytes, machine.tiers, machine.comm_op_s
    choices = table.choices_per_token
    flat = all_to_all.flat_s(
        size,
        choices,
        groups.ep,
        tiers,
        fixed,
        imbalance=imbalance,
        deduplicate=features.deduplicate,
        groups_limit=features.groups_limit,
    )
    gathered = all_to_all.all_gather_dispatch_s(size, groups.ep, tiers, fixed)
    stepped = all_to_all.hierarchical_s(size, choices, groups.ep, tiers, fixed, imbalance=imbalance)
    return np.asarray(
        np.select([features.dispatcher == ALL_GATHER, features.dispatcher == HIERARCHICAL], [gathered, stepped], flat)
    )


def _exposed_once(
    exchange: Exchange,
    seconds: Floats,
    machine: Machine,
    features: ExchangeFeatures,
    operators: dict[str, OperatorTime],
    shard: Sharding,
    *,
    back: bool,
) -> Floats:
    """Seconds of one run that stay exposed: chunked with its matrix multiplication, or behind other work."""
    beside = operators.get(exchange.beside)
    if beside is not None and back and exchange.behind:
        window = beside.input_gradient_s if exchange.behind == "input_gradient" else beside.weight_gradient_s
        return np.asarray(np.maximum(0.0, seconds * machine.contention - window))
    if beside is not None:
        work = beside.input_gradient_s if back else beside.forward_s
        fused = overlapped_s(work, seconds, features.tp_fusion) - work
        return np.asarray(np.where(features.tp_fusion > 1, fused, seconds))
    if exchange.kind == "ring":
        core = operators.get("core_attention")
        if core is not None:
            # Each pass of the ring runs beside the attention of the block that arrived before.
            step = (core.backward_s / 2.0 if back else core.forward_s) / shard.ring
            return np.asarray(np.maximum(0.0, seconds - step))
    if exchange.kind in {"dispatch", "combine"}:
        return _behind_experts(exchange, seconds, features, operators, back=back)
    return seconds


def _behind_experts(
    exchange: Exchange, seconds: Floats, features: ExchangeFeatures, operators: dict[str, OperatorTime], *, back: bool
) -> Floats:
    """Dispatch and combine behind the shared expert, and behind expert weight gradients in the backward pass.

    Forward: half of the shared expert each. Backward: combine behind the shared expert's backward, dispatch behind
    the experts' weight gradients. Source: MindSpeed moe-alltoall-overlap-comm; Megatron moe-shared-expert-overlap.
    A pass of a pairing schedule that runs alone hides dispatch behind the shared expert, and backward as above.
    Source: MindSpeed docs/zh/features/megatron_moe/megatron-moe-fb-overlap.md, self-hiding in warm-up and cool-down.
    """
    zero = np.zeros(1)
    shared = [t for name, t in operators.items() if name.startswith("shared_")]
    shared_forward = np.asarray(sum((t.forward_s for t in shared), zero))
    shared_backward = np.asarray(sum((t.backward_s for t in shared), zero))
    expert_weights = np.asarray(
        sum((t.weight_gradient_s for name, t in operators.items() if name.startswith("expert_")), zero)
    )
    alone = features.paired
    if not back:
        window = np.where(features.alltoall_overlap | features.shared_expert_overlap, shared_forward / 2.0, 0.0)
        window = np.where(alone, shared_forward if exchange.kind == "dispatch" else 0.0, window)
    elif exchange.kind == "dispatch":
        window = np.where(features.alltoall_overlap | alone, expert_weights, 0.0)
    else:
        window = np.where(features.alltoall_overlap | features.shared_expert_overlap | alone, shared_backward, 0.0)
    return np.asarray(np.maximum(0.0, seconds - window))
