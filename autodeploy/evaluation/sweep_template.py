"""The template layout of the sweep: layers of a first, a middle and a last stage, and their times.

The template gives each middle stage k layers, the first stage fewer by the embedding's share, the last by the head's:
k is the smallest count for which all layers fit. With several chunks a stage the pieces take room in their own chunk
alone, for the chunks keep step with each other: a head that is longer than a chunk holds all stages up for its excess.

Arrays [n, 3] are stored column by column: n is the axis that is long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.strategies.candidates import Ints
    from autodeploy.workload.operators import Floats

FIRST, MIDDLE, LAST = 0, 1, 2


@dataclass(frozen=True)
class Template:
    """Layers of every class on the first, a middle and the last stage [n, 3]; of its layers, those of two chunks.

    embedding_chunk, head_chunk [n, 3]: layers of all classes in the chunk that is a stage's first and its last.
    """

    layers: list[Floats]
    embedding_chunk: Floats
    head_chunk: Floats


@dataclass(frozen=True)
class ChunkSeconds:
    """Seconds of one micro batch on each stage class [n, 3]: whole stage, its first chunk, its last chunk."""

    stage: Floats
    first: Floats
    last: Floats


def stages(*columns: Floats) -> Floats:
    """An array [n, 3] of its columns."""
    return np.stack(columns).T


def template_of(
    counts: Sequence[int], first_ends: Floats, last_ends: Floats, pp: Ints, vpp: int, *, balanced: bool = True
) -> Template:
    """Layers per stage class; where pp is 1 the last stage holds everything.

    Parameters
    ----------
    counts : layers of each class, in model order.
    first_ends, last_ends : time of the pieces on the first and on the last stage, in layers [n].
    balanced : False where pieces take no room.
    """
    total = float(sum(counts))
    stage_count = pp.astype(np.float64)
    zero = np.zeros(len(stage_count))
    # A piece takes the room of its own chunk, and every chunk of the template keeps a layer.
    room = zero
    if balanced:
        chunks = stage_count * vpp
        least = np.where(total >= chunks, 1.0, 0.0)
        room = np.maximum(np.floor(total / chunks) - least, 0.0) if vpp > 1 else np.full(len(chunks), total)
    first_less, last_less = np.minimum(np.round(first_ends), room), np.minimum(np.round(last_ends), room)
    middle = np.minimum(np.ceil((total + np.minimum(first_less + last_less, total)) / stage_count), total)
    last = _between(total - (stage_count - 1) * middle, np.maximum(middle - last_less, 0.0))
    first = _between(total - last - (stage_count - 2) * middle, middle)
    one = pp == 1
    if one.any():
        first, middle, last = np.where(one, 0.0, first), np.where(one, total, middle), np.where(one, total, last)
    sizes = stages(first, middle, last)
    # Model order: leading classes fill the first stages; the middle stage that counts is the one before the last.
    starts = stages(zero, np.maximum(first, total - last - middle), total - last)
    ends = starts + sizes
    layers, before = [], 0.0
    for count in counts:
        layers.append(np.maximum(np.minimum(ends, before + count) - np.maximum(starts, before), 0.0))
        before += count
    if vpp == 1:
        return Template(layers, sizes, sizes)
    share = sizes / vpp
    embedding_chunk, head_chunk = share.copy(order="K"), share.copy(order="K")
    embedding_chunk[:, FIRST] = _between(share[:, FIRST] - first_less, sizes[:, FIRST])
    with_less = _between(share[:, MIDDLE] - last_less, sizes[:, LAST])
    head_chunk[:, LAST] = np.where(last_less > 0, with_less, share[:, LAST])
    return Template(layers, embedding_chunk, head_chunk)


def _between(values: Floats, most: Floats) -> Floats:
    return np.minimum(np.maximum(values, 0.0), most)


def chunk_seconds(
    template: Template,
    layer_s: Sequence[Floats],
    first_piece_s: Floats,
    last_pieces_s: Floats,
    blocking: Floats,
    *,
    several: bool,
    folded: bool,
) -> ChunkSeconds:
    """Seconds of one micro batch in one pass.

    Parameters
    ----------
    layer_s, first_piece_s, last_pieces_s : of a layer of each class, and of the pieces at the model's ends [n].
    blocking : what a stage spends on sending [n].
    several : stages have several chunks. folded : the last pieces are on the first stage.
    """
    held = sum_over(template.layers, layer_s)
    pieces_at = FIRST if folded else LAST
    stage = held + blocking[:, None]
    stage[:, FIRST] += first_piece_s
    stage[:, pieces_at] += last_pieces_s
    if not several:
        return ChunkSeconds(stage, stage, stage)
    each = held / np.maximum(sum(template.layers), 1.0)
    first, last = each * template.embedding_chunk, each * template.head_chunk
    first[:, FIRST] += first_piece_s
    last[:, pieces_at] += last_pieces_s
    return ChunkSeconds(stage, first, last)


def sum_over(layers: Sequence[Floats], each: Sequence[Floats]) -> Floats:
    """Sum over classes of layers [n, 3] times a quantity of one layer [n]."""
    total = layers[0] * each[0][:, None]
    for count, quantity in zip(layers[1:], each[1:], strict=True):
        total += count * quantity[:, None]
    return total
