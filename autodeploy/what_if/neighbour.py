"""One change of a launched strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.specs.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One change. Changes of one kind replace each other.

    features : what it switches on beside the fields. places : layers, recomputation and swap are to be chosen anew.
    """

    name: str
    kind: str
    strategy: Strategy
    features: frozenset[str] = frozenset()
    places: bool = False
