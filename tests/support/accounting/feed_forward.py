"""The feed-forward part of a layer in the accounting: a dense MLP, and a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.accounting.adapters import add_expert_adapters
from tests.support.accounting.expert_messages import expert_messages, zero_messages
from tests.support.accounting.run import Levelled, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.accounting.layer import Account


def activation_bytes(r: Run) -> tuple[int, int, int]:
    """Per element of the activation's output: forward, backward, kept."""
    if r.gates == 1:
        return 4, 6, 2
    return (6, 10, 2) if "fused_swiglu" in r.on else (10, 16, 4)


def _input_bytes(r: Run) -> int:
    """What a product keeps of an element of its input: of an 8-bit one the cast alone."""
    return 1 if "narrow_inputs" in r.on else 2


def add_mlp(a: Account, prefix: str, width: float) -> None:
    r, tokens, local = a.run, a.tokens, width / a.d.tp
    forward, backward, kept = activation_bytes(r)
    a.gemm(f"{prefix}_up_proj", "mlp", tokens, r.gates * local, r.hidden_size)
    elements = tokens * local
    launches = 1 if "fused_swiglu" in r.on else 3
    a.vector(f"{prefix}_activation", "mlp", forward * elements, backward * elements, launches)
    a.gemm(f"{prefix}_down_proj", "mlp", tokens, r.hidden_size, local)
    a.keep(f"{prefix}_up_out", 2 * r.gates * elements)
    a.keep(f"{prefix}_activation_out", (kept - 2 + _input_bytes(r)) * elements)
    a.dense_params += (r.gates + 1) * r.hidden_size * local


def shared_width(r: Run) -> int:
    return int((r.n_shared_experts or 0) * (r.moe_intermediate_size or 0))


def _rows_moved(a: Account, way: str, own: float, k: float, experts: float) -> tuple[float, Callable[[], None]]:
    """Rows on their way to a rank's experts: how many it receives, and what moves them back. way : of the names."""
    r, d = a.run, a.d
    h, fused, sorts = r.hidden_size, "fused_operators" in r.on, "vector_sort" in r.on
    everything = "replicated_dispatch" in r.on
    # What one rank receives: walk over the ranks of its expert-parallel and expert tensor-parallel groups.
    sharing = [0] if everything else a.groups["etp"]
    received = sum(own * k / d.ep for _ in a.groups["ep"] for _ in sharing) * (r.capacity_factor or 1)
    mine = experts / d.ep
    in_order = d.dispatcher in ("allgather", "deepep")  # rows are made where they are needed
    columns = h / d.etp if d.dispatcher == "alltoall_seq" else h  # of which rows are sorted
    resorted = 4 * columns * received if mine > 1 and not in_order else 0
    sent = own * k
    permute = 2 * h * own + 2 * h * sent  # read each token, write a row for each choice
    unpermute, permute_back = permute, permute
    unpermute_back = permute
    if not fused and not sorts:  # pick a row for each choice; clear a buffer and add rows to its sums
        permute = unpermute_back = (2 + 2) * h * sent
        unpermute = permute_back = 2 * h * own + (2 + 2 + 2) * h * sent
    if "graph_mode" in r.on:  # the rows' weights have gradients of their own
        unpermute_back = 2 * unpermute_back
    if d.dispatcher == "allgather":
        # Rows are picked out of the group's tokens, and added back, by an 8-byte index for every element.
        whole = sum(own for _ in a.groups["ep"] for _ in a.groups["etp"])
        wide = 0 if sorts or "async_permutation" in r.on else 8
        permute = unpermute_back = (2 + wide + 2) * h * received
        unpermute = permute_back = (2 + wide + 4 + 4) * h * received + 2 * h * whole
        sent = received
    once = 1 if fused else 3
    if sorts:  # a key and a place of each choice, in and out, twice
        permute += 2 * (8 + 8) * own * k
    calls = {"permute": (3, 2), "there": (2, 1), "back": (1, 1), "unpermute": (1, 1)}
    if not fused:
        calls = {"permute": (7, 6), "there": (3, 3), "back": (2, 2), "unpermute": (3, 2)}
    if not resorted:
        calls |= {"there": (0, 0), "back": (0, 0)}
    whole = fused and d.dispatcher != "allgather"  # the kernel permutes whole rows
    a.vector(f"{way}permute", "mlp", permute, permute_back, once, moves=not sorts, whole=whole, calls=calls["permute"])

    def sort(name: str, issued: tuple[int, int]) -> None:
        once = 1 if resorted else 0
        a.vector(way + name, "mlp", resorted, resorted, once, moves=not sorts, whole=whole, hot=True, calls=issued)

    sort("sort_by_expert", calls["there"])

    def back() -> None:
        sort("sort_by_rank", calls["back"])
        a.vector(
            f"{way}unpermute",
            "mlp",
            unpermute,
            unpermute_back,
            once,
            moves=not sorts,
            whole=whole,
            calls=calls["unpermute"],
        )
        padded = 1 if d.dispatcher == "allgather" else r.capacity_factor or 1
        weighted = "weighted_experts" in r.on
        a.keep(f"{way}unpermute_in", 8 * own * experts if weighted else 2 * h * sent * padded)

    return received, back


def add_mixture(a: Account) -> None:
    r, d = a.run, a.d
    h, k, experts = r.hidden_size, r.chosen, r.n_routed_experts
    choices = experts + (r.n_zero_experts or 0)
    fused = "fused_operators" in r.on
    # Sizes that the host must know: of messages or the experts' rows, and of two selections that fused kernels do
    # without; gathered tokens are always selected.
    gathered = d.dispatcher == "allgather"
    if r.capacity_factor is None:
        a.waits = 3 if gathered or not fused else 1
        a.waits_again = 0 if fused else 2
    # Replicated: each tensor-parallel rank routes and sends the tokens of all.
    everything = "replicated_dispatch" in r.on
    own = a.tokens if everything else a.local
    logits = own * choices
    a.gemm("router", "mlp", own, choices, h, calls=(2, 4))
    router = "fused_router" in r.on
    passes, steps = (24, 4) if router else (48, 12)
    sorts = "vector_sort" in r.on
    if sorts:  # values and indices of two choices are not written and read again, but the logits once
        passes, steps = passes - (16 - 4), steps - 1
    a.vector("routing", "mlp", passes * logits, passes * logits / 2, steps, calls=(4, 4) if router else (22, 12))
    a.vector("expert_sizes", "mlp", 0, 0, 0, calls=(6, 1) if gathered else _sizes(a))
    a.keep("router_logits", 4 * logits)
    a.dense_params += h * choices

    mine = experts / d.ep
    received, moves_back = _rows_moved(a, "", own, k, experts)
    width = r.moe_intermediate_size / d.etp
    forward, backward, kept = activation_bytes(r)
    levelled = r.levelled or Levelled(1, 1, 1)
    multiplied = mine + levelled.hot
    a.experts("expert_up_proj", multiplied, received / multiplied, r.gates * width, h)
    elements = received * width
    calls = (3, 4) if "grouped_gemm" in r.on else (3 * multiplied, 18 * multiplied)  # of each expert in parts
    a.vector("expert_activation", "mlp", forward * elements, backward * elements, 2, hot=True, calls=calls)
    a.experts("expert_down_proj", multiplied, received / multiplied, h, width)
    moves_back()
    if d.dispatcher == "alltoall_seq" and d.etp > 1:
        # Gathered columns are put beside each other, others one after another; a token's own twice each way.
        a.vector("rows_joined", "mlp", (2 + 2) * h * received, (2 + 2) * h * received, hot=True)
        a.vector("rows_split", "mlp", (2 + 2) * h * received, (2 + 2) * h * received, hot=True)
        a.vector("tokens_turned", "mlp", 2 * (2 + 2) * h * own, 2 * (2 + 2) * h * own, 2)
    a.keep("expert_in", _input_bytes(r) * received * h, hot=True)
    a.keep("expert_up_out", 2 * r.gates * elements, hot=True)
    a.keep("expert_activation_out", (kept - 2 + _input_bytes(r)) * elements, hot=True)
    if r.weighted_activation:
        a.keep("expert_activation_unweighted", 2 * elements, hot=True)
    a.expert_params += mine * (r.gates + 1) * h * width
    if shared_width(r):
        add_mlp(a, "shared", shared_width(r))
    add_expert_adapters(a)
    expert_messages(a, received)
    if r.n_zero_experts:
        _without_matrices(a, own)


def _sizes(a: Account) -> tuple[int, int]:
    """Calls that count rows; a host that never asks for them is spared five copies, and three sums for it alone."""
    asks = "host_sync_free" not in a.run.on
    if a.d.ep > 1 or a.d.etp > 1:
        return 13 if asks else 13 - 5 - 3, 1
    return 3 if asks else 3 - 1, 0


def _without_matrices(a: Account, own: float) -> None:
    """Experts that return what they get: a dispatch of their own, weights on the rows, a combine, a sum of both."""
    r, h = a.run, a.run.hidden_size
    k = r.num_experts_per_tok - r.chosen
    received, moves_back = _rows_moved(a, "zero_", own, k, r.n_zero_experts)
    a.vector("zero_sizes", "mlp", 0, 0, 0, calls=_sizes(a))
    # Rows in and out. Backward: gradients in and out; gradients and rows in, their product out and in again.
    weighted = ((2 + 2) * h * received, (2 + 2 + 2 + 2 + 2 + 2) * h * received)
    a.vector("zero_weights", "mlp", *weighted, 1, hot=True, calls=(3, 4))
    moves_back()
    a.vector("zero_sum", "mlp", (2 + 2 + 2) * h * own, (2 + 2 + 2) * h * own)
    a.keep("zero_in", 2 * received * h, hot=True)
    a.waits, a.waits_again = 2 * a.waits, 2 * a.waits_again
    zero_messages(a, own, k)
