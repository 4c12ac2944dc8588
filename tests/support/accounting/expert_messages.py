"""Messages of routed experts: dispatch, combine and what goes with them, and what each runs beside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.accounting.run import Levelled
from tests.support.accounting.shortcut import dense_path

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account, Hide
    from tests.support.accounting.machine import Numbers


def expert_messages(a: Account, received: float) -> None:
    """Even and busiest messages of a layer whose experts receive `received` rows."""
    r, machine, ep = a.run, a.machine, a.groups["ep"]
    everything = "replicated_dispatch" in r.on
    token_bytes = 2 * r.hidden_size * (a.tokens if everything else a.local) * (r.capacity_factor or 1)
    k = r.chosen

    def once(network: Numbers, hot: float, loss: float) -> float:
        if a.d.dispatcher == "allgather":
            everybody = a.groups["experts"]  # the tensor-parallel ranks of an expert hold other tokens too
            return network.all_gather(token_bytes * len(everybody), everybody)
        if a.d.dispatcher == "hierarchical":
            return network.two_step(token_bytes, k, ep, hot, loss)
        seconds = network.all_to_all(
            token_bytes,
            k,
            ep,
            imbalance=hot,
            deduplicate=a.d.dispatcher == "deepep",
            expert_groups=r.n_group or 0,
            picked_groups=r.topk_group or 0,
            loss=loss,
        )
        if a.d.dispatcher == "alltoall_seq":
            # Rows of the sequence become columns of the hidden width inside the expert's tensor-parallel group.
            seconds += network.all_to_all(token_bytes, 1, a.groups["etp"])
        return seconds

    losses = {"dispatch": machine.dispatch_loss, "combine": machine.combine_loss}
    levelled = r.levelled or Levelled(a.hot, a.hot, 1)
    most = levelled.arrives if a.d.ep > 1 else 1.0
    even = {name: once(machine, 1.0 - levelled.home, loss) for name, loss in losses.items()}
    busy = {name: once(machine, most, loss) for name, loss in losses.items()}
    alone = [machine.with_one_tier(t) for t in range(len(machine.links))]
    a.on_tiers = {name: [once(only, most, loss) for only in alone] for name, loss in losses.items()}
    a.dispatch, a.combine = busy["dispatch"], busy["combine"]
    windows = _overlap_windows(a)

    def hide(which: str) -> Hide:
        return lambda t: max(0.0, t - windows[which])

    for name in losses:
        hidden = {"hide_forward": hide(f"{name} forward"), "hide_backward": hide(f"{name} backward")}
        a.message(name, "ep", even[name], 1, 1, busy=busy[name], **hidden)
    rows = 2 * r.hidden_size * received
    if everything:
        # All rows are there; products over a cut of the width are summed, in both passes.
        mean, worst = (machine.all_reduce(rows * hot, a.groups["etp"]) for hot in (1.0, a.hot))
        a.message("expert_scatter", "ep", mean, 1, 1, busy=worst)
    else:
        rows = 0 if a.d.dispatcher == "allgather" else rows
        mean, worst = (machine.all_gather(rows * hot, a.groups["etp"]) if rows else 0.0 for hot in (1.0, a.hot))
        a.message("expert_gather", "ep", mean, 1, 1, busy=worst)
        a.message("expert_scatter", "ep", mean, 1, 1, busy=worst)
    if levelled.hot:
        one = (r.gates + 1) * r.hidden_size * r.moe_intermediate_size
        weights = machine.all_gather(2 * levelled.hot * one, ep)
        a.on_tiers["hot"] = [only.all_gather(2 * levelled.hot * one, ep) for only in alone]

        def beside(seconds: float) -> Hide:
            return lambda t: min(t, max(0.0, machine.contention * t - seconds))

        forward, dx = (a.work(backward=n, where=lambda name, _: name.startswith("expert_")) for n in (0, 1))
        attention = sum(a.work(backward=n, where=lambda _, window: window == "attention") for n in (1, 2))
        # There before the experts run, and again for the backward pass.
        a.message("hot_weights", "ep", weights, 1, 1, hide_forward=beside(forward), hide_backward=beside(dx))
        a.message("hot_gradients", "ep", weights, 0, 1, hide_backward=beside(attention))


def zero_messages(a: Account, own: float, k: float) -> None:
    """All-to-All there and back of the tokens, each sent to `k` experts that return them, after the others'."""
    r, machine, ep = a.run, a.machine, a.groups["ep"]
    for name, loss in (("dispatch", machine.dispatch_loss), ("combine", machine.combine_loss)):
        even, busy = (
            machine.all_to_all(
                2 * r.hidden_size * own,
                k,
                ep,
                imbalance=hot,
                deduplicate=a.d.dispatcher == "deepep",
                expert_groups=0,
                picked_groups=0,
                loss=loss,
            )
            for hot in (1.0, a.hot if a.d.ep > 1 else 1.0)
        )
        share = k / r.num_experts_per_tok / 2 if "shortcut_overlap" in r.on and a.d.ep > 1 else 0.0
        windows = [share * path for path in dense_path(a)]

        def hide(window: float) -> Hide:
            return lambda t: max(0.0, t - window)

        a.message(
            f"zero_{name}", "ep", even, 1, 1, busy=busy, hide_forward=hide(windows[0]), hide_backward=hide(windows[1])
        )
        setattr(a, name, getattr(a, name) + busy)


PAIRING = ("adaptive_pipe", "dualpipev", "dualpipe")


def _overlap_windows(a: Account) -> dict[str, float]:
    """What dispatch and combine run beside when a pass runs alone."""
    passes = [f"{name} {way}" for name in ("dispatch", "combine") for way in ("forward", "backward")]
    found = dict.fromkeys(passes, 0.0)
    if "shortcut_overlap" in a.run.on and a.d.ep > 1:
        for way, path in zip(("forward", "backward"), dense_path(a), strict=True):
            share = path / 2 * a.run.chosen / a.run.num_experts_per_tok
            found |= {f"dispatch {way}": share, f"combine {way}": share}
        return found
    shared = [o for name, o in a.operators.items() if name.startswith("shared_")]
    routed = [o for name, o in a.operators.items() if name.startswith("expert_")]
    shared_forward = sum(o.busy[0] for o in shared)
    shared_backward, expert_weights = sum(sum(o.busy[1:]) for o in shared), sum(o.busy[2] for o in routed)
    if a.d.schedule in PAIRING:
        found["dispatch forward"] = shared_forward
        found["combine backward"], found["dispatch backward"] = shared_backward, expert_weights
        return found
    # MindSpeed overlaps its own two dispatchers; Megatron-LM hides DeepEP behind shared experts as well.
    asked = {"moe_alltoall_overlap", "shared_expert_overlap"} & a.run.on
    asked -= {"moe_alltoall_overlap"} if a.d.dispatcher == "deepep" else set()
    if a.d.dispatcher not in {"alltoall", "alltoall_seq", "deepep"} or a.d.ep == 1:
        return found
    if asked:
        found["dispatch forward"] = found["combine forward"] = shared_forward / 2
        found["combine backward"] = shared_backward
    if "moe_alltoall_overlap" in asked:
        found["dispatch backward"] = expert_weights
    return found
