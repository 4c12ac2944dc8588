"""Paths of schedules, and what layers in each chunk add to them.

For a fixed order of operations every path is linear in the chunk times, so paths found for one candidate hold for all
candidates of the same schedule and shape: they are kept and used again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.stages.inner_problem import chunk_totals, layer_pairs
from autodeploy.costs.stages.step_classes import one_sided_shares, tight_shares
from autodeploy.search.choices.layouts import even_sizes, to_layout, uneven_sizes
from cost_models.arrays import product
from cost_models.schedule import OperationOrder, Sends, critical_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.stages.inner_problem import InnerProblem
    from cost_models.arrays import Floats
    from cost_models.schedule import SchedulePath


MOST_PATHS: Final = 96
"""Paths of a shape that are kept: those that some bound rested on, the latest ones."""
STAGE_SLOWDOWN: Final = 1.25
"""A stage made slower by this factor attracts the longest path: a shape starts with the path of each stage."""


@lru_cache(maxsize=64)
def _shares(hidden: tuple[tuple[float, ...], ...], layers: tuple[int, ...]) -> tuple[tuple[Floats, Floats], ...]:
    table = np.array(hidden)
    return tuple((s.forward_s, s.backward_s) for s in (tight_shares(table, layers), *one_sided_shares(table)))


def pair_overlap_bounds(problem: InnerProblem) -> tuple[tuple[Floats, Floats], ...]:
    """Seconds that a layer hides in a paired forward and in a paired backward ([classes], [classes]), at most.

    Each entry bounds every pair of chunks; the first bounds all layers together best. None where nothing is paired.
    """
    if not problem.pairs:
        return ()
    hidden = layer_pairs(problem).hidden_s
    if not (hidden > 0.0).any():
        return ()
    return _shares(tuple(map(tuple, hidden.tolist())), problem.layers)


@dataclass(eq=False)
class PathLibrary:
    """Paths by schedule and shape."""

    paths: dict[tuple[str, int, int, int], dict[bytes, SchedulePath]] = field(default_factory=dict)

    def of(self, problem: InnerProblem) -> dict[bytes, SchedulePath]:
        """Paths of a problem's shape, the oldest first; a new shape starts with those of its template layouts."""
        shape = (problem.schedule, problem.pp, problem.vpp, problem.micro_batches)
        if shape not in self.paths:
            self.paths[shape] = {}
            self.add(self.paths[shape], _paced(problem, first_layout(problem)))
            if problem.vpp > 1 and len(uneven := uneven_sizes(problem, seed=0)):
                layout = to_layout(problem, uneven).astype(np.float64)
                times = chunk_times_s(problem, layout, np.zeros(layout.shape[:3]))
                self.add(self.paths[shape], critical_paths(problem.order, *times))
        return self.paths[shape]

    def add(self, known: dict[bytes, SchedulePath], paths: list[SchedulePath]) -> int:
        """Keep new paths, and how many they are."""
        before = len(known)
        for path in paths:
            known.setdefault(path_key(path), path)
        added = len(known) - before
        for key in list(known)[: max(0, len(known) - MOST_PATHS)]:
            del known[key]
        return added


def path_key(path: SchedulePath) -> bytes:
    """Equal paths have equal keys."""
    counts = (path.forward, path.backward, path.pairs, path.covered, path.split)
    return b"".join((*(each.tobytes() for each in counts), str(path.edges).encode()))


def first_layout(problem: InnerProblem) -> Floats:
    """The even layout [pp, vpp, classes]."""
    return np.asarray(to_layout(problem, even_sizes(problem)[None])[0].astype(np.float64))


def edges_s(problem: InnerProblem, path: SchedulePath) -> float:
    """Seconds that a path spends between devices, at least: no layer covers more of a send than the best one."""
    covered = min(problem.p2p_s, max(c.covering_s for c in problem.classes))
    return float(path.edges * problem.p2p_s - path.covered.sum() * covered)


def cut_costs_s(problem: InnerProblem, cuts: Sequence[SchedulePath]) -> tuple[Floats, Floats]:
    """Seconds that one more layer of a class in a chunk adds to each path [n, pp, vpp, classes] if no pair hides any,
    at least, and the rest [n].
    """
    passes = ("forward", "backward", "split")
    shape = (len(cuts), problem.pp, problem.vpp)
    forward, backward, split = (np.reshape([getattr(cut, name) for cut in cuts], shape) for name in passes)
    forward_s, backward_s, split_s = (np.array([getattr(c, f"{name}_s") for c in problem.classes]) for name in passes)
    layer = forward[..., None] * forward_s + backward[..., None] * backward_s - split[..., None] * split_s
    fixed = np.array([edges_s(problem, cut) for cut in cuts])
    fixed += (forward + backward).sum(axis=(1, 2)) * problem.blocking_p2p_s
    for piece in problem.pieces:
        place = (slice(None), piece.stage, piece.chunk)
        fixed += forward[place] * piece.cost.forward_s + backward[place] * piece.cost.backward_s
        fixed -= split[place] * piece.cost.split_s
    return layer, fixed


def _paced(problem: InnerProblem, layout: Floats) -> list[SchedulePath]:
    """The longest path of a layout as it is, and with each stage slowed."""
    times = chunk_times_s(problem, layout[None], np.zeros((1, problem.pp, problem.vpp)))
    return [*critical_paths(problem.order, *times), *paced_paths(problem.order, *times)]


def paced_paths(
    order: OperationOrder, forward_s: Floats, backward_s: Floats, hidden_pair_s: Floats, sends: Sends
) -> list[SchedulePath]:
    """The longest path of one plan with each stage slowed in turn; times [1, pp, ...]."""
    pp = forward_s.shape[1]
    slow = (1.0 + (STAGE_SLOWDOWN - 1.0) * np.eye(pp))[:, :, None]
    hidden = np.broadcast_to(hidden_pair_s, (pp, *hidden_pair_s.shape[1:]))
    return critical_paths(order, forward_s * slow, backward_s * slow, hidden, sends)


def chunk_times_s(problem: InnerProblem, layout: Floats, extra_s: Floats) -> tuple[Floats, Floats, Floats, Sends]:
    """Chunk times as the linear programme sees them: what pairs hide is the least of its ceilings."""
    forward = chunk_totals(problem, "forward_s", layout, problem.blocking_p2p_s)
    backward = chunk_totals(problem, "backward_s", layout, problem.blocking_p2p_s + extra_s)
    split = chunk_totals(problem, "split_s", layout)
    hidden = np.zeros((*forward.shape, problem.vpp))
    if shares := pair_overlap_bounds(problem):
        ceilings = [product(layout, u)[..., :, None] + product(layout, v)[..., None, :] for u, v in shares]
        hidden = np.minimum.reduce(ceilings)
    covered = min(problem.p2p_s, max(c.covering_s for c in problem.classes))
    return forward, backward, hidden, Sends(problem.p2p_s, np.full(hidden.shape, covered), split)
