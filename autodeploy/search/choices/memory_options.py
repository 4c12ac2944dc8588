"""Memory choices that may be used, those that compete, and legal counts and sets of options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.stages.inner_problem import InnerProblem, MemoryOption, fill_chunks, over_chunks
from autodeploy.space.rules import launchable
from autodeploy.stack.memory_choices import MEMORY_CHOICES, WHOLE
from cost_models.bounded_cache import kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Ints

    Graph = Mapping[int, frozenset[int]] | Sequence[frozenset[int]]
    """The neighbours of each number."""


def memory_choices(candidate: Candidates, context: Context) -> frozenset[str]:
    """Memory choices a candidate may use: launchable, and not switched off."""
    return launchable(candidate, context.facts, context.target) & possible_choices(context)


def menus(choices: frozenset[str]) -> tuple[frozenset[str], ...]:
    """Menus of a candidate's problems: all, and all but whole layers, which take the workspace of one more."""
    return (choices, choices - {WHOLE}) if WHOLE in choices else (choices,)


def possible_choices(context: Context) -> frozenset[str]:
    """Memory choices that are not switched off, whatever the candidate."""
    return frozenset(name for name, each in MEMORY_CHOICES.items() if each.switch in {"", *context.mechanisms})


@lru_cache(maxsize=512)
def conflicts(options: tuple[MemoryOption, ...]) -> tuple[frozenset[int], ...]:
    """The options that each option competes with: same layer class, and one names the other in `excludes`."""
    return tuple(
        frozenset(
            j
            for j, b in enumerate(options)
            if i != j and a.layer_class == b.layer_class and (b.name in a.excludes or a.name in b.excludes)
        )
        for i, a in enumerate(options)
    )


@lru_cache(maxsize=512)
def cliques(options: tuple[MemoryOption, ...]) -> tuple[tuple[int, ...], ...]:
    """Maximal sets of options that all compete with each other (two or more)."""
    maximal = maximal_cliques(frozenset(range(len(options))), conflicts(options))
    return tuple(clique for clique in maximal if len(clique) > 1)


def legal_options(problem: InnerProblem, layout: Ints, applied: Ints) -> np.ndarray:
    """Whether option counts [n, pp, options] fit their layers and their rivals [n].

    A count is at most the stage's layers of its class; options that all compete with each other share the layers of
    every chunk. With uniform options an option's name is on for all its layers or for none, the same on every stage.
    """
    totals = over_chunks(layout)
    legal = (applied >= 0).all(axis=(1, 2))
    classes = problem.classes_of_options
    legal &= (applied <= totals[..., classes]).all(axis=(1, 2))
    filled = fill_chunks(applied.swapaxes(1, 2), layout[..., classes].transpose(0, 3, 1, 2))  # [n, options, pp, vpp]
    for clique in cliques(problem.options):
        used = filled[:, list(clique)].sum(axis=1)
        legal &= (used <= layout[..., problem.options[clique[0]].layer_class]).all(axis=(1, 2))
    if problem.uniform_options:
        for name in {option.name for option in problem.options}:
            members = [i for i, option in enumerate(problem.options) if option.name == name]
            count = np.stack([applied[:, :, i] for i in members], axis=-1)
            whole = np.stack([totals[..., problem.options[i].layer_class] for i in members], axis=-1)
            legal &= (count == 0).all(axis=(1, 2)) | (count == whole).all(axis=(1, 2))
    return np.asarray(legal)


def uniform_choices(problem: InnerProblem) -> Ints:
    """Sets of option names that may be on together, as masks over options [sets, options], fewest first."""
    return _uniform_choices(tuple((option.name, option.layer_class, option.excludes) for option in problem.options))


@kept(128)
def _uniform_choices(labels: tuple[tuple[str, int, tuple[str, ...]], ...]) -> Ints:
    """`uniform_choices` of options by name, class and names of rivals; what they free and cost does not matter."""
    options = tuple(MemoryOption(name, "recompute", number, 0.0, excludes=others) for name, number, others in labels)
    clash = {(options[i].name, options[j].name) for i, rivals in enumerate(conflicts(options)) for j in rivals}
    sets: list[tuple[str, ...]] = [()]
    for name in sorted({option.name for option in options}):
        sets += [(*names, name) for names in sets if not any((name, other) in clash for other in names)]
    masks = np.array([[option.name in names for option in options] for names in sets], dtype=np.int64)
    return masks[np.argsort(masks.sum(axis=1), kind="stable")]


@dataclass(frozen=True, slots=True)
class Rivals:
    """Choices that compete, directly or through others: a layer uses one set of each part, or what is instead of all.

    parts : of each the largest sets that can be used together; choices of different parts never compete.
    """

    parts: tuple[tuple[tuple[int, ...], ...], ...]
    instead: int | None


def rivals(count: int, compete: Callable[[int, int], bool]) -> tuple[Rivals, ...]:
    """Choices 0 .. count - 1 in groups; choices of different groups never compete."""
    numbers = frozenset(range(count))
    graph = [frozenset(b for b in numbers if b != a and compete(a, b)) for a in range(count)]
    groups = []
    for group in connected(numbers, graph):
        # Recomputing the whole layer competes with all that it would save.
        whole = next((a for a in sorted(group) if len(group) > 1 and graph[a] >= group - {a}), None)
        parts = connected(group - {whole}, graph)
        friends = [{a: part - graph[a] - {a} for a in part} for part in parts]
        sets = (tuple(maximal_cliques(part, each)) for part, each in zip(parts, friends, strict=True))
        groups.append(Rivals(tuple(sets), whole))
    return tuple(groups)


def connected(numbers: frozenset[int], graph: Graph) -> list[frozenset[int]]:
    """Numbers in groups of neighbours, direct or through others of them; in the order of their least."""
    left, groups = set(numbers), []
    while left:
        group: set[int] = set()
        grown = {min(left)}
        while grown:
            group |= grown
            grown = (set().union(*(graph[i] for i in grown)) & numbers) - group
        groups.append(frozenset(group))
        left -= group
    return groups


def maximal_cliques(numbers: frozenset[int], graph: Graph) -> list[tuple[int, ...]]:
    """Sets of numbers that are all neighbours, which no other number can join, each in order.

    Source: Bron and Kerbosch, Algorithm 457, Communications of the ACM 16 (1973).
    """
    sets: list[tuple[int, ...]] = []

    def grow(clique: tuple[int, ...], candidates: frozenset[int], done: frozenset[int]) -> None:
        if not candidates and not done:
            sets.append(tuple(sorted(clique)))
        for number in sorted(candidates):
            grow((*clique, number), candidates & graph[number], done & graph[number])
            candidates, done = candidates - {number}, done | {number}

    grow((), numbers, frozenset())
    return sorted(sets)
