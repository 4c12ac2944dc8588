"""Loops over the chunks of many layouts: a search runs through these more often than through all else.

layout : layers of each class in each chunk [n, pp, vpp, classes], whole or parts of some.

Costs come by row: one for each layout, or one for all.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cost_models.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cost_models.arrays import Floats, Ints


@compiled
def layer_totals(layout: Ints | Floats, of_layer: Floats) -> Floats:
    """Sum over the layers of every chunk [n, pp, vpp] of a number that each of a class has [n or 1, classes]."""
    n, pp, vpp, classes = layout.shape
    total = np.empty((n, pp, vpp))
    for row in range(n):
        of = row if len(of_layer) > 1 else 0
        for stage in range(pp):
            for chunk in range(vpp):
                total_of_chunk = 0.0
                for number in range(classes):
                    total_of_chunk += layout[row, stage, chunk, number] * of_layer[of, number]
                total[row, stage, chunk] = total_of_chunk
    return total


@compiled
def peaks(chunk_bytes: Floats, moments: Floats) -> Floats:
    """Most that a stage holds at its moments [n, pp]: in each chunk so much a micro batch in flight [n, pp, vpp].

    moments [pp, moments, vpp] : micro batches in flight.
    """
    n, pp, vpp = chunk_bytes.shape
    most = np.empty((n, pp))
    for row in range(n):
        for stage in range(pp):
            most[row, stage] = -np.inf
            for moment in range(moments.shape[1]):
                peak = 0.0
                for chunk in range(vpp):
                    peak += chunk_bytes[row, stage, chunk] * moments[stage, moment, chunk]
                most[row, stage] = max(most[row, stage], peak)
    return most


@compiled
def pass_times(
    layout: Ints | Floats,
    applied: Ints,
    layer_class: Ints,
    of_layers: tuple[Floats, Floats],
    of_pieces: tuple[Floats, Floats],
    places: Ints,
    of_options: tuple[Floats, Floats],
    blocking_s: Floats,
    link_bytes_per_s: Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Forward and backward of every chunk, what its swaps add to each, and their transfer one way [n, pp, vpp].

    applied [n, pp, options], layer_class [options]. of_layers, of_pieces : forward and backward of a layer [n or 1,
    classes] and of a piece [n or 1, pieces]. places : stage and chunk of every piece [pieces, 2]. of_options : what an
    option adds to the backward pass of a layer, and the bytes that it swaps [n or 1, options]. blocking_s, link [n or
    1]. Options fill a stage's chunks in order.
    """
    n, pp, vpp, classes = layout.shape
    forward, backward, swapped = np.empty((n, pp, vpp)), np.empty((n, pp, vpp)), np.zeros((n, pp, vpp))
    out, back = np.empty((n, pp, vpp)), np.empty((n, pp, vpp))
    extra_s, swap_bytes = of_options
    for row in range(n):
        of = row if len(blocking_s) > 1 else 0
        for stage in range(pp):
            for chunk in range(vpp):
                there = here = 0.0
                for number in range(classes):
                    there += layout[row, stage, chunk, number] * of_layers[0][of, number]
                    here += layout[row, stage, chunk, number] * of_layers[1][of, number]
                forward[row, stage, chunk], backward[row, stage, chunk] = there + blocking_s[of], here + blocking_s[of]
        for piece in range(len(places)):
            forward[row, places[piece, 0], places[piece, 1]] += of_pieces[0][of, piece]
            backward[row, places[piece, 0], places[piece, 1]] += of_pieces[1][of, piece]
        for stage in range(pp):
            for option in range(len(layer_class)):
                left, chunk = applied[row, stage, option], 0
                while left > 0 and chunk < vpp:
                    size = layout[row, stage, chunk, layer_class[option]]
                    backward[row, stage, chunk] += min(left, size) * extra_s[of, option]
                    swapped[row, stage, chunk] += min(left, size) * swap_bytes[of, option]
                    left -= size
                    chunk += 1
            for chunk in range(vpp):
                moved = swapped[row, stage, chunk] / link_bytes_per_s[of]
                swapped[row, stage, chunk] = moved
                out[row, stage, chunk] = max(moved - forward[row, stage, chunk], 0.0)
                back[row, stage, chunk] = max(moved - backward[row, stage, chunk], 0.0)
    return forward, backward, out, back, swapped


@compiled
def stage_totals(layout: Ints | Floats, of_layer: Floats, of_piece: Floats, places: Ints) -> Floats:
    """Sum over the layers and the pieces of every stage [n, pp] of a number of theirs [n or 1, classes or pieces].

    places : stage and chunk of every piece [pieces, 2].
    """
    n, pp, vpp, classes = layout.shape
    total, chunks = np.empty((n, pp)), np.empty((pp, vpp))
    for row in range(n):
        of = row if len(of_layer) > 1 else 0
        for stage in range(pp):
            for chunk in range(vpp):
                total_of_chunk = 0.0
                for number in range(classes):
                    total_of_chunk += layout[row, stage, chunk, number] * of_layer[of, number]
                chunks[stage, chunk] = total_of_chunk
        for piece in range(len(places)):
            chunks[places[piece, 0], places[piece, 1]] += of_piece[of, piece]
        for stage in range(pp):
            total_of_stage = chunks[stage, 0]
            for chunk in range(1, vpp):
                total_of_stage += chunks[stage, chunk]
            total[row, stage] = total_of_stage
    return total


@compiled
def held_bytes(
    layout: Ints | Floats,
    applied: Ints,
    layer_class: Ints,
    of_layer: Floats,
    of_piece: Floats,
    places: Ints,
    saved: Floats,
    moments: Floats,
) -> Floats:
    """Most bytes that the micro batches in flight of every stage hold at its moments [n, pp].

    of_layer [1, classes], of_piece [1, pieces], places [pieces, 2] : as of `stage_totals`, of one micro batch. saved :
    what an option frees of a layer, first chunks first [1, options]. moments [pp, moments, vpp] : micro batches.
    """
    n, pp, vpp, classes = layout.shape
    most, chunks = np.empty((n, pp)), np.empty((pp, vpp))
    for row in range(n):
        for stage in range(pp):
            for chunk in range(vpp):
                total = 0.0
                for number in range(classes):
                    total += layout[row, stage, chunk, number] * of_layer[0, number]
                chunks[stage, chunk] = total
        for piece in range(len(places)):
            chunks[places[piece, 0], places[piece, 1]] += of_piece[0, piece]
        for stage in range(pp):
            for option in range(len(layer_class)):
                left, chunk = applied[row, stage, option], 0
                while left > 0 and chunk < vpp:
                    size = layout[row, stage, chunk, layer_class[option]]
                    chunks[stage, chunk] += min(left, size) * -saved[0, option]
                    left -= size
                    chunk += 1
            most[row, stage] = -np.inf
            for moment in range(moments.shape[1]):
                peak = 0.0
                for chunk in range(vpp):
                    peak += chunks[stage, chunk] * moments[stage, moment, chunk]
                most[row, stage] = max(most[row, stage], peak)
    return most


@compiled
def covering_sends(layout: Ints | Floats, covering_s: Floats) -> Floats:
    """Weight gradients beside the sends of a forward and a backward chunk [n, pp, vpp, vpp].

    Those of the backward's last layer, the first of its chunk; none where the chunks are not equally long.
    covering_s [n or 1, classes] : of a layer.
    """
    n, pp, vpp, classes = layout.shape
    covering = np.zeros((n, pp, vpp, vpp))
    for row in range(n):
        of = row if len(covering_s) > 1 else 0
        for stage in range(pp):
            for chunk in range(vpp):
                first = 0
                while first < classes and layout[row, stage, chunk, first] <= 0:
                    first += 1
                if first < classes:
                    length = layout[row, stage, chunk].sum()
                    for other in range(vpp):
                        if layout[row, stage, other].sum() == length:
                            covering[row, stage, other, chunk] = covering_s[of, first]
    return covering


@compiled
def add_options(applied: Ints, layout: Ints, layer_class: Ints, amount: Floats, total: Floats) -> None:
    """Add to `total` [n, pp, vpp] what options cost or save in every chunk, first chunks first.

    applied [n, pp, options]; layout [n, pp, vpp, classes]; layer_class [options]; amount of a layer [n or 1, options].
    """
    n, pp, vpp = total.shape
    for row in range(n):
        of = row if len(amount) > 1 else 0
        for stage in range(pp):
            for option in range(amount.shape[1]):
                left, chunk = applied[row, stage, option], 0
                while left > 0 and chunk < vpp:
                    size = layout[row, stage, chunk, layer_class[option]]
                    total[row, stage, chunk] += min(left, size) * amount[of, option]
                    left -= size
                    chunk += 1


@compiled
def pair_chunks(layout: Floats, hidden_s: Floats, exchange_s: Floats, first_s: Floats) -> tuple[Floats, Floats]:
    """Seconds that pairs of chunks hide [n, pp, vpp, vpp], and of that expert communication.

    layout [n, pp, vpp, classes], whole layers or parts of some. Tables by class [i, j, n], or [i, j, 1] for all rows.
    """
    n, pp, vpp, classes = layout.shape
    hidden = np.zeros((n, pp, vpp, vpp))
    exchange = np.zeros((n, pp, vpp, vpp))
    for row in range(n):
        of = row if hidden_s.shape[2] > 1 else 0
        for stage in range(pp):
            # In loops: what numpy says of arrays whose shapes differ takes longer to compile than all of this.
            same = stage > 0
            for chunk in range(vpp):
                for number in range(classes):
                    same = same and layout[row, stage, chunk, number] == layout[row, stage - 1, chunk, number]
            if not same:
                _pair_stage(
                    layout[row, stage], hidden_s, exchange_s, first_s, of, hidden[row, stage], exchange[row, stage]
                )
                continue
            for ahead in range(vpp):
                for behind in range(vpp):
                    hidden[row, stage, ahead, behind] = hidden[row, stage - 1, ahead, behind]
                    exchange[row, stage, ahead, behind] = exchange[row, stage - 1, ahead, behind]
    return hidden, exchange


@compiled
def _pair_stage(
    layers: Floats, hidden_s: Floats, exchange_s: Floats, first_s: Floats, of: int, hidden: Floats, exchange: Floats
) -> None:
    """Write what pairs of a stage's chunks [vpp, classes] hide into `hidden` and `exchange` [vpp, vpp].

    The forward runs its layers first to last beside the backward's, last to first. Nothing is left over to fill the
    first pair; where the chunks have different numbers of layers, the layers of the backward do not prepare each other
    at all (MindSpeed fb_overlap `transformer_block.py`, unbalanced_block_graphs).
    """
    vpp, classes = layers.shape
    for ahead in range(vpp):
        for behind in range(vpp):
            forward, backward = layers[ahead], layers[behind]
            all_s, exchanged_s, first, every, start = 0.0, 0.0, 0.0, 0.0, 0.0
            for i in range(classes):
                if forward[i] == 0:
                    continue
                end, begun = start + forward[i], 0.0
                for j in range(classes - 1, -1, -1):
                    if backward[j] == 0:
                        continue
                    low, high = max(start, begun), min(end, begun + backward[j])
                    both = max(high - low, 0.0)
                    all_s += both * hidden_s[i, j, of]
                    exchanged_s += both * exchange_s[i, j, of]
                    every += both * first_s[i, j, of]
                    if low == 0.0:
                        first += min(both, 1.0) * first_s[i, j, of]
                    begun += backward[j]
                start = end
            lost = first if forward.sum() == backward.sum() else every
            hidden[ahead, behind] = all_s - lost
            exchange[ahead, behind] = max(exchanged_s - lost, 0.0)


@compiled
def beside_swaps(
    hidden_s: Floats, forward_s: Floats, backward_s: Floats, out_s: Floats, back_s: Floats, moved_s: Floats
) -> None:
    """Make of what pairs of chunks hide without swaps [n, pp, vpp, vpp] what they hide with them.

    Swapping out runs beside the pair, swapping in too, in the other direction of the link. All others [n, pp, vpp]:
    passes, what their swaps add to each when it runs alone, and the transfers themselves.
    """
    n, pp, vpp = forward_s.shape
    for row in range(n):
        for stage in range(pp):
            for ahead in range(vpp):
                for behind in range(vpp):
                    forward, backward = forward_s[row, stage, ahead], backward_s[row, stage, behind]
                    alone = (forward + out_s[row, stage, ahead]) + (backward + back_s[row, stage, behind])
                    bare = forward + backward - hidden_s[row, stage, ahead, behind]
                    pair = max(bare, moved_s[row, stage, ahead], moved_s[row, stage, behind])
                    hidden_s[row, stage, ahead, behind] = max(alone - pair, 0.0)


# What chunks add up.
@dataclass(frozen=True, eq=False)
class ChunkCosts:
    """Costs for one micro batch on each of k machines; of one machine (k = 1) they hold for every layout.

    layers : of a layer, by the name of a number of `LayerClass` [k, classes]. pieces : the same of every piece [k,
    pieces]. hidden_s, exchange_s, first_s : of `LayerPairs`, for pairs of classes [classes, classes, k].
    extra_backward_s, swap_bytes : of a layer that uses an option [k, options].
    host_link_bytes_per_s, p2p_s, blocking_p2p_s : [k].
    """

    layers: Mapping[str, Floats]
    pieces: Mapping[str, Floats]
    hidden_s: Floats
    exchange_s: Floats
    first_s: Floats
    extra_backward_s: Floats
    swap_bytes: Floats
    host_link_bytes_per_s: Floats
    p2p_s: Floats
    blocking_p2p_s: Floats


AXIS_OF_MACHINES: Final = {"hidden_s": 2, "exchange_s": 2, "first_s": 2}  # of all others 0


def joined_costs(parts: Sequence[ChunkCosts]) -> ChunkCosts:
    """Costs on the machines of several, one after the other; all are of the same layers, pieces and options."""
    if len(parts) == 1:
        return parts[0]

    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        if name in {"layers", "pieces"}:
            return {key: np.concatenate([each[key] for each in values]) for key in values[0]}
        return np.concatenate(values, axis=AXIS_OF_MACHINES.get(name, 0))

    return ChunkCosts(**{field.name: joined(field.name) for field in fields(ChunkCosts)})
