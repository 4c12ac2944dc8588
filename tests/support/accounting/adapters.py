"""Adapters beside frozen products in the accounting: MindSpeed-LLM's fused kernels, one pass after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account

# Product -> its input, kept for its adapter alone; those cut by rows give partial sums.
INPUTS = {
    "qkv_proj": "attention_norm_out",
    "latent_down_proj": "attention_norm_out",
    "mlp_up_proj": "mlp_norm_out",
    "mlp_down_proj": "mlp_activation_out",
    "shared_up_proj": "mlp_norm_out",
    "shared_down_proj": "shared_activation_out",
    "expert_up_proj": "expert_in",
    "expert_down_proj": "expert_activation_out",
}
BY_ROWS = ("attention_out_proj", "mlp_down_proj", "shared_down_proj")
BESIDE_EXPERTS = ("expert_up_proj", "expert_down_proj")


def add_adapters(a: Account) -> None:
    """What adapters of the run's targets add to a layer; parameters so far are frozen."""
    if not a.run.lora_rank:
        return
    a.frozen_params = a.dense_params + a.expert_params
    a.dense_params, a.expert_params = a.beside_experts
    products = [product for product in a.run.lora_targets if product in a.operators]
    for tensor in set(INPUTS.values()) - {INPUTS.get(product) for product in products}:
        if tensor in a.kept:
            a.kept[tensor] = a.among[tensor] = 0.0
    for product in products:
        if product == "latent_down_proj":
            _beside_latents(a, product, a.run.lora_rank)
        elif product not in BESIDE_EXPERTS:
            _adapter(a, product, a.run.lora_rank, rows=product in BY_ROWS)


def add_expert_adapters(a: Account) -> None:
    """Those of experts; messages run beside their weights' gradients."""
    for product in BESIDE_EXPERTS:
        if product in a.run.lora_targets:
            _beside_experts(a, product, a.run.lora_rank)


def _beside_experts(a: Account, product: str, r: float) -> None:
    """One of every expert: both products of all experts at once, and their sum with the experts' output."""
    experts, rows, out, width = a.grouped[product]
    a.experts(f"{product}_lora_down", experts, rows, r, width, trained=True)
    a.experts(f"{product}_lora_up", experts, rows, out, r, trained=True)
    forward, backward = ((2 + 2 + 2) * experts * rows * size for size in (out, width))
    a.vector(f"{product}_lora_add", "mlp", forward, backward, hot=True)
    a.keep(f"{product}_lora_inner", 2 * experts * rows * r, hot=True)
    owned = a.run.n_routed_experts / a.d.ep
    # The half that sees hidden states is whole on every rank, and counts as a dense parameter.
    whole, cut = (width, out) if product == "expert_up_proj" else (out, width)
    shared, own = a.beside_experts
    a.beside_experts = shared + owned * r * whole, own + owned * r * cut


def _beside_latents(a: Account, product: str, r: float) -> None:
    """A linear layer that no rank cuts: its output, and what goes down and up, are added."""
    rows, out, width = a.shapes[product]
    t, weight = a.machine.gemm, a.run.summed()
    for part, (m, n, k) in {"down": (rows, r, width), "up": (rows, out, r)}.items():
        times = (t(m, n, k), t(m, k, n), t(k, n, m, result=weight))
        a._operator(f"{product}_lora_{part}", "attention", times, times, 1, 2)
    a.vector(f"{product}_lora_add", "attention", (2 + 2 + 2) * rows * out, (2 + 2 + 2) * rows * width)
    a.keep(f"{product}_lora_inner", 2 * rows * r)
    a.dense_params += r * (width + out)


def _adapter(a: Account, product: str, r: float, *, rows: bool) -> None:
    window = a.operators[product].window
    tokens, out, width = a.shapes[product]
    own, ranks = a.local, len(a.groups["tp"])
    t, weight = a.machine.gemm, a.run.summed()

    def gemm(part: str, forward: float, of_input: float, of_weight: float, calls: tuple[int, int]) -> None:
        times = (forward, of_input, of_weight)
        a._operator(f"lora_{product}_{part}", window, times, times, *calls)

    # W + B A first, where that saves work: on one rank by its shape, on several as the kernels are written.
    if ranks == 1:
        merges = merges_back = tokens >= width
    elif a.d.sequence_parallel:
        merges, merges_back = True, not rows
    else:
        merges, merges_back = False, not rows
    down = tokens if rows else own
    gemm(
        "down",
        t(down, r, width),
        0.0 if merges_back else t(down, width, r),
        t(width, r, down, result=weight),
        (1, 1 if merges_back else 2),
    )
    # Partial sums of a product cut by rows are reduced before they go up; the gradient that comes back is whole.
    up = own if rows else tokens
    forward = 0.0 if merges else t(up, out, r)
    of_weight = t(r, out, up, result=weight)
    if rows:
        gemm("up", forward, 0.0, of_weight, (0 if merges else 1, 1))
        gemm("up_gradient", 0.0, t(tokens, r, out), 0.0, (0, 1))
    else:
        gemm("up", forward, t(tokens, r, out), of_weight, (0 if merges else 1, 2))
    merge = t(out, width, r)
    gemm("merge", merge if merges else 0.0, 0.0, 0.0, (1 if merges else 0, 0))
    gemm("merge_again", 0.0, merge if merges_back else 0.0, 0.0, (0, 1 if merges_back else 0))
    summed = out * width if merges else up * out
    summed_back = out * width if merges_back else tokens * width
    a.vector(f"lora_{product}_add", window, (2 + 2 + 2) * summed, (2 + 2 + 2) * summed_back)
    a.keep(f"lora_{product}_inner", 2 * own * r)
    a.dense_params += r * (width + out)
    _messages(a, product, 2 * tokens * r, rows=rows)


def _messages(a: Account, product: str, inner: float, *, rows: bool) -> None:
    tp = a.groups["tp"]
    several = len(tp) > 1
    sp, plain = (1 if several and a.d.sequence_parallel is cut else 0 for cut in (True, False))
    gather, reduce = a.machine.all_gather(inner, tp), a.machine.all_reduce(inner, tp)
    name = f"lora_{product}"
    if rows:
        a.message(f"{name}_scatter", "tp", gather, sp, 0)
        a.message(f"{name}_reduce", "tp", reduce, plain, 0)
        return
    a.message(f"{name}_inner_gather", "tp", gather, 0, sp)
    a.message(f"{name}_gradient_scatter", "tp", gather, 0, sp)
    a.message(f"{name}_gradient_reduce", "tp", reduce, 0, plain)
