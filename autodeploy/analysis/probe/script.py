"""The probe as one file: the template with a spec's measurements in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.inputs.context import ALL_GATHER
from autodeploy.costs.inputs.machine import stage_stride
from autodeploy.costs.layers.exchanges import COLLECTIVES, EXPERT_KINDS, GATHERING
from autodeploy.costs.layers.unit_costs import scalar_at, sharding_of
from autodeploy.costs.stages.step_parts import p2p_bytes
from autodeploy.costs.workload.layers import tables_of
from autodeploy.costs.workload.operators import group_of
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.search.planner import lowered
from autodeploy.specs.spec import spec_hash
from cost_models.hbm import MIB, optimizer_moved_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.workload.operators import LayerTable, Operator, Sharding
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec


# What a probe measures for a spec.
Measurement = dict[str, Any]

DTYPES = {"bf16": "bfloat16", "fp8": "bfloat16", "fp16": "float16", "fp32": "float32"}
PASSES = ("forward", "input_gradient", "weight_gradient")
STREAMS = (16, 64, 256)  # MiB read and written
LINK_SIZES = (1, 16, 128)  # MiB over the host link
MESSAGES = (64 * 2**10, 2**20, 16 * 2**20, 64 * 2**20)  # bytes, beside those of the plans
LARGEST_MESSAGE = 256 * 2**20
LARGEST_UPDATE = 64 * 2**20  # parameters


@dataclass
class Wanted:
    """Measurements without duplicates, each with how often a step needs it.

    ranks : of the launch that will measure. cut : groups of the plans that need more ranks, and what stands for them.
    """

    ranks: int
    found: dict[str, Measurement] = field(default_factory=dict)
    cut: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, part: str, shape: dict[str, Any], price: dict[str, Any], name: str, count: float) -> None:
        """One measurement, or one more use of it."""
        key = repr((kind, part, sorted(shape.items())))
        if key not in self.found:
            new = {"kind": kind, "pass": part, "name": name, "shape": shape, "price": price, "count": 0.0}
            self.found[key] = new
        self.found[key]["count"] = round(self.found[key]["count"] + count, 3)

    def message(self, op: str, name: str, ranks: float, stride: float, size: float, count: float) -> None:
        """One message of a plan and the ladder of sizes around it, in a group that the launch can have."""
        size, ranks, stride = min(float(size), float(LARGEST_MESSAGE)), round(ranks), round(stride)
        if ranks <= 1 or size < 1.0:
            return
        kept_ranks, kept_stride = fitting(ranks, stride, self.ranks)
        if kept_ranks <= 1:
            self.cut[f"{name}: {ranks} ranks {stride} apart"] = "left out"
            return
        if (kept_ranks, kept_stride) != (ranks, stride):
            self.cut[f"{name}: {ranks} ranks {stride} apart"] = f"{kept_ranks} ranks {kept_stride} apart"
        for wanted, times in ((round(size), count), *((each, 0.0) for each in MESSAGES)):
            shape = {"ranks": kept_ranks, "stride": kept_stride, "bytes": int(wanted)}
            self.add("collective", op, shape, {}, name, times)


def fitting(ranks: int, stride: int, world: int) -> tuple[int, int]:
    """The nearest group that `world` ranks divide into: as many ranks as there are, nearer where they must be."""
    stride = max(1, min(stride, world // 2))
    while world % stride:
        stride -= 1
    ranks = min(ranks, world // stride)
    while ranks > 1 and world % (ranks * stride):
        ranks -= 1
    return ranks, stride


def measurements_of(context: Context, candidate: Candidates, wanted: Wanted) -> None:
    """Adds what one plan computes and sends; `candidate` is a batch of one."""
    shard, model, on = sharding_of(candidate, context), context.model, context.operators
    micro_batches = float(candidate.micro_batches[0])
    tables = tables_of(model, shard, on)
    per_stage = micro_batches / float(candidate.pp[0])
    for table, layers in tables:
        for operator in table.operators:
            _operator(operator, context, shard, wanted, layers * per_stage)
        _exchanges(table, candidate, wanted, layers * per_stage)
        _gradients(table, context, candidate, wanted, layers / float(candidate.pp[0]))
    _pipeline(context, candidate, wanted, micro_batches)
    _optimizer(tables, context, candidate, wanted)


def of_every_machine(wanted: Wanted) -> None:
    """Adds what is measured whatever the spec: streams, the host and its link."""
    for size in STREAMS:
        moved = size * MIB
        shape = {"operator": "copy", "rows": int(moved / 2 / 4096), "columns": 1024}
        wanted.add("vector", "forward", shape, {"forward_bytes": moved, "launches": 1.0}, "stream", 0.0)
    wanted.add("launch", "", {}, {}, "launch", 0.0)
    wanted.add("synchronisation", "", {}, {}, "synchronisation", 0.0)
    for size in LINK_SIZES:
        for way in ("to_device", "to_host"):
            wanted.add("host_link", way, {"bytes": int(size * MIB)}, {}, "host link", 0.0)


def _operator(op: Operator, context: Context, shard: Sharding, wanted: Wanted, count: float) -> None:
    if op.kind in {"gemm", "grouped_gemm"}:
        m, n, k, groups = (scalar_at(value, 0) for value in (op.rows, op.columns, op.depth, op.groups))
        if min(round(m), round(n), round(k), round(groups)) < 1:
            return
        shape = {"m": round(m), "n": round(n), "k": round(k), "groups": round(groups)}
        price: dict[str, Any] = {
            "rows": shape["m"],
            "columns": shape["n"],
            "depth": shape["k"],
            "groups": shape["groups"],
        }
        for part in PASSES:
            wanted.add(op.kind, part, shape, {**price, "wide": op.wide, "fused": op.fused}, op.name, count)
    elif op.kind == "attention":
        _attention(op, context, shard, wanted, count)
    elif op.kind == "vector":
        _vector(op, context, shard, wanted, count)
    elif op.name == "permute":
        model = context.model
        tokens = round(scalar_at(shard.local_tokens, 0))
        moved = {"tokens": tokens, "copies": round(model.computing_experts_per_tok) or 1, "hidden": model.hidden_size}
        traffic = {"forward_bytes": scalar_at(op.forward_bytes, 0), "backward_bytes": scalar_at(op.backward_bytes, 0)}
        for part in ("forward", "backward"):
            wanted.add("movement", part, moved, {**traffic, "launches": scalar_at(op.launches, 0)}, op.name, count)


def _attention(op: Operator, context: Context, shard: Sharding, wanted: Wanted, count: float) -> None:
    """The core of a layer whose queries see all of the sequence; windows are priced by their FLOPs, not measured."""
    model = context.model
    if model.attention.types:  # windows, and entries of which there are few
        return
    heads = model.num_attention_heads / scalar_at(shard.tp, 0) / scalar_at(shard.ulysses, 0)
    shared = max(1.0, model.num_key_value_heads / scalar_at(shard.tp, 0) / scalar_at(shard.ulysses, 0))
    kv_heads = shared if model.attention.own_keys else heads
    seq = scalar_at(shard.seq_length, 0) / scalar_at(shard.ring, 0)
    value = round(2.0 * op.head_dim - model.qk_head_dim)
    shape = {"batch": round(scalar_at(shard.micro_batch_size, 0)), "heads": round(heads), "kv_heads": round(kv_heads)}
    shape |= {"seq": round(seq), "qk_dim": model.qk_head_dim, "v_dim": value}
    if min(shape.values()) < 1:
        return
    scores = shape["batch"] * shape["seq"] * shape["heads"] * shape["seq"]  # twice the causal triangle
    price: dict[str, float] = {
        "flops": float(scores * (model.qk_head_dim + value)),
        "backward_flops": float(scores * (3 * model.qk_head_dim + 2 * value)),
        "head_dim": op.head_dim,
        "seq": float(shape["seq"]),
    }
    for part in ("forward", "backward"):
        wanted.add("attention", part, shape, price, op.name, count)


def _vector(op: Operator, context: Context, shard: Sharding, wanted: Wanted, count: float) -> None:
    """Norms, activations and the loss, which the probe can run alone."""
    model, tokens = context.model, scalar_at(shard.tokens, 0)
    gated = model.is_gated
    element = context.operators.element_bytes
    if op.name.endswith("_activation"):
        passes = 3.0 if gated else 2.0  # the fused operator's: read its inputs, write its output
        if not context.operators.fused_swiglu and gated:
            passes = 5.0
        columns = scalar_at(op.forward_bytes, 0) / (passes * element) / max(tokens, 1.0)
        name, rows = ("swiglu" if gated else "gelu"), tokens
    elif op.name in {"attention_norm", "mlp_norm"}:
        name = "layer_norm" if model.learned_position_embeddings else "rms_norm"
        rows, columns = scalar_at(shard.local_tokens, 0), float(model.hidden_size)
    elif op.name == "cross_entropy":
        name, rows, columns = "cross_entropy", tokens, model.vocab_size / scalar_at(shard.tp, 0)
    else:
        return
    if min(round(rows), round(columns)) < 1:
        return
    shape = {"operator": name, "rows": round(rows), "columns": round(columns)}
    price = {"forward_bytes": scalar_at(op.forward_bytes, 0), "backward_bytes": scalar_at(op.backward_bytes, 0)}
    for part in ("forward", "backward"):
        wanted.add("vector", part, shape, {**price, "launches": scalar_at(op.launches, 0)}, op.name, count)


def _exchanges(table: LayerTable, candidate: Candidates, wanted: Wanted, count: float) -> None:
    """Messages of a layer in the groups that its exchanges run in; strides follow the order tp, cp, dp, pp."""
    axes = candidate.axes_at(0)
    tp, ep, etp = int(axes["tp"]), int(axes["ep"]), int(axes["etp"])
    ulysses = int(candidate.ulysses[0])
    ring = int(axes["cp"]) // ulysses
    gathers = bool(candidate.moe_dispatcher[0] == ALL_GATHER)
    groups = {
        "tp": ("tp", tp, 1),
        "etp": ("etp", etp, 1),
        "ep": ("ep", ep, etp),
        "ring": ("cp ring", 2 if ring > 1 else 1, tp * ulysses),
        "ulysses": ("cp", ulysses, tp),
    }
    for exchange in table.exchanges:
        op = (GATHERING if gathers else COLLECTIVES)[exchange.kind]
        copies = table.choices_of(exchange) if exchange.kind in EXPERT_KINDS and not gathers else 1.0
        for of, runs in exchange.sent:
            times = scalar_at(runs, 0)
            if times > 0.0:
                size = copies * scalar_at(exchange.sizes[of], 0)
                wanted.message(op, *groups[group_of(exchange)], size, count * times)


def _gradients(table: LayerTable, context: Context, candidate: Candidates, wanted: Wanted, count: float) -> None:
    """Gradients and weights of one layer in the data-parallel groups."""
    axes = candidate.axes_at(0)
    shared = int(axes["cp"]) * int(axes["dp"])
    holders, pp = int(axes["etp"]) * int(axes["ep"]), int(axes["pp"])
    copies = max(1, context.world // (holders * pp))
    # A group in two parts, context-parallel ranks in one piece, is measured as if all its ranks were as far apart.
    outside = pp if axes["tp_pp_dp_mapping"] else 1
    between = int(axes["tp"]) * (int(axes["cp"]) * outside if outside > 1 else 1)
    for name, params, ranks, stride in (
        ("dp", scalar_at(table.dense_params, 0), shared, between),
        ("expert dp", scalar_at(table.expert_params, 0), copies, holders * outside),
    ):
        if context.splits_states:
            wanted.message("reduce_scatter", name, ranks, stride, params * context.gradient_bytes, count)
            wanted.message("all_gather", name, ranks, stride, params * context.operators.element_bytes, count)
        else:
            wanted.message("all_reduce", name, ranks, stride, params * context.gradient_bytes, count)


def _pipeline(context: Context, candidate: Candidates, wanted: Wanted, count: float) -> None:
    pp = int(candidate.pp[0])
    if pp > 1:
        stride = int(stage_stride(candidate, context.world)[0])
        wanted.message("send_receive", "pp", 2, stride, float(p2p_bytes(candidate, context)[0]), 2.0 * count)


def _optimizer(
    tables: Sequence[tuple[LayerTable, int]], context: Context, candidate: Candidates, wanted: Wanted
) -> None:
    """The update of a rank's share of the parameters, in one operator."""
    pp, replicas = float(candidate.pp[0]), float(candidate.cp[0] * candidate.dp[0])
    params = sum(n * scalar_at(table.dense_params + table.expert_params, 0) for table, n in tables) / pp
    count = int(min(LARGEST_UPDATE, params / (replicas if context.splits_states else 1.0)))
    moved = scalar_at(optimizer_moved_bytes(1.0, optimizer=context.optimizer), 0) - 2.0 * context.optimizer.gradient
    if count >= 1024:
        shape = {"operator": "adam", "rows": count // 1024, "columns": 1024}
        price = {"forward_bytes": moved * (count // 1024) * 1024, "launches": 1.0}
        wanted.add("vector", "forward", shape, price, "optimizer", 1.0)


TEMPLATE = "script_template.py"
_MARK = 'REQUEST_JSON = r"""'
MOST_PLANS = 3


def request_of(spec: Spec, plans: Sequence[Plan], *, nodes: int = 1, ranks: int | None = None) -> dict[str, Any]:
    """Measurements for the best of a spec's plans.

    plans : best first; the first three count. nodes, ranks : of the launch that will measure; without `ranks`, all of
        the nodes'.

    Raises SpecError where there is no plan to take shapes from.
    """
    if not plans:
        raise SpecError(Message("common.no_plan_fits"))
    profile = profile_of(spec.cluster)
    wanted = Wanted(ranks or nodes * profile.ranks_per_node)
    for plan in plans[:MOST_PLANS]:
        measurements_of(*lowered(spec, plan), wanted)
    of_every_machine(wanted)
    return {
        "spec_hash": spec_hash(spec),
        "model": spec.model.name,
        "profile": profile.name,
        "device": profile.device(spec.cluster.device).name,
        "precision": spec.training.precision,
        "dtype": DTYPES[spec.training.precision],
        "plans": [plan.plan_id for plan in plans[:MOST_PLANS]],
        "cut_groups": wanted.cut,
        "measurements": _in_turns(list(wanted.found.values())),
    }


def _in_turns(measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measurements by turns of kinds, what counts most first: where time runs out every kind has been measured."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in measurements:
        kinds.setdefault(each["kind"], []).append(each)
    rows = [sorted(members, key=lambda one: -one["count"]) for members in kinds.values()]
    longest = max(map(len, rows), default=0)
    ordered = [
        row[place * len(row) // longest]
        for place in range(longest)
        for row in rows
        if place == 0 or place * len(row) // longest != (place - 1) * len(row) // longest
    ]
    assert len(ordered) == len(measurements)
    return ordered


def script_of(request: dict[str, Any]) -> str:
    """The script that measures a request, as text."""
    template = (files("autodeploy.analysis.probe") / TEMPLATE).read_text(encoding="utf-8")
    start = template.index(_MARK) + len(_MARK)
    end = template.index('"""', start)
    return template[:start] + "\n" + json.dumps(request, indent=1, ensure_ascii=True) + "\n" + template[end:]
