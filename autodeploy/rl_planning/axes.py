"""The values that a search over generation tries of each axis, under what the spec pins, allows and forbids."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from autodeploy.specs.rl_axes import NOTHING_OFFLOADED, offloaded
from autodeploy.stack.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.rl import Offload, Placement
    from autodeploy.specs.rl_axes import RlAxis
    from autodeploy.specs.search import SearchSpec

T = TypeVar("T", bound=float | str)

PLACEMENTS: tuple[Placement, ...] = ("colocated", "separate", "async")
OFFLOADS = (NOTHING_OFFLOADED, "optimizer", "optimizer+gradients", "optimizer+gradients+parameters")
STALENESS = (1,)  # Updates that an asynchronous search is behind unless told: accuracy is the price of more.
FRACTIONS = (0.6, 0.75, 0.9)  # of a device's memory, that an engine takes


def values_left(search: SearchSpec, axis: RlAxis, values: Sequence[T]) -> list[T]:
    """The values of an axis under the spec; one that is asked for is looked at wherever it lies."""
    left: list[T] = list(values)
    if axis in search.fix:
        left = [search.fix[axis]]  # type: ignore[list-item]
    if axis in search.allow:
        allowed = search.allow[axis]
        left = [v for v in left if v in allowed] or list(allowed)  # type: ignore[arg-type]
    if axis in search.forbid:
        forbidden = search.forbid[axis]
        left = [v for v in left if v not in forbidden]
    return left


def placements(search: SearchSpec) -> list[Placement]:
    """Where both may run: what the target sets up, and what pinned axes leave room for."""
    launchable: Sequence[Placement] = PLACEMENTS if FRAMEWORKS[search.target].generates_beside else PLACEMENTS[:1]
    allowed = [each for each in values_left(search, "rl.placement", launchable) if each in launchable]
    if search.fix.get("rl.generation_npus") is not None:
        allowed = [each for each in allowed if each != "colocated"]
    if search.fix.get("rl.staleness"):
        allowed = [each for each in allowed if each == "async"]
    return allowed


def offloads(search: SearchSpec) -> list[tuple[Offload, ...]]:
    """What may leave the device while it generates."""
    words = values_left(search, "rl.offload", OFFLOADS)
    return [offloaded(word) for word in words]


def stalenesses(search: SearchSpec, placement: Placement) -> list[int]:
    """Updates that generation may be ahead, by placement; 0 is that of `separate`."""
    if placement != "async":
        return [0]
    return [int(value) for value in values_left(search, "rl.staleness", STALENESS)]


def partials(search: SearchSpec) -> list[bool]:
    """Whether unfinished responses go on in the next step: only where asked for, since two policies write them then."""
    return [bool(value) for value in values_left(search, "rl.partial_rollout", [False])]
