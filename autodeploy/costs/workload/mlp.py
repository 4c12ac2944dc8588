"""The feed-forward part of a layer: dense MLP and mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.workload import host_operators as host
from autodeploy.costs.workload.operators import (
    Exchange,
    MemoryChoices,
    Operator,
    OperatorFeatures,
    OperatorKind,
    Role,
    Rows,
    Sharding,
    Tensor,
    Touches,
    cut_and_whole,
    joined_rows,
    moving,
    region_exchanges,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Floats


W: Final = "mlp"

# What a rank issues once it knows how many rows it will get, in order; shared experts do not depend on it.
AFTER_SPLIT_SIZES = (
    *("permute", "dispatch", "sort_by_expert", "expert_up_proj"),
    *("expert_up_proj_lora_down", "expert_up_proj_lora_up", "expert_up_proj_lora_add", "expert_activation"),
    *("expert_down_proj", "expert_down_proj_lora_down", "expert_down_proj_lora_up", "expert_down_proj_lora_add"),
    *("sort_by_rank", "combine", "unpermute", "shared_up_proj", "shared_activation", "shared_down_proj"),
)


def activation_bytes_per_element(gated: bool, fused: bool) -> tuple[float, float, float]:
    """Bytes of the activation function (SwiGLU, GELU) per element of its output: moved forward, backward, and kept.

    Gated and fused: reads 2 inputs, writes 1 output (6 B). Unfused, the silu output makes a round trip of its own.
    """
    if not gated:
        return 4.0, 6.0, 2.0
    return (6.0, 10.0, 2.0) if fused else (10.0, 16.0, 4.0)


def mlp_rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures, *, width: float, prefix: str, role: Role) -> Rows:
    """A dense MLP of `width` cut over tensor-parallel ranks: up (and gate), activation, down."""
    h, tokens, gates = model.hidden_size, shard.tokens, 2.0 if model.is_gated else 1.0
    local = width / shard.tp
    forward, backward, kept = activation_bytes_per_element(model.is_gated, on.fused_swiglu)
    elements = tokens * local
    operators = [
        Operator(f"{prefix}_up_proj", "gemm", W, tokens, gates * local, h, role=role),
        moving(
            f"{prefix}_activation",
            W,
            forward * elements,
            backward * elements,
            launches=1.0 if on.fused_swiglu else 3.0,
            role=role,
        ),
        Operator(f"{prefix}_down_proj", "gemm", W, tokens, h, local, role=role),
    ]
    tensors = [
        Tensor(f"{prefix}_up_out", np.asarray(2.0 * gates * elements)),
        Tensor(f"{prefix}_activation_out", np.asarray((kept - 2.0 + on.input_bytes) * elements)),
    ]
    return operators, tensors, region_exchanges(model, shard, on, W, f"{prefix}_up_proj", f"{prefix}_down_proj")


def dense_rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> Rows:
    """The MLP of a dense layer."""
    return mlp_rows(model, shard, on, width=float(model.intermediate_size or 0), prefix="mlp", role="dense")


def held_tokens(shard: Sharding, on: OperatorFeatures) -> Floats:
    """Tokens that a rank routes and sends: its own; all of its tensor-parallel group's where dispatch is replicated."""
    return shard.tokens if on.replicated_dispatch else shard.local_tokens


def expert_rows(shard: Sharding, model: ModelSpec, on: OperatorFeatures, choices: float | None = None) -> Floats:
    """Tokens times choices that a rank's experts work on, balanced: what its group sends it.

    choices : experts of a token; absent: of those with matrices.

    The group of etp x ep ranks holds held_tokens * etp * ep tokens, each chosen top-k times, spread over ep ranks
    (every rank of an expert's tensor-parallel group sees all of them). With a capacity factor experts are padded to it.
    Without sequence parallelism the ranks of a tensor-parallel group hold the same tokens: those of them that share an
    expert work on each token once.
    """
    choices = model.computing_experts_per_tok if choices is None else choices
    copies = np.where(shard.sequence_parallel, 1.0, np.minimum(shard.tp, shard.etp))
    rows = held_tokens(shard, on) * choices * (1.0 if on.replicated_dispatch else shard.etp / copies)
    return np.asarray(rows * on.capacity_factor if on.capacity_factor else rows)


def moe_rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> Rows:
    """Router, permutation, dispatch, experts, combine and shared experts of one mixture-of-experts layer."""
    operators, tensors = _router(model, shard, on)
    for rows in (permute_rows(model, shard, on), _experts(model, shard, on)):
        operators += rows[0]
        tensors += rows[1]
    operators += _turned_rows(model, shard, on)
    operators = [operator._replace(routes=True) for operator in operators]
    exchanges: list[Exchange] = []
    if model.shared_expert_width:
        shared = mlp_rows(model, shard, on, width=model.shared_expert_width, prefix="shared", role="shared")
        operators, tensors, exchanges = operators + shared[0], tensors + shared[1], shared[2]
        if on.regathers_shared and np.any(shard.paired):
            exchanges.append(_shared_regather(model, shard))
    return joined_rows(
        (operators, tensors, exchanges + _expert_exchanges(model, shard, on)), zero_rows(model, shard, on)
    )


def _shared_regather(model: ModelSpec, shard: Sharding) -> Exchange:
    """Paired passes gather shared experts' input beside other work, and their first product gathers it once more.

    Source: MindSpeed @028de58c fb_overlap/modules/shared_experts.py, NoTPCommContext, which takes the place of
    torch.distributed._all_gather_base; linear layers call what Megatron-LM core_v0.12.1 tensor_parallel/layers.py:62
    has bound, all_gather_into_tensor.
    """
    whole = np.asarray(2.0 * shard.tokens * model.hidden_size)  # it runs beside others' passes, and is priced whole
    paired = np.where(shard.paired, cut_and_whole(shard)[0], 0.0)
    return Exchange("shared_input_gather", "gather", W, whole, paired, 0.0)


# Layers with experts on a shortcut (ScMoE: arXiv 2404.05019; LongCat-Flash, arXiv 2509.01322, section 2.1.2).
RUNS: Final = 2.0


def twice(rows: Rows) -> Rows:
    """Rows that a layer has in both halves: operators of two runs, tensors of twice the bytes, exchanges twice."""
    operators, tensors, exchanges = rows
    return (
        [op._replace(runs=RUNS * op.runs) for op in operators],
        [tensor._replace(kept_bytes=np.asarray(RUNS * tensor.kept_bytes)) for tensor in tensors],
        [each.often(RUNS) for each in exchanges],
    )


def shortcut_rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> Rows:
    """A dense MLP twice, and experts beside, whose output joins the residual; backward their gradient joins that of
    the first dense MLP (6 B an element each).
    """
    moved = 6.0 * shard.local_tokens * model.hidden_size
    joins = moving("shortcut_sum", W, moved, moved)
    return joined_rows(twice(dense_rows(model, shard, on)), moe_rows(model, shard, on), ([joins], [], []))


ROUTER_BYTES: Final = {"fp32": 4.0, "fp64": 8.0}  # of a number that a router computes in


def _router(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> tuple[list[Operator], list[Tensor]]:
    experts, tokens = float(model.router_choices), held_tokens(shard, on)
    logits = tokens * experts
    # Scores, top-k, mask and auxiliary loss in FP32; sort class operators pass over the logits several times. Fused
    # (Megatron-LM --moe-router-fusion): logits in and weights with the mask out, for the choice and for the loss.
    passes = 24.0 if on.fused_router else 48.0
    launches = 4.0 if on.fused_router else 12.0
    if on.vector_sort:
        # Two choices read and write values and indices (16 B a logit); sort instructions read the logits once (4 B).
        passes, launches = passes - 12.0, launches - 1.0
    routing = host.FUSED_ROUTING if on.fused_router else host.ROUTING
    counted = host.sizes(shard, on)
    operators = [
        Operator("router", "gemm", W, tokens, experts, model.hidden_size, **host.ROUTER._asdict(), wide=True),
        moving(
            "routing", W, passes * logits, passes * logits / 2.0, launches=launches, **routing._asdict(), as_it_is=True
        ),
        Operator("expert_sizes", "vector", W, launches=0.0, **counted._asdict(), role="experts"),
    ]
    tensors = [Tensor("router_logits", np.asarray(4.0 * logits), as_it_is=True)]
    if on.casts_router and model.recipe_or_default.router_dtype is not None:
        element = ROUTER_BYTES[model.recipe_or_default.router_dtype]
        cast = element * model.hidden_size * (tokens + experts)
        tensors.append(Tensor("router_casts", np.asarray(cast), as_it_is=True))
    return operators, tensors


def _moved_bytes(
    h: int, shard: Sharding, on: OperatorFeatures, sent: Floats, received: Floats
) -> tuple[Floats, Floats]:
    """Bytes moved to select rows, and to add them up; see `permute_rows`. sent, received : rows of a rank."""
    tokens = held_tokens(shard, on)
    index = 0.0 if on.vector_sort or on.row_index else 8.0  # bytes of an index for every element
    picked = (4.0 + index) * h * received
    added = (10.0 + index) * h * received + 2.0 * h * (tokens * shard.ep * shard.etp)
    if on.fused_operators or on.vector_sort:
        taken = returned = 2.0 * h * (sent + tokens)
    else:
        taken, returned = 4.0 * h * sent, 2.0 * h * tokens + 6.0 * h * sent
    return np.where(shard.gathers_tokens, picked, taken), np.where(shard.gathers_tokens, added, returned)


def permute_rows(
    model: ModelSpec,
    shard: Sharding,
    on: OperatorFeatures,
    *,
    prefix: str = "",
    choices: float | None = None,
    experts: int | None = None,
) -> Rows:
    """Token permutation: rows copied k times into expert order and back; reordered where a rank has several experts.

    Exchanged tokens, fused (Transformer Engine moe_permute, torch_npu npu_moe_token_permute): each token streams once,
    in or out, and k rows. Unfused, k rows are picked (4 B an element) or added to a cleared buffer (2 B an element of
    a token, 2 in, 2 + 2 of the sum), forward as backward. Source: Megatron-LM moe_utils.py permute, index_select, and
    unpermute, scatter_add_. Rows that return to be weighted are read again for their weights' gradients. A dispatch
    that sends a token once to each rank makes the rows where they are needed, in order: nothing is sorted again.
    Source: token_dispatcher.py get_permuted_hidden_states_by_experts. Gathered tokens: a rank picks its rows out of
    the whole group's by an index as wide as the rows (8 B an element) and adds them back into a cleared buffer of the
    group's size the same way (Megatron-LM MoEAllGatherTokenDispatcher); with `row_index` by one index a row.

    Rows that return weighted are added up alone: what is kept of them is the map of rows, 8 B for each expert that a
    token could choose. Source: Transformer Engine pytorch/permutation.py:805 keeps its input with merging_probs alone;
    the map has 2 E + 1 numbers of 4 B a token there, and Megatron-LM's own permute sorts an index of E numbers of 8 B.

    Sorting on vector units (`vector_sort`) turns the choices into whole rows in order: keys and places (8 B a choice)
    are sorted in on-chip memory and merged once, and rows stream by one index each instead of being gathered.

    prefix, choices, experts : of the rows' names, experts of a token, all experts, where they have no matrices.
    """
    h, choices = model.hidden_size, model.computing_experts_per_tok if choices is None else choices
    sent, received = held_tokens(shard, on) * choices, expert_rows(shard, model, on, choices)
    selected, summed = _moved_bytes(h, shard, on, sent, received)
    again = np.where(shard.gathers_tokens, 1.0, 2.0 if on.weighted_rows else 1.0)
    sorting = 2.0 * 16.0 * sent if on.vector_sort else 0.0  # two passes that read and write 8 B a choice
    local_experts = (experts or model.n_routed_experts or 1) / shard.ep
    sorts = (local_experts > 1) & ~shard.gathers_tokens & ~np.asarray(shard.sends_once)
    cut = np.where(shard.turns_tokens, shard.etp, 1.0)  # rows are sorted before their columns are gathered
    resort = np.where(sorts, 4.0 * h * received / cut, 0.0)
    launches = 1.0 if on.fused_operators else 3.0
    kind: OperatorKind = "vector" if on.vector_sort else "movement"
    issued = host.PERMUTATION[on.fused_operators]

    def row(name: str, forward: Floats, backward: Floats, calls: host.Issued) -> Operator:
        return moving(
            prefix + name,
            W,
            forward,
            backward,
            kind=kind,
            launches=launches,
            **calls._asdict(),
            whole_rows=on.fused_operators & ~shard.gathers_tokens,
        )

    def sort(name: str, calls: host.Issued) -> Operator:
        several = np.where(resort > 0.0, 1.0, 0.0)
        return row(name, resort, resort, calls)._replace(
            launches=several,
            issued=several * calls.issued,
            issued_backward=several * calls.issued_backward,
            role="" if prefix else "sorting",
            per_expert=True,
        )

    operators = [
        row("permute", selected + sorting, summed, issued[0]),
        sort("sort_by_expert", issued[1]),
        sort("sort_by_rank", issued[2]),
        row("unpermute", summed, again * selected, issued[3]),
    ]
    back = sent * (on.capacity_factor or 1.0)  # experts send their padding back too
    kept = np.asarray(2.0 * h * np.where(shard.gathers_tokens, received, back))
    if on.weighted_experts:
        kept = np.asarray(8.0 * float(experts or model.n_routed_experts or 1) * held_tokens(shard, on))
    return operators, [Tensor(f"{prefix}unpermute_in", kept)], []


def _turned_rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> list[Operator]:
    """Copies of a dispatcher that exchanges parts of the width: all-gather and reduce-scatter work on whole rows, so
    that gathered columns are put beside each other, and columns to be scattered one after another (4 B an element of
    the experts' rows); backward the other way round. The rank's tokens are cut into columns so before their exchange,
    and their columns joined after it.

    Source: Megatron-LM core_v0.12.1 tensor_parallel/mappings.py, _gather_along_last_dim,
    _reduce_scatter_along_last_dim, all_to_all_sp2hp, all_to_all_hp2sp; core_r0.6.0 alike.
    """
    turns = np.asarray(shard.turns_tokens)
    if not np.any(turns):
        return []
    copied = np.where(turns, 4.0 * model.hidden_size, 0.0)
    once = np.where(turns, 1.0, 0.0)
    rows, tokens = copied * expert_rows(shard, model, on), 2.0 * copied * held_tokens(shard, on)

    def joined(name: str) -> Operator:
        return moving(name, W, rows, rows, launches=once, issued=once, issued_backward=once, per_expert=True)

    both = 2.0 * once
    turned = moving("tokens_turned", W, tokens, tokens, launches=both, issued=both, issued_backward=both)
    return [joined("rows_joined"), joined("rows_split"), turned]


def _experts(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> Rows:
    """Grouped GEMMs over the experts of a rank, few rows each where experts are many."""
    h, gates = model.hidden_size, 2.0 if model.is_gated else 1.0
    width = (model.moe_intermediate_size or 0) / shard.etp
    # Copied hot experts are multiplications of their own, with fewer rows each.
    groups = (model.n_routed_experts or 1) / shard.ep + shard.hot_experts
    rows = expert_rows(shard, model, on)
    each = rows / groups
    forward, backward, kept = activation_bytes_per_element(model.is_gated, on.fused_swiglu)
    elements = rows * width
    launches = 1.0 if on.grouped_gemm else groups
    calls, activated = host.of_products(groups, on), host.of_activation(groups, on)

    def gemm(name: str, columns: Floats | float, depth: Floats | float) -> Operator:
        return Operator(
            name,
            "grouped_gemm",
            W,
            each,
            columns,
            depth,
            groups,
            launches=launches,
            **calls._asdict(),
            role="experts",
            per_expert=True,
            fused=on.grouped_gemm,
        )

    operators = [
        gemm("expert_up_proj", gates * width, h),
        moving(
            "expert_activation",
            W,
            forward * elements,
            backward * elements,
            launches=2.0,
            **activated._asdict(),
            role="experts",
            per_expert=True,
        ),
        gemm("expert_down_proj", h, width),
    ]
    tensors = [
        Tensor("expert_in", np.asarray(on.input_bytes * rows * h), per_expert=True),
        Tensor("expert_up_out", np.asarray(2.0 * gates * elements), per_expert=True),
        Tensor("expert_activation_out", np.asarray((kept - 2.0 + on.input_bytes) * elements), per_expert=True),
    ]
    if on.weighted_activation:
        tensors.append(Tensor("expert_activation_unweighted", np.asarray(2.0 * elements), per_expert=True))
    return operators, tensors, []


def _expert_exchanges(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> list[Exchange]:
    """Dispatch and combine of the tokens a rank holds; with expert tensor parallelism their gather and scatter.

    Gathered tokens come from all ranks of the experts' group at once: nothing is left to gather. Weights of copied hot
    experts arrive for the forward and again for the backward pass, while the rank's own experts run; their BF16
    gradients return beside attention's. Source: MindSpeed balanced_moe: balanced_moe_grouped_mlp waits for the
    broadcast after the local experts, and the reduction of their gradients overlaps with attention backward.
    """
    h = model.hidden_size
    factor = on.capacity_factor or 1.0
    token_bytes = np.asarray(2.0 * h * held_tokens(shard, on) * factor)
    # Inside an expert's tensor-parallel group every rank needs all rows that any of its ranks received.
    etp_bytes = np.asarray(np.where(shard.etp > 1, 2.0 * h * expert_rows(shard, model, on), 0.0))
    times = np.where(shard.gathers_tokens, 0.0, 1.0)
    exchanges = [
        Exchange("dispatch", "dispatch", W, token_bytes, along=("probabilities",)),
        Exchange("combine", "combine", W, token_bytes),
    ]
    if on.replicated_dispatch:
        # Every rank received all rows; partial sums are reduced forward, gradients of the rows backward.
        exchanges.append(Exchange("expert_scatter", "reduce", W, etp_bytes, group="etp"))
    else:
        exchanges.append(Exchange("expert_gather", "gather", W, etp_bytes, times, times, group="etp"))
        exchanges.append(Exchange("expert_scatter", "scatter", W, etp_bytes, times, times, group="etp"))
    if np.any(np.asarray(shard.hot_experts) > 0):
        weights = np.asarray(2.0 * shard.hot_experts * model.routed_expert_params)
        copied = Exchange("hot_weights", "gather", W, weights, carries="weights", group="ep", blocking=False)
        exchanges += [
            copied._replace(recomputed_count=0.0),  # the backward pass has them anyway
            copied._replace(name="hot_gradients", kind="scatter", window="attention", forward_count=0.0),
        ]
    return exchanges


# Experts that return what they get (zero-computation experts, LongCat-Flash, arXiv 2509.01322, section 2.1.1).
PREFIX: Final = "zero_"


def zero_rows(model: ModelSpec, shard: Sharding, on: OperatorFeatures) -> Rows:
    """Operators, tensors and exchanges of the tokens that such experts get, in one layer; none without such experts.

    Rows are multiplied by their weights (in 2 B, out 2 B an element); backward by the gradient (4 B), and the product
    of both is summed up for the weights' gradients (in 4 B, out 2 B, in 2 B). Their sum joins the experts' (6 B an
    element of a token), and their gradient the others' (6 B). It is assumed that they load ranks as the experts do.
    """
    if not model.n_zero_experts:
        return [], [], []
    h, choices = model.hidden_size, model.zero_experts_per_tok
    rows = expert_rows(shard, model, on, choices)
    elements = held_tokens(shard, on) * h
    operators, tensors, _ = permute_rows(model, shard, on, prefix=PREFIX, choices=choices, experts=model.n_zero_experts)
    counted = host.sizes(shard, on)
    operators += [
        Operator("zero_sizes", "vector", W, launches=0.0, **counted._asdict()),
        moving(
            "zero_weights", W, 4.0 * h * rows, 12.0 * h * rows, launches=1.0, **host.WEIGHTED._asdict(), per_expert=True
        ),
        moving("zero_sum", W, 6.0 * elements, 6.0 * elements),
    ]
    tensors.append(Tensor("zero_in", np.asarray(2.0 * h * rows), per_expert=True))
    sent = np.asarray(2.0 * elements)
    exchanges = [
        Exchange("zero_dispatch", "dispatch", W, sent, choices=choices),
        Exchange("zero_combine", "combine", W, sent, choices=choices),
    ]
    return [operator._replace(routes=True) for operator in operators], tensors, exchanges


# Kinds of layers.
@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs of a kind of layers beside attention and norms (`specs.model_rules.LayerKind`).

    rows : operators, kept tensors and exchanges of a layer.
    params : of a layer on a rank: of the dense part that is whole on every rank, that tensor parallelism cuts, and of
        experts [n].
    hooks : of parameters that the host runs in the backward pass, of the experts of a rank.
    routes : it sends tokens to experts.
    gathers : hidden states of all ranks of the tensor-parallel group are its input.
    choices : memory choices and what they touch.
    """

    rows: Callable[[ModelSpec, Sharding, OperatorFeatures], Rows]
    params: Callable[[ModelSpec, Sharding], tuple[int, int, Floats | float]]
    hooks: Callable[[Floats, OperatorFeatures], Floats | float]
    routes: bool = True
    gathers: bool = True
    choices: MemoryChoices = field(default_factory=dict)


def _routed_params(model: ModelSpec, shard: Sharding) -> tuple[int, int, Floats]:
    experts = (model.n_routed_experts or 0) * model.routed_expert_params / (shard.ep * shard.etp)
    return model.router_params, model.shared_expert_params, np.asarray(experts)


def _shortcut_params(model: ModelSpec, shard: Sharding) -> tuple[int, int, Floats]:
    whole, cut, experts = _routed_params(model, shard)
    return whole, cut + model.halves * model.dense_mlp_params, experts


_ACTIVATION = ("expert_activation_out", "expert_activation_unweighted")
_EXPERTS = ("expert_in", "expert_up_out", *_ACTIVATION)
_SENT = ("dispatch", "expert_gather")
_PERMUTED = ("permute", "sort_by_expert", "rows_joined")
_SHARED = Touches(
    ("shared_up_out", "shared_activation_out"), ("shared_up_proj", "shared_activation", "shared_down_proj")
)
DENSE_COSTS: Final = LayerCosts(
    dense_rows,
    lambda model, shard: (0, model.dense_mlp_params, np.zeros_like(shard.tp)),
    lambda experts, on: host.MLP_HOOKS,
    routes=False,
    choices={
        "activation": Touches(("mlp_activation_out",), ("mlp_activation",)),
        "mlp": Touches(
            ("mlp_up_out", "mlp_activation_out"),
            ("mlp_up_proj", "mlp_activation", "mlp_down_proj"),
            ("mlp_gather", "mlp_scatter", "mlp_reduce"),
        ),
        "swap_activation": Touches(("mlp_activation_out",)),
    },
)
ROUTED_COSTS: Final = LayerCosts(
    moe_rows,
    _routed_params,
    host.of_hooks,
    gathers=False,
    choices={
        "activation": Touches(("shared_activation_out", *_ACTIVATION), ("shared_activation", "expert_activation")),
        "permute": Touches(("expert_in",), _PERMUTED, _SENT),
        "moe_zero_memory_level0": Touches(("expert_in", *_ACTIVATION), (*_PERMUTED, "expert_activation"), _SENT),
        "moe_zero_memory_level1": Touches(_EXPERTS, (*_PERMUTED, "expert_up_proj", "expert_activation"), _SENT),
        "moe": Touches(
            (
                "router_logits",
                "router_casts",
                "unpermute_in",
                *_EXPERTS,
                *_SHARED.frees,
                "zero_in",
                "zero_unpermute_in",
            ),
            (
                *("zero_permute", "zero_sort_by_expert", "zero_weights", "zero_sort_by_rank", "zero_unpermute"),
                *("router", "routing", *_PERMUTED, "expert_up_proj", "expert_activation"),
                *("expert_down_proj", "sort_by_rank", "unpermute", "rows_split", "tokens_turned", *_SHARED.replays),
            ),
            (
                *("dispatch", "combine", "expert_gather", "expert_scatter", "mlp_gather", "mlp_scatter"),
                *("zero_dispatch", "zero_combine"),
            ),
        ),
        "shared_experts": _SHARED,
        "swap_activation": Touches(("shared_activation_out", *_ACTIVATION)),
        "swap_unpermute": Touches(("unpermute_in",)),
        "swap_moe": Touches(("expert_in", "expert_up_out")),
    },
)
# Its memory choices are those of dense and of routed layers.
SHORTCUT_COSTS: Final = LayerCosts(
    shortcut_rows, _shortcut_params, lambda experts, on: host.of_both_halves(host.of_hooks(experts, on))
)
