"""The template layout of the sweep: layers of a first, a middle and a last stage, and their times.

The template gives each middle stage k layers, the first stage fewer by the embedding's share, the last by the head's:
k is the smallest count for which all layers fit. With several chunks a stage the pieces take room in their own chunk
alone, for the chunks keep step with each other: a head that is longer than a chunk holds all stages up for its excess.

Arrays [n, 3] are stored column by column: n is the axis that is long.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.stages.inner_problem import by_class
from autodeploy.strategies.tree import distinct
from cost_models.schedule import FIRST, LAST, MIDDLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_models.arrays import Floats, Ints


@dataclass(frozen=True)
class Template:
    """Layers of every class on the first, a middle and the last stage [t, 3]; of its layers, those of two chunks.

    A batch has few distinct templates, t, and `which` [n] is the one of each row. embedding_chunk, head_chunk [t, 3]:
    layers of all classes in the chunk that is a stage's first and its last.
    """

    layers: list[Floats]
    embedding_chunk: Floats
    head_chunk: Floats
    which: Ints

    def rows(self, values: Floats) -> Floats:
        """Values [t] or [t, 3] of the templates, for every row."""
        return values.T.take(self.which, axis=-1).T

    @cached_property
    def held(self) -> list[list[Floats | None]]:
        """Layers [n] of each class on each class of stages; None where no template has any."""
        return [[self.rows(on) if on.any() else None for on in layers.T] for layers in self.layers]

    def sum_over(self, each: Sequence[Floats]) -> Floats:
        """Sum over classes of layers times a quantity of one layer [n]: [n, 3]."""
        total = np.empty((3, len(self.which)))
        for stage_class, into in enumerate(total):
            started = False
            for counts_of_class, quantity in zip(self.held, each, strict=True):
                count = counts_of_class[stage_class]
                if count is None or (len(quantity) == 1 and not quantity[0]):
                    continue
                if started:
                    into += count * quantity
                else:
                    np.multiply(count, quantity, out=into)
                started = True
            if not started:
                into[:] = 0.0
        return total.T


@dataclass(frozen=True)
class ChunkSeconds:
    """Seconds of one micro batch on each stage class [n, 3]: whole stage, its first chunk, its last chunk."""

    stage: Floats
    first: Floats
    last: Floats


def of_class(values: Floats, stage_class: Ints) -> Floats:
    """Of an array [n, 3] the entry of each row's class of stages [n].

    Looked up, for a choice entry by entry costs several times as much where it is hard to predict.
    """
    n = len(stage_class)
    return values.T.ravel().take(stage_class * n + np.arange(n))


def template_of(
    counts: Sequence[int], first_ends: Floats, last_ends: Floats, pp: Ints | Floats, vpp: int, *, balanced: bool = True
) -> Template:
    """Layers per stage class; where pp is 1 the last stage holds everything.

    Parameters
    ----------
    counts : layers of each class, in model order.
    first_ends, last_ends : time of the pieces on the first and on the last stage, in layers [n].
    balanced : False where pieces take no room.
    """
    total = float(sum(counts))
    # What tells templates apart: pieces longer than the model take all of its room.
    pieces = (np.minimum(np.round(each), total) for each in (first_ends, last_ends))
    rows, which = distinct([each.astype(np.int64) for each in (pp, *pieces)])
    stage_count, first_ends, last_ends = pp[rows].astype(np.float64), first_ends[rows], last_ends[rows]
    # A piece takes the room of its own chunk, and every chunk of the template keeps a layer.
    room = np.zeros(len(rows))
    if balanced:
        chunks = stage_count * vpp
        least = np.where(total >= chunks, 1.0, 0.0)
        room = np.maximum(np.floor(total / chunks) - least, 0.0) if vpp > 1 else np.full(len(chunks), total)
    first_less, last_less = np.minimum(np.round(first_ends), room), np.minimum(np.round(last_ends), room)
    middle = np.minimum(np.ceil((total + np.minimum(first_less + last_less, total)) / stage_count), total)
    last = _between(total - (stage_count - 1) * middle, np.maximum(middle - last_less, 0.0))
    first = _between(total - last - (stage_count - 2) * middle, middle)
    one = stage_count == 1.0
    if one.any():
        first, middle, last = np.where(one, 0.0, first), np.where(one, total, middle), np.where(one, total, last)
    sizes = np.stack([first, middle, last]).T
    # Model order: leading classes fill the first stages; the middle stage that counts is the one before the last.
    starts = np.stack([np.zeros_like(first), np.maximum(first, total - last - middle), total - last]).T
    layers = [*np.moveaxis(by_class(starts, starts + sizes, counts), -1, 0)]
    if vpp == 1:
        return Template(layers, sizes, sizes, which)
    share = sizes / vpp
    embedding_chunk, head_chunk = share.copy(order="K"), share.copy(order="K")
    embedding_chunk[:, FIRST] = _between(share[:, FIRST] - first_less, sizes[:, FIRST])
    with_less = _between(share[:, MIDDLE] - last_less, sizes[:, LAST])
    head_chunk[:, LAST] = np.where(last_less > 0, with_less, share[:, LAST])
    return Template(layers, embedding_chunk, head_chunk, which)


def _between(values: Floats, most: Floats) -> Floats:
    return np.minimum(np.maximum(values, 0.0), most)
