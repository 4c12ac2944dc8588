"""Every layer count that a stage may hold in a plan faster than the incumbent: the columns of the master problem."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.layouts import most_layers_per_chunk, parts_of
from autodeploy.solver.problem_bound import batch_of, room_for_layers
from autodeploy.solver.stage_bound import steady_s, whole_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.evaluation.inner_problem import Floats, InnerProblem, Ints
    from autodeploy.solver.stage_choices import Chunks, StageChoices, StageTimes


LOOKED = 20
"""Fillings looked at for each column that may be kept."""


@dataclass(frozen=True, eq=False)
class Column:
    """One way to fill one stage: its layers, the times that its passes take at least, and its tail.

    extra_s is time that its options add somewhere in its chunks besides, at least.
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

    None too where far more fillings than that had to be looked at. What a stage alone needs is that of `stage_bound`.
    """
    caps: list[int] = room_for_layers(problem, upper_s).tolist()
    spare = sum(caps) - problem.total_layers
    if spare < 0:
        return [[] for _ in range(problem.pp)]
    found: list[list[Column]] = []
    whole = float(whole_s(batch_of(problem))[0])
    for stage in range(problem.pp):
        mine: list[Column] = []
        fillings = _fillings(problem, stage, max(0, caps[stage] - spare), caps[stage])
        for looked, chunks in enumerate(fillings):
            if len(mine) > most or looked > LOOKED * max(most, 50):
                return None
            column = _of(problem, stage, chunks, choices.bare(stage, chunks))
            if column is not None and _lower_s(problem, column, whole) < upper_s:
                mine.append(column)
        found.append(mine)
    found = _in_company(problem, found)
    if problem.vpp == 1:
        tight = [[_of(problem, c.stage, c.chunks, choices.least(c.stage, c.chunks)) for c in mine] for mine in found]
        found = [[c for c in mine if c is not None and _lower_s(problem, c, whole) < upper_s] for mine in tight]
        found = _in_company(problem, found)
    return found if sum(map(len, found)) <= most else None


def _in_company(problem: InnerProblem, found: list[list[Column]]) -> list[list[Column]]:
    """Columns that leave the other stages no more layers than those can hold, and no fewer than they must.

    With one chunk a stage also: of layers that follow each other from where the stages before can end.
    """
    if not all(found):
        return [[] for _ in found]
    held = [[sum(map(sum, column.chunks)) for column in mine] for mine in found]
    most, least = [max(sizes) for sizes in held], [min(sizes) for sizes in held]
    until = _layers_until(problem)
    kept: list[list[Column]] = []
    for stage, (mine, sizes) in enumerate(zip(found, held, strict=True)):
        some: list[Column] = []
        for column, size in zip(mine, sizes, strict=True):
            # Where its layers start and end, were the other stages a block before and one after it.
            first = max(sum(least[:stage]), problem.total_layers - size - sum(most[stage + 1 :]))
            last = min(sum(most[:stage]), problem.total_layers - size - sum(least[stage + 1 :]))
            between = until[first + size : last + size + 1] - until[first : last + 1] if first <= last else until[:0]
            if len(between) and (problem.vpp > 1 or (between == column.chunks[0]).all(axis=1).any()):
                some.append(column)
        kept.append(some)
    return kept


def _layers_until(problem: InnerProblem) -> Ints:
    """Layers of each class among the first 0, 1, 2, ... layers of the model [layers + 1, classes]."""
    each = np.eye(len(problem.layers), dtype=np.int64)
    return np.cumsum(np.concatenate([0 * each[:1], each.repeat(problem.layers, axis=0)]), axis=0)


def _lower_s(problem: InnerProblem, column: Column, whole: float) -> float:
    m = problem.micro_batches
    work = float(column.forward_s.sum() + column.backward_s.sum()) + column.extra_s
    if problem.kind.alternates and m > problem.pp:
        deeper = problem.pp - 1 - column.stage
        # What its options add to either pass lowers this most in the forward pass.
        return max(m * work, whole + float(steady_s(work, float(column.forward_s.sum()) + column.extra_s, deeper, m)))
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


def _of(problem: InnerProblem, stage: int, chunks: Chunks, times: StageTimes | None) -> Column | None:
    """The column of a filling that takes `times`; None when no options make it fit."""
    if times is None:
        return None
    tail = sum(n * c.tail_s for chunk in chunks for n, c in zip(chunk, problem.classes, strict=True))
    tail += sum(p.cost.tail_s for p in problem.pieces if p.stage == stage)
    return Column(stage, chunks, times.forward_s, times.backward_s, times.hidden_pair_s, times.extra_s, tail)


def layout_of(problem: InnerProblem, chosen: list[Column]) -> Ints:
    """The layout [pp, vpp, classes] of one column a stage."""
    return np.array([column.chunks for column in chosen], dtype=np.int64).reshape(
        problem.pp, problem.vpp, len(problem.classes)
    )
