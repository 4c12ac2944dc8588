"""Layouts of layers over chunks: model order, templates to start from, and neighbours."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.stages.inner_problem import placed_layers
from cost_models.bounded_cache import kept
from cost_models.schedule import sizes_from

if TYPE_CHECKING:
    from autodeploy.costs.stages.inner_problem import InnerProblem
    from cost_models.arrays import Ints

    Places = tuple[tuple[int, int], ...]


def most_layers_per_chunk(problem: InnerProblem) -> int:
    """Layers that one part may hold: all of them, or an even share rounded up when chunks must be equal.

    Frameworks with equal chunks fill up with no-op layers, so a chunk may hold fewer.
    """
    if not problem.equal_chunks:
        return problem.total_layers
    return -(-problem.total_layers // len(problem.parts))


def to_layout(problem: InnerProblem, sizes: Ints) -> Ints:
    """Layers of every part [n, parts] -> layout [n, pp, vpp, classes]."""
    return placed_layers(problem.schedule, problem.pp, problem.vpp, problem.layers, sizes)


def to_sizes(problem: InnerProblem, layout: Ints) -> Ints:
    """Layers of every part [parts] of one layout [pp, vpp, classes]."""
    return np.array([layout[places[0]].sum() for places in problem.parts], dtype=np.int64)


def templates(problem: InnerProblem) -> Ints:
    """Sizes [n, parts] to start a search from: even, light at the front, at the end, at both, and balanced by work.

    Light is a part, or every part of a stage.
    """
    places, vpp = problem.parts, problem.vpp
    most, least = most_layers_per_chunk(problem), problem.min_layers_per_chunk
    shapes = _shapes(places, vpp, problem.total_layers, least, most)
    return with_shares(problem, shapes, _room_for_pieces(problem, len(places)))


def with_shares(problem: InnerProblem, sizes: Ints, weight: np.ndarray) -> Ints:
    """Layouts [n, parts] and the one in proportion to weights [parts], if any; chunks begin where they may."""
    row = rounded(weight, problem.total_layers, problem.min_layers_per_chunk, most_layers_per_chunk(problem))
    rows = sizes if row is None else np.concatenate([sizes, row[None]])
    if problem.chunk_starts:
        aligned = [sizes_from(problem.chunk_starts, each) for each in rows.tolist()]
        rows = np.array(aligned, dtype=np.int64).reshape(rows.shape)
    return distinct_rows(rows)


@kept(256)
def _shapes(places: tuple[Places, ...], vpp: int, total: int, least: int, most: int) -> Ints:
    """The templates that the layers' times do not change."""
    parts = len(places)
    mean = total / parts
    weights = [np.ones(parts)]
    for front, back in ((1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 1)):
        weight = np.full(parts, max(mean, 1e-9))
        weight[0] -= front
        weight[-1] -= back
        weights.append(np.maximum(weight, 0.0))
    if vpp > 1:
        stage = np.array([spots[0][0] for spots in places])
        ends = (stage == stage[0]) * 1.0, (stage == stage.max()) * 0.9
        weights += [np.maximum(mean - light, 0.0) for light in (*ends, ends[0] + ends[1])]
    weights += [np.linspace(1.0, slope, parts) for slope in (0.5, 2.0)]
    rows = [rounded(w, total, least, most) for w in weights]
    fitting = [row for row in rows if row is not None]
    return distinct_rows(np.array(fitting, dtype=np.int64).reshape(-1, parts))


def distinct_rows(rows: Ints) -> Ints:
    """Rows [n, parts] once each, in lexicographic order: `np.unique` of axis 0, which builds a record type first."""
    ordered = rows[np.lexsort(rows.T[::-1])]
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return np.asarray(ordered[first])


def even_sizes(problem: InnerProblem) -> Ints:
    """As many layers in every part [parts], the last ones one more."""
    parts = len(problem.parts)
    sizes = rounded(np.ones(parts), problem.total_layers, problem.min_layers_per_chunk, most_layers_per_chunk(problem))
    assert sizes is not None, "chunks hold all layers"
    return sizes


def uneven_sizes(problem: InnerProblem, seed: int, count: int = 48) -> Ints:
    """Random layouts [n, parts] whose stages hold about as much as each other, but in uneven chunks."""
    places = tuple(spots[0] for spots in problem.parts)
    limits = problem.total_layers, problem.min_layers_per_chunk, most_layers_per_chunk(problem)
    return _uneven(places, problem.pp, problem.vpp, limits, seed, count)


@kept(64)
def _uneven(places: Places, pp: int, vpp: int, limits: tuple[int, int, int], seed: int, count: int) -> Ints:
    """The same of parts at some places; limits : as `rounded` takes them."""
    rng = np.random.default_rng(seed)
    rows = []
    for sharpness in np.repeat([0.2, 1.0, 4.0], count // 3):
        share = rng.dirichlet(np.full(vpp, sharpness), size=pp)
        blend = rng.random() * np.linspace(0, 1, pp)[:, None]
        share = (1 - blend) * share[:1] + blend * share  # stages alike at the front, each its own at the end
        rows.append(rounded(np.array([share[place] for place in places]), *limits))
    fitting = [row for row in rows if row is not None]
    return np.array(fitting, dtype=np.int64).reshape(-1, len(places))


def _room_for_pieces(problem: InnerProblem, parts: int) -> np.ndarray:
    """Even work: a part that holds a fixed piece has fewer layers by the piece's share of a layer's time."""
    total = sum(n * (c.forward_s + c.backward_s) for n, c in zip(problem.layers, problem.classes, strict=True))
    layer = total / max(problem.total_layers, 1)
    extra = np.zeros(parts)
    where = {place: index for index, places in enumerate(problem.parts) for place in places}
    for piece in problem.pieces:
        extra[where[piece.stage, piece.chunk]] += (piece.cost.forward_s + piece.cost.backward_s) / max(layer, 1e-30)
    level = (problem.total_layers + extra.sum()) / parts
    return np.asarray(np.maximum(level - extra, 0.0))


def rounded(weight: np.ndarray, total: int, least: int, most: int) -> Ints | None:
    """Integers in [least, most] in proportion to weights that add up to total (largest remainders), None if none do."""
    if not least * len(weight) <= total <= most * len(weight):
        return None
    share = weight / weight.sum() * total if weight.sum() > 0 else np.full(len(weight), total / len(weight))
    sizes: Ints = np.clip(np.floor(share), least, most).astype(np.int64)
    left = total - int(sizes.sum())
    step, limit = (1, most) if left > 0 else (-1, least)
    share, counts = share.tolist(), sizes.tolist()
    # The last parts first among equals: an early part's layer has more micro batches in flight.
    queue = [(-step * (share[i] - size), -i) for i, size in enumerate(counts) if size != limit]
    heapq.heapify(queue)
    for _ in range(abs(left)):
        part = -heapq.heappop(queue)[1]
        counts[part] += step
        if counts[part] != limit:
            heapq.heappush(queue, (-step * (share[part] - counts[part]), -part))
    return np.array(counts, dtype=np.int64)


def neighbours(problem: InnerProblem, sizes: Ints) -> Ints:
    """Every layout [n, parts] that moves one layer from one part to another, or as many as chunks may begin with."""
    return moved(sizes, moves(problem, sizes))


def moves(problem: InnerProblem, sizes: Ints) -> Ints:
    """From which part to which how many layers may move [n, 3]."""
    give, take = np.nonzero(~np.eye(len(sizes), dtype=np.bool_))
    steps = np.unique(np.diff(problem.chunk_starts)) if problem.chunk_starts else np.ones(1, dtype=np.int64)
    near = np.concatenate([np.stack([give, take, np.full_like(give, step)], axis=1) for step in steps])
    give, take, layers = near.T
    least, most = problem.min_layers_per_chunk, most_layers_per_chunk(problem)
    near = near[(sizes[give] - layers >= least) & (sizes[take] + layers <= most)]
    if problem.chunk_starts:
        begins = np.cumsum(moved(sizes, near), axis=1)[:, :-1]
        near = near[np.isin(begins, problem.chunk_starts).all(axis=1)]
    return np.asarray(near)


def moved(sizes: Ints, moves: Ints) -> Ints:
    """The layouts [n, parts] after some moves [n, 3]."""
    layouts = np.repeat(sizes[None, :], len(moves), axis=0)
    rows = np.arange(len(moves))
    layouts[rows, moves[:, 0]] -= moves[:, 2]
    layouts[rows, moves[:, 1]] += moves[:, 2]
    return layouts
