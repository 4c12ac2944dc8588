"""One layer's forward beside another micro batch's backward, stream by stream (MindSpeed fb_overlap, fwdbwd.py).

Two streams: computation, and dispatch and combine. The clock of each stream runs on; where one needs the other's
result, it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.accounting.lanes import beside_cubes

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account, Message

ATTENTION = ("latent_", "attention_", "ring", "heads", "mqa_", "pool_", "index_")
OUTSIDE = ("permute", "unpermute")
DENSE = ("mlp_up_proj", "mlp_activation", "mlp_down_proj")


@dataclass(frozen=True)
class Paired:
    """What pairing takes off two passes: all, of that expert communication, and less where nothing was left over."""

    hidden: float
    exchange: float
    first: float


def _routed(name: str, _: str) -> bool:
    return name.startswith(("expert_", "sort_by_"))


def _shared(name: str, _: str) -> bool:
    return name.startswith("shared_")


def _dense(name: str, _: str) -> bool:
    return name in DENSE


def _left(name: str, window: str) -> bool:
    return window == "attention" or _shared(name, window)


def _rest(name: str, window: str) -> bool:
    return not (_routed(name, window) or _left(name, window) or _dense(name, window))


def left_over(a: Account) -> float:
    """Weight gradients that run after a layer's backward: attention and shared experts."""
    return a.work(backward=2, where=_left)


def split(a: Account) -> float:
    """Weight gradients that can wait until the layer's gradient has left: what the experts' dispatch does not need."""
    return left_over(a) + max(0.0, a.work(backward=2, where=_routed) - a.dispatch)


def _messages(a: Account, step: str, *, backward: bool) -> list[Message]:
    """Collectives beside attention, shared experts, or in the middle: routed experts or a dense MLP."""

    def of(name: str) -> str:
        if name.startswith(ATTENTION) or name == "hot_gradients":
            return "attention"
        if name == "hot_weights":
            return "middle"
        dense = any(name in a.operators for name in DENSE)
        return "middle" if dense or name.startswith("expert_") else "shared"

    others = [m for m in a.messages if m.name not in ("dispatch", "combine")]
    return [m for m in others if m.backward == backward and of(m.name) == step]


def _shown(a: Account, step: str, *, backward: bool) -> float:
    return sum(m.shown for m in _messages(a, step, backward=backward))


def _tier(a: Account, name: str) -> int:
    """The outermost tier of links that the group of a message spans."""
    group = {"ring": "ring", "heads": "heads", "expert": "etp"}.get(name.split("_")[0], "tp")
    group = "ring" if name.endswith("_ring") else group
    spans = a.machine.together(a.groups[group])
    grown = [t for t, span in enumerate(spans) if span > (spans[t - 1] if t else 1)]
    return grown[-1] if grown else 0


def _on_tier(a: Account, tier: int, *steps: str, backward: bool) -> float:
    found = [m for step in steps for m in _messages(a, step, backward=backward)]
    hot = sum(a.on_tiers["hot"][tier] for m in found if m.name.startswith("hot_"))
    return hot + sum(m.seconds for m in found if not m.name.startswith("hot_") and _tier(a, m.name) == tier)


def paired(f: Account, b: Account) -> Paired:
    """The forward of `f` beside the backward of `b`: after another layer of the chunk, and as the chunk's first."""
    alone = f.forward.total + b.backward.total
    issue = 0.0 if "graph_mode" in f.run.on else f.issue_s
    host = f.issued[0] * issue + b.issued[1] * (issue and b.issue_s)
    # Beyond issuing, the host holds the forward up for its synchronisation.
    behind = f.issued[0] * issue - (f.forward.total - f.forward.host)
    wait = f.forward.host - max(0.0, behind)

    def whole(device: float) -> float:
        return min(alone, max(max(device, host) + wait, f.forward.total, b.backward.total))

    after, first = _play(f, b, left_over(b)), _play(f, b, 0.0) + left_over(b)
    on_device = alone - f.forward.host - b.backward.host
    hidden = alone - whole(after)
    return Paired(hidden, min(hidden, max(0.0, on_device - after)), whole(first) - whole(after))


def _beside(a: Account, backward: int) -> tuple[float, float]:
    """Reordering beside matrix work: of the rows that leave and return, and of the sorting between them."""
    hidden = beside_cubes(a, backward=backward == 1, busy=True)
    leaves = sum(sum(o.busy[1:]) if backward else o.busy[0] for n, o in a.operators.items() if n in OUTSIDE)
    return min(hidden, leaves), hidden - min(hidden, leaves)


def _processors(a: Account) -> float:
    """Share of the multiprocessors that DeepEP's kernels hold while products run beside them."""
    return a.machine.contention - 1 if a.d.dispatcher == "deepep" else 0.0


def _play(f: Account, b: Account, filler: float) -> float:
    """When the pair ends; `filler`: weight gradients of the layer before."""
    tiers = range(len(f.machine.links))

    def exchange(a: Account, name: str, tier: int) -> float:
        return min(getattr(a, name), a.on_tiers[name][tier]) if a.on_tiers else 0.0

    (outer, inner), (outer_back, inner_back) = _beside(f, 0), _beside(b, 1)
    taken, taken_back = _processors(f), _processors(b)

    # Combine of the backward beside attention, routing and shared experts of the forward.
    work = f.work(backward=0, where=lambda n, w: not _routed(n, w) and not _dense(n, w))
    work += _shown(f, "attention", backward=False) + _shown(f, "shared", backward=False) - outer + taken * f.combine
    loads = [exchange(b, "combine", t) + _on_tier(f, t, "attention", "shared", backward=False) for t in tiers]
    clock = max(filler + work, b.combine, *loads)

    # The forward's dispatch leaves, the backward's dX runs; its dispatch leaves when both are done.
    here = b.work(backward=1, where=lambda n, w: _routed(n, w) or _shared(n, w) or _dense(n, w))
    here += b.work(backward=2, where=_dense)
    here += _shown(b, "shared", backward=True) + _shown(b, "middle", backward=True) - inner_back
    here += taken_back * b.dispatch
    there = f.dispatch
    returned = max(here, there) + b.dispatch
    here = max(here + b.work(backward=2, where=_routed), there)
    here += f.work(backward=0, where=lambda n, w: _routed(n, w) or _dense(n, w)) + _shown(f, "middle", backward=False)
    here += taken * f.dispatch - inner
    loads = [
        exchange(f, "dispatch", t)
        + exchange(b, "dispatch", t)
        + _on_tier(b, t, "shared", "middle", backward=True)
        + _on_tier(f, t, "middle", backward=False)
        for t in tiers
    ]
    clock += max(here, returned, *loads)

    # Combine of the forward beside routing and attention of the backward.
    work = b.work(backward=1, where=lambda n, w: _rest(n, w) or w == "attention")
    work += b.work(backward=2, where=_rest) + _shown(b, "attention", backward=True) - outer_back
    work += taken_back * b.combine
    loads = [exchange(f, "combine", t) + _on_tier(b, t, "attention", backward=True) for t in tiers]
    return clock + max(work, f.combine, *loads)
