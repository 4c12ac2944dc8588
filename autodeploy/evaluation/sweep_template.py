"""The template layout of the sweep: layers of a first, a middle and a last stage, and their times.

The template gives each middle stage k layers, the first stage fewer by the embedding's share, the last by the head's:
k is the smallest count for which all layers fit. With several chunks a stage the pieces take room in their own chunk
alone, for the chunks keep step with each other: a head that is longer than a chunk holds all stages up for its excess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.strategies.candidates import SCHEDULES, Candidates

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.stage_classes import StepClass, StepClasses
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


def column(values: Floats, n: int) -> Floats:
    """One entry per candidate."""
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (n,))


def each_piece(classes: StepClasses, candidates: Candidates) -> list[tuple[StepClass, Floats]]:
    """Pieces, and how many of each a stage class holds [n, 3].

    The embedding sits on the first stage, head and prediction modules on the last: dualpipev folds that onto the first.
    """
    first = np.broadcast_to(np.array([1.0, 0.0, 0.0]), (len(candidates), 3))
    folded = (candidates.schedule == SCHEDULES.index("dualpipev")) & (candidates.pp > 1)
    last = np.where(folded[:, None], first, np.array([0.0, 0.0, 1.0]))
    return [(classes.embedding, first), *((piece, last) for piece in classes.pieces[1:])]


def template_of(classes: StepClasses, candidates: Candidates, *, balanced: bool = True) -> Template:
    """Layers per stage class; where pp is 1 the last stage holds everything. Not `balanced`: pieces take no room."""
    n, total = len(candidates), float(sum(c.count for c in classes.layers))
    layer_s = sum(c.count * (c.cost.forward.total_s + c.cost.backward.total_s) for c in classes.layers) / total
    ends = np.zeros((n, 3))
    for piece, where in each_piece(classes, candidates):
        ends += where * column((piece.cost.forward.total_s + piece.cost.backward.total_s) / layer_s, n)[:, None]
    pp, vpp = candidates.pp.astype(np.float64), candidates.vpp.astype(np.float64)
    first_less, last_less = np.round(ends[:, FIRST]), np.round(ends[:, LAST])
    # A piece takes the room of its own chunk, and every chunk of the template keeps a layer.
    least = np.where(total >= pp * vpp, 1.0, 0.0)
    room = np.where(vpp > 1, np.maximum(np.floor(total / (pp * vpp)) - least, 0.0), total)
    room = room if balanced else np.zeros(n)
    first_less, last_less = np.minimum(first_less, room), np.minimum(last_less, room)
    middle = np.ceil((total + np.minimum(first_less + last_less, total)) / pp)
    middle = np.where(pp == 1, total, np.minimum(middle, total))
    last = np.where(pp == 1, total, np.clip(total - (pp - 1) * middle, 0.0, np.maximum(middle - last_less, 0.0)))
    first = np.where(pp == 1, 0.0, np.clip(total - last - (pp - 2) * middle, 0.0, middle))
    sizes = np.stack([first, middle, last], axis=1)
    # Model order: leading classes fill the first stages; the middle stage that counts is the one before the last.
    starts = np.stack([np.zeros(n), np.maximum(first, total - last - middle), total - last], axis=1)
    layers, before = [], 0.0
    for step in classes.layers:
        low, high = before, before + step.count
        layers.append(np.clip(np.minimum(starts + sizes, high) - np.maximum(starts, low), 0.0, None))
        before = high
    share = sizes / vpp[:, None]
    one = (vpp == 1)[:, None]
    fewer = np.stack([first_less, np.zeros(n), np.zeros(n)], axis=1)
    embedding_chunk = np.where(one, sizes, np.clip(share - fewer, 0.0, sizes))
    fewer = np.stack([np.zeros(n), np.zeros(n), last_less], axis=1)
    head_chunk = np.where(one, sizes, np.clip(share[:, [MIDDLE]] - fewer, 0.0, sizes))
    return Template(layers, embedding_chunk, np.where(fewer > 0, head_chunk, np.where(one, sizes, share)))


def chunk_seconds(
    classes: StepClasses, template: Template, candidates: Candidates, phase: str, context: Context, blocking: Floats
) -> ChunkSeconds:
    """Seconds of one micro batch; `blocking` [n] is what a stage spends on sending in each pass."""
    n, slow = len(candidates), context.slowest_device_factor - 1.0

    def seconds(step: StepClass) -> Floats:
        cost = getattr(step.cost, phase)
        return column(cost.total_s + slow * cost.compute_s, n)

    held = np.zeros((n, 3))
    for step, layers in zip(classes.layers, template.layers, strict=True):
        held += layers * seconds(step)[:, None]
    each = held / np.maximum(sum(template.layers), 1.0)
    several = (candidates.vpp > 1)[:, None]
    first, last, pieces = each * template.embedding_chunk, each * template.head_chunk, np.zeros((n, 3))
    for piece, where in each_piece(classes, candidates):
        own = where * seconds(piece)[:, None]
        pieces += own
        if piece is classes.embedding:
            first = first + own
        else:
            last = last + own
    stage = held + pieces + blocking[:, None]
    return ChunkSeconds(stage, np.where(several, first, stage), np.where(several, last, stage))
