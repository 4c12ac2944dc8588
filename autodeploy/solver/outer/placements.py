"""Several plans of one outer strategy: other placements of its layers and other choices of its memory options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.inner.evaluate import Evaluator
from autodeploy.solver.inner.layouts import neighbours, templates, to_layout, to_sizes
from autodeploy.solver.inner.local_search import MOST
from autodeploy.solver.inner.stage_choices import StageChoices
from autodeploy.solver.inner.uniform import undominated_sets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.evaluation.stages.inner_problem import InnerProblem, Ints
    from autodeploy.solver.outer.candidate import Solved

MOST_SETS = 16
"""Sets of options that are tried on the best placement where a target's flags hold for all layers."""


def with_placements(best: Sequence[Solved], count: int, should_cancel: Callable[[], bool] | None) -> list[Solved]:
    """The `count` fastest plans of solved candidates, however many of one candidate; the fastest first.

    Looked at are each candidate's own plan, what moves one of its layers, the templates, and other memory options. What
    is proven of a candidate holds for all its plans.
    """
    found = list(best)
    for solved in best:
        order = sorted(each.solution.step_s for each in found)
        below_s = order[count - 1] if len(order) >= count else float("inf")
        if solved.solution.step_s >= below_s or (should_cancel is not None and should_cancel()):
            continue
        found += _others(solved, count - 1, below_s)
    return sorted(found, key=lambda s: (s.solution.step_s, s.index))[:count]


def _others(solved: Solved, count: int, below_s: float) -> list[Solved]:
    """At most `count` other plans of a candidate that are faster than below_s."""
    own, problem = solved.plan, solved.problem
    evaluator, size = Evaluator(problem), to_sizes(problem, own.layout)
    moved = np.unique(np.concatenate([neighbours(problem, size), templates(problem)]), axis=0)
    layouts, applied = [], []
    for choices, sizes in _choices(problem, own.applied, moved, size[None]):
        tried = to_layout(problem, sizes)
        tried = tried[np.argsort(evaluator.bare_s(tried), kind="stable")[:MOST]]
        options, ok = choices.complete(tried)
        layouts.append(tried[ok])
        applied.append(options[ok])
    layout, option = np.concatenate(layouts), np.concatenate(applied)
    step = evaluator.step_s(layout, option, below_s)
    seen = {(own.layout.tobytes(), own.applied.tobytes())}
    found: list[Solved] = []
    for row in np.argsort(step, kind="stable"):
        key = (layout[row].tobytes(), option[row].tobytes())
        if len(found) >= count or step[row] >= below_s:
            break
        if key not in seen:
            seen.add(key)
            plan = evaluator.plan(layout[row], option[row])
            bound_s = min(solved.solution.bound_s, plan.step_s)
            other = replace(solved.solution, status="feasible", plan=plan, bound_s=bound_s)
            found.append(replace(solved, solution=other))
    return found


def _choices(problem: InnerProblem, applied: Ints, moved: Ints, own: Ints) -> list[tuple[StageChoices, Ints]]:
    """What chooses the options, and the placements [n, parts] that it chooses for."""
    if not problem.uniform_options:
        return [(StageChoices(problem), moved)]
    used: Ints = np.asarray(applied.any(axis=0), dtype=np.int64)
    sets = undominated_sets(problem)[:MOST_SETS] if problem.options else np.zeros((0, 0), dtype=np.int64)
    others = [mask for mask in sets if not np.array_equal(mask, used)]
    return [(StageChoices(problem, used), moved), *((StageChoices(problem, mask), own) for mask in others)]
