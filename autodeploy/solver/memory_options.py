"""Which memory options compete, and which option counts and sets of options are legal."""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np

from autodeploy.evaluation.inner_problem import InnerProblem, Ints, MemoryOption, fill_chunks
from autodeploy.solver.rivals import maximal_cliques


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
    found = maximal_cliques(frozenset(range(len(options))), conflicts(options))
    return tuple(clique for clique in found if len(clique) > 1)


def legal_options(problem: InnerProblem, layout: Ints, applied: Ints) -> np.ndarray:
    """Whether option counts [n, pp, options] fit their layers and their rivals [n].

    A count is at most the stage's layers of its class; options that all compete with each other share the layers of
    every chunk. With uniform options an option's name is on for all its layers or for none, the same on every stage.
    """
    totals = layout.sum(axis=2)
    legal = (applied >= 0).all(axis=(1, 2))
    classes = np.array([option.layer_class for option in problem.options], dtype=np.int64)
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
    names = sorted({option.name for option in problem.options})
    rival = conflicts(problem.options)
    members = {name: [i for i, option in enumerate(problem.options) if option.name == name] for name in names}
    clash = {
        frozenset((a, b))
        for a, b in itertools.combinations(names, 2)
        if any(j in rival[i] for i in members[a] for j in members[b])
    }
    sets: list[tuple[str, ...]] = [()]
    for name in names:
        sets += [(*s, name) for s in sets if all(frozenset((name, other)) not in clash for other in s)]
    masks = np.zeros((len(sets), len(problem.options)), dtype=np.int64)
    for row, chosen in enumerate(sets):
        for name in chosen:
            masks[row, members[name]] = 1
    return masks[np.argsort(masks.sum(axis=1), kind="stable")]
