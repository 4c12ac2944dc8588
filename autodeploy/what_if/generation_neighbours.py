"""Launches of post-training that generate in another way, one change away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autodeploy.what_if.neighbour import Neighbour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.generation_layout import GenerationLayout
    from autodeploy.specs.rl import Offload, Placement, RlStrategy
    from autodeploy.specs.strategy import Strategy

FRACTIONS: Final = (0.6, 0.75, 0.9)  # of a device's memory, that an engine takes
OFFLOADS: Final[tuple[tuple[Offload, ...], ...]] = (
    (),
    ("optimizer",),
    ("optimizer", "gradients"),
    ("optimizer", "gradients", "parameters"),
)


def generation_neighbours(launched: Strategy, cards: int) -> Iterator[Neighbour]:
    """Every way of generating that is one change away, in a fixed order; none of a launch that only trains.

    Parameters
    ----------
    cards : that train and generate.
    """
    if launched.rl is None:
        return
    for name, kind, how in (*_engines(launched.rl), *_offloads(launched.rl), *_placements(launched.rl, cards)):
        yield Neighbour(name, kind, launched.model_copy(update={"rl": how}))


def _engines(how: RlStrategy) -> Iterator[tuple[str, str, RlStrategy]]:
    """Mode, degrees and memory of the engine on the same cards."""
    layout = how.generation

    def changed(name: str, **fields: Any) -> tuple[str, str, RlStrategy]:
        (kind,) = [each for each in fields if each not in ("dp", "ep")]
        return name, f"rl.generation.{kind}", how.model_copy(update={"generation": layout.model_copy(update=fields)})

    for mode in ("graph", "eager"):
        if mode != layout.mode:
            yield changed(f"rl.generation.mode:{mode}", mode=mode)
    for tp in (2 * layout.tp, *([layout.tp // 2] if layout.tp % 2 == 0 else [])):
        degrees = _with_tensor_ranks(layout, tp)
        if degrees is not None:
            yield changed(f"rl.generation.tp:{tp}", **degrees)
    for fraction in FRACTIONS:
        if fraction != layout.memory_fraction:
            yield changed(f"rl.generation.memory_fraction:{fraction:g}", memory_fraction=fraction)
    if layout.max_num_seqs is not None:
        for most in (2 * layout.max_num_seqs, layout.max_num_seqs // 2):
            if most:
                yield changed(f"rl.generation.max_num_seqs:{most}", max_num_seqs=most)


def _with_tensor_ranks(layout: GenerationLayout, tp: int) -> dict[str, int] | None:
    """Degrees with other tensor parallelism over the same ranks of a replica; None where they don't divide."""
    whole = layout.tp * layout.dp
    if layout.dp == 1 and layout.ep == 1:
        return {"tp": tp}
    if whole % tp:
        return None
    return {"tp": tp, "dp": whole // tp, "ep": whole if layout.ep > 1 else 1}


def _offloads(how: RlStrategy) -> Iterator[tuple[str, str, RlStrategy]]:
    """What leaves the device while it generates, where both share it."""
    if how.placement != "colocated":
        return
    for states in OFFLOADS:
        if set(states) != set(how.offload):
            yield f"rl.offload:{'+'.join(states) or 'none'}", "rl.offload", how.model_copy(update={"offload": states})


def _placements(how: RlStrategy, cards: int) -> Iterator[tuple[str, str, RlStrategy]]:
    """Generation elsewhere: on the same cards, on half of them in turn, or beside training; other shares of cards."""
    shares = {"colocated": None, "separate": cards // 2, "async": cards // 2}
    names: tuple[Placement, ...] = ("colocated", "separate", "async")
    for placement in names:
        share = how.generation_npus or shares[placement]
        if placement == how.placement or (placement != "colocated" and not share):
            continue
        fields: dict[str, Any] = {
            "placement": placement,
            "generation_npus": None if placement == "colocated" else share,
            "staleness": int(placement == "async"),
            "offload": (),
        }
        yield f"rl.placement:{placement}", "rl.placement", how.model_copy(update=fields)
    if how.generation_npus is not None:
        for share in (how.generation_npus // 2, how.generation_npus + (cards - how.generation_npus) // 2):
            if 0 < share < cards and share != how.generation_npus:
                yield (
                    f"rl.generation_npus:{share}",
                    "rl.generation_npus",
                    how.model_copy(update={"generation_npus": share}),
                )
