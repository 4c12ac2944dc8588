"""The rules over a whole space: each judged on the few rows that its axes tell apart, counted for every candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autodeploy.strategies.grid import Grid, values_at
from autodeploy.strategies.rules import WORDS, Rule, load_rules, scope_of
from autodeploy.strategies.tree import CUT_AXES, OPTIMIZER_STATE_AXES, SHAPE_AXES, WAY_AXES, CandidateTree

if TYPE_CHECKING:
    from collections.abc import Mapping

Numbers = npt.NDArray[np.uint8]
OBEYS_ALL = 255


def judge_grid(
    grid: Grid, facts: Mapping[str, Any], target: str, *, by_replicas: bool = False
) -> tuple[CandidateTree, dict[str, int]]:
    """The legal candidates of a grid, and how many each rule rejected first: as `judge` of all of them one by one.

    by_replicas : as in `tree_of`.
    """
    rules = load_rules()
    assert len(rules) < OBEYS_ALL
    every, of_mode = _first_broken(grid, rules, facts, target)
    exists = grid.exists[grid.shape_of]
    counts = np.zeros(OBEYS_ALL + 1, dtype=np.int64)
    runs = np.zeros_like(exists)
    kept = []
    for more in of_mode:
        first = every if more is None else np.minimum(every, more)
        counts += np.bincount(first[exists], minlength=OBEYS_ALL + 1)
        legal = (first == OBEYS_ALL) & exists
        runs |= legal
        kept.append(legal)
    masks = [None if legal.sum() == runs.sum() else legal for legal in kept]
    rejected = {rule.name: int(counts[number]) for number, rule in enumerate(rules) if counts[number]}
    return grid.tree(runs, masks, by_replicas=by_replicas), rejected


def _first_broken(
    grid: Grid, rules: tuple[Rule, ...], facts: Mapping[str, Any], target: str
) -> tuple[Numbers, list[Numbers | None]]:
    """Number of the first rule that each run [placements, ways] breaks, of those that no mode matters to; then by mode.

    A mode without a rule of its own to break has None.
    """
    broken: dict[tuple[str, bool], Numbers] = {}
    scope, constants = scope_of(facts, target), {**WORDS.places(), **facts}
    values: dict[str, dict[str, Any]] = {}  # by level
    for number, rule in enumerate(rules):
        if not rule.binds(scope):
            continue
        read = rule.names()
        level = _level(read)
        key = level, bool(read & set(OPTIMIZER_STATE_AXES))
        if level not in values:
            values[level] = {**constants, **_values(grid, level)}
        obeyed = rule.mask(values[level])
        if obeyed.all():
            continue
        shape = (_rows(grid, level), len(grid.ways["vpp"]), len(grid.modes[OPTIMIZER_STATE_AXES[0]]) if key[1] else 1)
        before = broken.get(key, np.uint8(OBEYS_ALL))
        broken[key] = np.minimum(before, np.broadcast_to(np.where(obeyed, OBEYS_ALL, number), shape).astype(np.uint8))
    every = np.full((len(grid.cut_of), len(grid.ways["vpp"])), OBEYS_ALL, dtype=np.uint8)
    of_mode: list[Numbers | None] = [None] * len(grid.modes[OPTIMIZER_STATE_AXES[0]])
    for (level, by_mode), numbers in broken.items():
        if not by_mode:
            np.minimum(every, _spread(grid, level, numbers[:, :, 0]), out=every)
            continue
        for mode, before_mode in enumerate(of_mode):
            more = numbers[:, :, mode]
            if (more < OBEYS_ALL).any():
                spread = _spread(grid, level, more)
                of_mode[mode] = spread if before_mode is None else np.minimum(before_mode, spread)
    return every, of_mode


def _level(read: frozenset[str]) -> str:
    """The fewest rows that tell apart what a rule reads."""
    cuts, shapes = bool(read & set(CUT_AXES)), bool(read & set(SHAPE_AXES))
    return "placements" if cuts and shapes else "cuts" if cuts else "shapes" if shapes else "none"


def _values(grid: Grid, level: str) -> Mapping[str, Any]:
    if level == "none":
        own = (*WAY_AXES, *OPTIMIZER_STATE_AXES)
        return {name: values for name, values in values_at(grid, "shapes").items() if name in own}
    return values_at(grid, level)


def _rows(grid: Grid, level: str) -> int:
    return {"none": 1, "cuts": len(grid.cuts["tp"]), "shapes": len(grid.exists), "placements": len(grid.cut_of)}[level]


def _spread(grid: Grid, level: str, numbers: Numbers) -> Numbers:
    """Rows of a level for every placement."""
    if level == "cuts":
        return numbers[grid.cut_of]
    return numbers[grid.shape_of] if level == "shapes" else numbers
