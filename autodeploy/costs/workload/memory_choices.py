"""Memory choices, recomputed or swapped instead of kept: kinds of layers say which tensors a choice frees of theirs.

Source: MindSpeed and Megatron-LM recompute modules, MindSpeed moe-zero-memory, swap-attention and unpermute swap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from autodeploy.costs.workload.adapters import ADAPTER_CHOICES
from autodeploy.costs.workload.kinds import ATTENTION, LAYERS
from autodeploy.costs.workload.operators import Touches
from autodeploy.stack.memory_choices import MEMORY_CHOICES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.costs.workload.attention_types import AttentionCosts
    from autodeploy.costs.workload.mlp import LayerCosts
    from autodeploy.costs.workload.operators import Exchange
    from autodeploy.stack.memory_choices import MemoryRecord


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """One choice per layer. Two choices that free the same tensor exclude each other."""

    record: MemoryRecord
    frees: tuple[str, ...]
    replays: tuple[str, ...]
    replays_exchanges: tuple[str, ...]

    @property
    def name(self) -> str:
        """That of its record."""
        return self.record.name

    @property
    def kind(self) -> Literal["recompute", "swap"]:
        """Recomputed or swapped."""
        return "swap" if self.record.swap else "recompute"

    def replays_exchange(self, exchange: Exchange) -> bool:
        """Whether the backward pass repeats an exchange; where it repeats all, those of the forward pass."""
        every = EVERYTHING in self.replays_exchanges and bool(np.any(exchange.forward_count))
        return every or exchange.name in self.replays_exchanges


LAYER_INPUT = "attention_norm_in"
EVERYTHING = "*"  # all tensors but the layer's input; all operators and forward exchanges

# Of what every layer has: norms and its input.
_EVERY_LAYER: Final = {
    "full": Touches((EVERYTHING,), (EVERYTHING,), (EVERYTHING,)),
    "norm": Touches(("attention_norm_out", "mlp_norm_out"), ("attention_norm", "mlp_norm")),
    "swap_attention": Touches(("attention_norm_out",)),
    "swap_layer_input": Touches((LAYER_INPUT,)),
}
_KINDS: Final[tuple[AttentionCosts | LayerCosts, ...]] = (*ATTENTION.values(), *LAYERS.values())
_PARTS: Final = (_EVERY_LAYER, *(kind.choices for kind in _KINDS), ADAPTER_CHOICES)


def _choice(record: MemoryRecord) -> MemoryChoice:
    """A choice with what it touches of all kinds, each name where the last kind that has it puts it."""
    touches = [part[record.name] for part in _PARTS if record.name in part][::-1]
    frees, replays, exchanges = (
        tuple(dict.fromkeys(word for each in touches for word in each[n][::-1]))[::-1] for n in range(3)
    )
    return MemoryChoice(record, frees, replays, exchanges)


CHOICES: Final = {name: _choice(record) for name, record in MEMORY_CHOICES.items()}


def freed_by(choice: MemoryChoice, kept: Iterable[str]) -> list[str]:
    """Names of the kept tensors that a choice frees."""
    if EVERYTHING in choice.frees:
        return [name for name in kept if name != LAYER_INPUT]
    return [name for name in choice.frees if name in kept]


@dataclass(frozen=True, slots=True)
class Touched:
    """Tensors of a layer that a choice frees, and the operators that it runs again, in the layer's order."""

    choice: MemoryChoice
    freed: tuple[str, ...]
    replayed: tuple[str, ...]


@lru_cache(maxsize=256)
def touched_by_choices(kept: tuple[str, ...], operators: tuple[str, ...], *, shares: bool) -> tuple[Touched, ...]:
    """The choices that free something of a layer with these tensors and operators.

    shares : what recomputation by operator frees and replays in part is known.
    """
    touched = [
        Touched(
            choice,
            tuple(freed_by(choice, kept)),
            tuple(name for name in operators if EVERYTHING in choice.replays or name in choice.replays),
        )
        for choice in CHOICES.values()
        if shares or not choice.record.shares
    ]
    return tuple(each for each in touched if each.freed)


@cache
def compete(first: str, second: str) -> bool:
    """Whether two choices free a tensor in common: a layer uses at most one of them."""
    a, b = set(CHOICES[first].frees), set(CHOICES[second].frees)
    if EVERYTHING in a or EVERYTHING in b:
        return {LAYER_INPUT} not in (a, b)
    return bool(a & b)
