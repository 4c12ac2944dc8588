"""Every layer count that a stage may hold in a plan faster than the incumbent: the columns of the master problem."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.bounds import least_work_s, stage_room
from autodeploy.solver.hidden_shares import most_hidden_s
from autodeploy.solver.layouts import most_layers_per_chunk, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.evaluation.inner_problem import Floats, InnerProblem, Ints
    from autodeploy.solver.stage_choices import Chunks, StageChoices


LOOKED = 20
"""Fillings looked at for each column that may be kept."""


@dataclass(frozen=True, eq=False)
class Column:
    """One way to fill one stage: its layers, its times (lower bounds unless exact) and its tail.

    extra_s is time that its options add somewhere in its chunks, at least.
    """

    stage: int
    chunks: Chunks
    forward_s: Floats
    backward_s: Floats
    hidden_pair_s: Floats
    extra_s: float
    tail_s: float


def columns(problem: InnerProblem, choices: StageChoices, upper_s: float, most: int) -> list[list[Column]] | None:
    """Columns [stage][...] that may be in a plan with a makespan below upper_s; None when there are more than most.

    None too where far more fillings than that had to be looked at.

    A stage alone needs M times its work; with one chunk a stage (and M > P) the path through all stages needs more:
    makespan >= X + (M - 1) x_p - (P - 1 - p) F_p, with X the whole pipeline's time for one micro batch.
    """
    fitting = (stage_room(problem).spare_bytes[:, 1:] >= 0.0).sum(axis=1)
    caps = [min(_cap(problem, stage, upper_s), int(fitting[stage])) for stage in range(problem.pp)]
    spare = sum(caps) - problem.total_layers
    if spare < 0:
        return [[] for _ in range(problem.pp)]
    found: list[list[Column]] = []
    whole = least_work_s(problem)
    for stage in range(problem.pp):
        mine: list[Column] = []
        fillings = _fillings(problem, stage, max(0, caps[stage] - spare), caps[stage])
        for looked, chunks in enumerate(fillings):
            if len(mine) > most or looked > LOOKED * max(most, 50):
                return None
            for column in _of(problem, choices, stage, chunks, upper_s, whole):
                if _lower_s(problem, column, whole) < upper_s:
                    mine.append(column)
        found.append(mine)
    return found if sum(map(len, found)) <= most else None


def _cap(problem: InnerProblem, stage: int, upper_s: float) -> int:
    """Most layers that a stage can hold by time alone."""
    m = problem.micro_batches
    own = sum(p.cost.forward_s + p.cost.backward_s for p in problem.pieces if p.stage == stage)
    # A pair hides at most half of what its two chunks could hide, so one layer hides at most once a micro batch.
    layer = min(
        (
            c.forward_s + c.backward_s - float(hidden)
            for c, n, hidden in zip(problem.classes, problem.layers, most_hidden_s(problem), strict=True)
            if n
        ),
        default=0.0,
    )
    most = most_layers_per_chunk(problem) * problem.vpp
    if layer <= 0.0:
        return min(most, problem.total_layers)
    return int(min(most, problem.total_layers, max(0.0, np.floor((upper_s / m - own) / layer + 1e-9))))


def _lower_s(problem: InnerProblem, column: Column, whole: float) -> float:
    m = problem.micro_batches
    work = float(column.forward_s.sum() + column.backward_s.sum()) + column.extra_s
    if problem.vpp == 1 and problem.schedule == "1f1b" and m > problem.pp:
        deeper = problem.pp - 1 - column.stage
        return max(m * work, whole + (m - 1) * work - deeper * float(column.forward_s.sum()))
    return m * (work - float(np.diagonal(column.hidden_pair_s).sum()) if column.hidden_pair_s.any() else work)


def _fillings(problem: InnerProblem, stage: int, least: int, most: int) -> Iterator[Chunks]:
    """Layers of each class in each chunk of a stage, between least and most in all."""
    low, high = problem.min_layers_per_chunk, most_layers_per_chunk(problem)
    place = {spot: part for part, spots in enumerate(parts_of(problem)) for spot in spots}
    per_chunk = []
    for chunk in range(problem.vpp):
        before = place[stage, chunk] * low
        per_chunk.append([mix for mix in _mixes(problem.layers, min(high, most), before) if sum(mix) >= low])
    sizes = [[sum(mix) for mix in mixes] for mixes in per_chunk]
    if not all(sizes):
        return
    fewest, largest = [0], [0]  # layers that the chunks from one on hold, from the last backwards
    for counts in reversed(sizes):
        fewest.append(fewest[-1] + min(counts))
        largest.append(largest[-1] + max(counts))

    def fill(chunk: int, held: int) -> Iterator[Chunks]:
        if chunk == problem.vpp:
            yield ()
            return
        after = problem.vpp - chunk - 1
        for mix, size in zip(per_chunk[chunk], sizes[chunk], strict=True):
            if held + size + fewest[after] <= most and held + size + largest[after] >= least:
                for rest in fill(chunk + 1, held + size):
                    yield (mix, *rest)

    yield from fill(0, 0)


def _mixes(layers: tuple[int, ...], most: int, before: int) -> Iterator[tuple[int, ...]]:
    """Consecutive layers of a chunk by class: a class between two others is there whole.

    before: layers that the parts ahead hold at least; a class that ends sooner can't be here.
    """
    ends = np.cumsum(layers)
    for mix in itertools.product(*(range(min(n, most) + 1) for n in layers)):
        used = [c for c, n in enumerate(mix) if n]
        inner = used[1:-1] if used else []
        gapless = (
            all(mix[c] == layers[c] for c in inner)
            and all(mix[c] or not layers[c] for c in range(used[0], used[-1] + 1))
            if used
            else True
        )
        if sum(mix) <= most and gapless and all(ends[c] > before for c in used):
            yield mix


def _of(
    problem: InnerProblem, choices: StageChoices, stage: int, chunks: Chunks, upper_s: float, whole: float
) -> list[Column]:
    tail = sum(n * c.tail_s for chunk in chunks for n, c in zip(chunk, problem.classes, strict=True))
    tail += sum(p.cost.tail_s for p in problem.pieces if p.stage == stage)
    quick = choices.bare(stage, chunks)
    if quick is None:
        return []
    bare = Column(stage, chunks, quick.base_forward_s, quick.base_backward_s, quick.hidden_pair_s, quick.extra_s, tail)
    if quick.exact and choices.mask is None:
        return [bare]
    if not _lower_s(problem, bare, whole) < upper_s:
        return []
    if choices.mask is None and problem.vpp > 1:
        return [bare]
    choice = choices.get(stage, chunks)
    if choice is None:
        return []
    if choice.exact:
        return [
            Column(stage, chunks, forward, backward, choice.hidden_pair_s, 0.0, tail)
            for forward, backward in zip(choice.forward_s, choice.backward_s, strict=True)
        ]
    return [replace(bare, extra_s=choice.extra_s)]


def layout_of(problem: InnerProblem, chosen: list[Column]) -> Ints:
    """The layout [pp, vpp, classes] of one column a stage."""
    return np.array([column.chunks for column in chosen], dtype=np.int64).reshape(
        problem.pp, problem.vpp, len(problem.classes)
    )
