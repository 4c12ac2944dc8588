"""Lanes beside the matrix units: the host after a synchronisation, rows reordered on vector units."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account

# What the software that routes tokens to experts does, whose releases have a factor of their own.
ROUTES = {
    *("router", "routing", "expert_sizes", "permute", "sort_by_expert", "sort_by_rank", "unpermute"),
    *("expert_up_proj", "expert_activation", "expert_down_proj", "rows_joined", "rows_split", "tokens_turned"),
    *(f"zero_{name}" for name in ("permute", "sort_by_expert", "sort_by_rank", "unpermute", "sizes", "weights", "sum")),
    *(f"expert_{way}_proj_lora_{part}" for way in ("up", "down") for part in ("down", "up", "add")),
}


def restart(a: Account, ahead: float) -> float:
    """Round trips with an empty queue, then the host issues what follows, operator by operator."""
    shared = [n for n in ("shared_up_proj", "shared_activation", "shared_down_proj") if n in a.operators]
    up, down = ([f"expert_{way}_proj_lora_{part}" for part in ("down", "up", "add")] for way in ("up", "down"))
    order = ["permute", "dispatch", "sort_by_expert", "expert_up_proj", *up, "expert_activation", "expert_down_proj"]
    order += [*down, "sort_by_rank", "combine", "unpermute"]
    order = [name for name in order if "lora" not in name or name in a.operators]
    exchanges = {"dispatch": (2, a.dispatch), "combine": (1, a.combine)}  # tokens and, on the way there, weights
    queued = 0.0
    if "host_reorder" in a.run.on:
        queued = sum(a.operators[n].busy[0] for n in shared)
    else:
        order += shared
    if a.d.dispatcher == "allgather" and "async_permutation" in a.run.on:
        queued += a.dispatch  # gathered while the host waits
    worst, clock, work = ahead, 0.0, 0.0
    for name in order:
        messages, seconds = exchanges.get(name, (0, 0.0))
        calls = (messages if seconds > 0 else 0) if name in exchanges else a.launched[name]
        clock += calls * a.issue_s
        worst = max(worst, clock - work)
        work += seconds if name in exchanges else a.operators[name].busy[0]
    return a.waits * a.machine.sync_s + worst - queued


def beside_cubes(a: Account, *, backward: bool, busy: bool) -> float:
    """Reordering of rows on vector units beside products that don't need those rows."""
    if "cube_vector_parallel" not in a.run.on or "permute" not in a.operators:
        return 0.0

    def took(name: str) -> tuple[float, float, float]:
        o = a.operators.get(name)
        return (0.0, 0.0, 0.0) if o is None else o.busy if busy else o.even

    shared = [took("shared_up_proj"), took("shared_down_proj")]
    routed = [took("expert_up_proj"), took("expert_down_proj")]
    there, back = ("permute", "sort_by_expert"), ("sort_by_rank", "unpermute")
    if not backward:
        half = sum(t[0] for t in shared) / 2
        return min(sum(took(n)[0] for n in there), max(0.0, half - a.hidden["dispatch", 0])) + min(
            sum(took(n)[0] for n in back), max(0.0, half - a.hidden["combine", 0])
        )
    weights, gradients = sum(t[2] for t in routed), sum(t[1] + t[2] for t in shared)
    return min(sum(took(n)[1] for n in there), max(0.0, weights - a.hidden["dispatch", 1])) + min(
        sum(took(n)[1] for n in back), max(0.0, gradients - a.hidden["combine", 1])
    )
