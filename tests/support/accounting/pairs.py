"""One layer's forward beside another micro batch's backward, stream by stream (MindSpeed fb_overlap, fwdbwd.py).

Two streams: computation, and dispatch and combine. The clock of each stream runs on; where one needs the other's
result, it waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account

HALF = {"latent": "attention", "attention": "attention", "ring": "attention", "heads": "attention", "expert": "experts"}


@dataclass(frozen=True)
class Paired:
    """What pairing takes off a layer, what less for a chunk's first one, and weight gradients that run beside sends."""

    hidden: float
    exchange: float
    first: float
    covering: float
    split: float


class _Steps:
    """Seconds of computation and of collectives in every step of the pair."""

    def __init__(self, a: Account) -> None:
        def routed(name: str, _: str) -> bool:
            return name.startswith(("expert_", "sort_by_"))

        def shared(name: str, _: str) -> bool:
            return name.startswith("shared_")

        def left(name: str, window: str) -> bool:
            return window == "attention" or shared(name, window)

        def rest(name: str, window: str) -> bool:
            return not routed(name, window) and not left(name, window)

        self.a = a
        self.ahead = a.work(backward=0, where=lambda n, w: not routed(n, w))
        self.experts = a.work(backward=0, where=routed) + self.shown("experts", backward=False)
        self.ahead += self.shown("attention", backward=False) + self.shown("mlp", backward=False)
        self.dx = a.work(backward=1, where=lambda n, w: routed(n, w) or shared(n, w))
        self.dx += self.shown("experts", backward=True) + self.shown("mlp", backward=True)
        self.experts_dw = a.work(backward=2, where=routed)
        self.back = a.work(backward=1, where=lambda n, w: rest(n, w) or w == "attention")
        self.back += a.work(backward=2, where=rest) + self.shown("attention", backward=True)
        self.left_over = a.work(backward=2, where=left)

    def _messages(self, half: str, *, backward: bool) -> list[tuple[str, float, float]]:
        return [
            (m.name, m.seconds, m.shown)
            for m in self.a.messages
            if m.backward == backward
            and m.name not in ("dispatch", "combine")
            and HALF.get(m.name.split("_")[0], "mlp") == half
        ]

    def shown(self, half: str, *, backward: bool) -> float:
        return sum(shown for _, _, shown in self._messages(half, backward=backward))

    def on_tier(self, tier: int, *halves: tuple[str, bool]) -> float:
        """Seconds of collectives over a tier of links: each counts on the outermost tier that its group spans."""
        return sum(
            seconds
            for half, backward in halves
            for name, seconds, _ in self._messages(half, backward=backward)
            if self._tier(name) == tier
        )

    def _tier(self, name: str) -> int:
        group = {"ring": "ring", "heads": "heads", "expert": "etp"}.get(name.split("_")[0], "tp")
        spans = self.a.machine.together(self.a.groups[group])
        grown = [t for t, span in enumerate(spans) if span > (spans[t - 1] if t else 1)]
        return grown[-1] if grown else 0


def paired(a: Account) -> Paired:
    """Play the pair twice: after another layer of the chunk, and as the chunk's first layer."""
    steps = _Steps(a)
    alone = a.forward.total + a.backward.total
    host = (a.issued[0] + a.issued[1]) * a.machine.issue_s
    wait = a.machine.sync_s if a.synchronises and "host_sync_free" not in a.run.on else 0.0

    def whole(device: float) -> float:
        return min(alone, max(max(device, host) + wait, a.forward.total, a.backward.total))

    after, first = _play(steps, steps.left_over), _play(steps, 0.0) + steps.left_over
    on_device = alone - a.forward.host - a.backward.host
    hidden = alone - whole(after)
    return Paired(
        hidden,
        min(hidden, max(0.0, on_device - after)),
        whole(first) - whole(after),
        steps.left_over,
        steps.left_over + max(0.0, steps.experts_dw - a.dispatch),
    )


def _play(steps: _Steps, filler: float) -> float:
    """When the pair ends; `filler`: weight gradients of the layer before."""
    a = steps.a
    tiers = range(len(a.machine.links))

    def loaded(end: float, exchanges: int, *halves: tuple[str, bool]) -> float:
        loads = [steps.on_tier(t, *halves) + exchanges * (a.on_tiers[t] if a.on_tiers else 0.0) for t in tiers]
        return max(end, *loads)

    # Combine of the backward beside attention, routing and shared experts of the forward.
    clock = loaded(max(filler + steps.ahead, a.combine), 1, ("attention", False), ("mlp", False))
    # The forward's dispatch leaves, the backward's dX runs; its dispatch leaves when both are done.
    here, there = steps.dx, a.dispatch
    returned = max(here, there) + a.dispatch
    here = max(here + steps.experts_dw, there) + steps.experts
    halves = (("mlp", True), ("experts", True), ("experts", False))
    clock += loaded(max(here, returned), 2, *halves)
    # Combine of the forward beside routing and attention of the backward.
    return clock + loaded(max(steps.back, a.combine), 1, ("attention", True))
