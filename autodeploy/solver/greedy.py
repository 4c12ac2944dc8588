"""The articles' method: add memory options by the best ratio until the stage fits, then remove what isn't needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.solver.memory_options import legal_options
from autodeploy.solver.polish import drop_excess, one_fits
from autodeploy.solver.stage_choices import fits

if TYPE_CHECKING:
    from autodeploy.evaluation.inner_problem import InnerProblem, Ints
    from autodeploy.solver.evaluate import Evaluator, Incumbent


def greedy_options(problem: InnerProblem, layout: Ints) -> Ints | None:
    """Option counts [pp, options] for a layout [pp, vpp, classes] by add-then-remove, None when they don't fit.

    Options are taken one layer at a time in order of seconds per byte saved (a swap costs the host link's time), then
    dropped one layer at a time, dearest first, while the stage still fits.
    """
    applied = np.zeros((problem.pp, len(problem.options)), dtype=np.int64)

    def price(index: int) -> float:
        option = problem.options[index]
        seconds = option.extra_backward_s + 2.0 * option.swap_bytes / problem.host_link_bytes_per_s
        return seconds / max(option.saved_bytes, 1e-30)

    cheap_first = sorted(range(len(problem.options)), key=price)
    for stage in range(problem.pp):
        for index in cheap_first:
            for _ in range(int(layout[stage, :, problem.options[index].layer_class].sum())):
                if one_fits(problem, layout, applied, stage):
                    break
                applied[stage, index] += 1
                if not _one_legal(problem, layout, applied):
                    applied[stage, index] -= 1
                    break
        if not one_fits(problem, layout, applied, stage):
            return None
        drop_excess(problem, layout, applied, stage, list(reversed(cheap_first)))
    return applied


def _one_legal(problem: InnerProblem, layout: Ints, applied: Ints) -> bool:
    return bool(legal_options(problem, layout[None], applied[None])[0])


def greedy(evaluator: Evaluator, layouts: Ints) -> Incumbent | None:
    """The best layout [n, pp, vpp, classes] under the greedy's options: the baseline to compare with."""
    best: Incumbent | None = None
    for layout in layouts:
        applied = greedy_options(evaluator.problem, layout)
        if applied is not None and fits(evaluator.problem, layout[None], applied[None])[0]:
            plan = evaluator.incumbent(layout, applied)
            if best is None or plan.step_s < best.step_s:
                best = plan
    return best
