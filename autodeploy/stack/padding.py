"""Layers that do nothing: how they make chunks of a pipeline equally long, and where paired passes take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def noop_padding(chunks: Sequence[int], least: int = 0) -> tuple[int, list[int]]:
    """Layers with padding, and the indices of those that do nothing, so that all chunks are as long as the longest.

    least : layers of a chunk, where the longest has fewer.
    """
    longest = max(*chunks, least)
    noops = [chunk * longest + place for chunk, layers in enumerate(chunks) for place in range(layers, longest)]
    return longest * len(chunks), noops


def first_of_set(numbers: Iterable[int]) -> int:
    """The number that MindSpeed's validator looks at: the first that its set of them yields, whatever it is."""
    return next(iter(set(numbers)))


def pairs_take_padding(chunks: Sequence[int]) -> bool:
    """Whether --moe-fb-overlap takes the placement as padding: that number is of the last chunk.

    Its passes run layers that do nothing anywhere. Source: MindSpeed @028de58c fb_overlap.py, post_validate_args;
    fb_overlap/transformer_layer.py.
    """
    total, noops = noop_padding(chunks)
    return not noops or first_of_set(noops) >= total - max(chunks)
