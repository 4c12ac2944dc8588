"""A lower bound by whole layers: what paths and memory leave open in fractions is asked once more in integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.solver.memory_prices import Surcharges, surcharges
from autodeploy.solver.paths import PathLibrary, first_layout, longest_paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.inner_problem import InnerProblem, Ints

ROUND: Final = 0.01
"""What a round counts at least: its paths and its model take time, too."""


def count_bound_s(
    problem: InnerProblem,
    library: PathLibrary,
    enough_s: float,
    *,
    deterministic_time: float,
    should_cancel: Callable[[], bool] | None = None,
) -> tuple[float, float]:
    """Lower bound on the step time [s], about enough_s where no layout is below it, and the work done."""
    if problem.kind.copies > 1 or not problem.total_layers:
        return 0.0, 0.0
    from autodeploy.solver.count_master import solve_counts
    from autodeploy.solver.cp_sat import UNITS

    slightly_more = 1.0 + 8.0 / UNITS  # whole units keep a proven bound below what is asked for
    known = library.of(problem)
    memory = surcharges(problem, 1.0)
    layout = first_layout(problem).astype(np.int64)
    bound, work = 0.0, 0.0
    while work < deterministic_time and not (should_cancel is not None and should_cancel()):
        paths = longest_paths(problem, layout[None].astype(np.float64), _extra(problem, memory, layout)[None])
        if not library.add(known, paths) and work:
            break
        found = solve_counts(
            problem,
            list(known.values()),
            (enough_s - problem.tail_s) * slightly_more,
            hint=layout,
            deterministic_time=deterministic_time - work,
            seed=0,
            should_cancel=should_cancel,
            memory=memory,
        )
        bound = max(bound, found.bound_s + problem.tail_s)
        work += max(found.deterministic_time, ROUND)
        if found.layout is None:
            break
        layout = found.layout
    return bound, work


def _extra(problem: InnerProblem, memory: Surcharges | None, layout: Ints) -> np.ndarray:
    """What memory adds to the chunks [pp, vpp] of a layout, evenly."""
    extra = np.zeros((problem.pp, problem.vpp))
    if memory is not None:
        left = np.where(memory.seconds, memory.left(layout.astype(np.float64)), 0.0)
        np.maximum.at(extra, memory.stage, (left / problem.vpp)[:, None])
    return extra
