"""Switching mechanisms of post-training off: what a strategy says of generation and its placement instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from autodeploy.specs.rl import RlStrategy
    from autodeploy.specs.strategy import Strategy


@dataclass(frozen=True)
class Mechanism:
    """A choice of post-training that can be taken back. used : by a strategy; off : what it says without."""

    used: Callable[[RlStrategy], bool]
    off: Callable[[RlStrategy], RlStrategy]


def _separated(layout: RlStrategy) -> RlStrategy:
    """Both on cards of their own, split as is best; nothing makes room for the other then."""
    return layout.model_copy(update={"placement": "separate", "generation_npus": None, "offload": ()})


def _in_turn(layout: RlStrategy) -> RlStrategy:
    """The same cards generate, and training waits for them."""
    return layout.model_copy(update={"placement": "separate", "staleness": 0})


def _whole_responses(layout: RlStrategy) -> RlStrategy:
    return layout.model_copy(update={"partial_rollout": False})


def _engine(layout: RlStrategy, **changes: str) -> RlStrategy:
    return layout.model_copy(update={"generation": layout.generation.model_copy(update=changes)})


# In the order in which they are added. One set of cards, and updates that generation is ahead, exclude each other.
MECHANISMS: dict[str, Mechanism] = {
    "fusion": Mechanism(lambda r: r.placement == "colocated", _separated),
    "staleness": Mechanism(lambda r: r.placement == "async" and r.staleness > 0, _in_turn),
    "partial_rollout": Mechanism(lambda r: r.partial_rollout, _whole_responses),
    "graph_mode": Mechanism(lambda r: r.generation.mode == "graph", lambda r: _engine(r, mode="eager")),
    "generation_precision": Mechanism(
        lambda r: r.generation.precision != "bf16", lambda r: _engine(r, precision="bf16")
    ),
}


def active_mechanisms(strategy: Strategy) -> tuple[str, ...]:
    """Mechanisms of post-training that a strategy uses; none of one of pre-training."""
    if strategy.rl is None:
        return ()
    return tuple(name for name, each in MECHANISMS.items() if each.used(strategy.rl))


def without_mechanisms(strategy: Strategy, names: Collection[str]) -> Strategy:
    """The strategy with these of its mechanisms switched off."""
    layout = strategy.rl
    for name, each in MECHANISMS.items():
        if layout is not None and name in names:
            layout = each.off(layout)
    return strategy.model_copy(update={"rl": layout})
