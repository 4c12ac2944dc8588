"""Candidates that would look fastest elsewhere: with less of the card's memory, or with a number at its bad end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.evaluation.steps.worlds import context_in
from autodeploy.evaluation.sweep.sweep import sweep
from autodeploy.solver.outer.worker_process import by_two

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.inner_problem import Floats, Ints
    from autodeploy.evaluation.steps.worlds import World
    from autodeploy.ranking.error_box import ErrorBox
    from autodeploy.ranking.responses import Responses
    from autodeploy.solver.search_space import Searched

MAX_SLOWDOWN: Final = 0.3
"""Candidates whose estimate is longer than the fastest plan by more than this share are nobody's best."""
MAX_CANDIDATES: Final = 4096
"""Candidates that are looked at again in every world, the fastest."""


def near_rows(searched: Searched, fastest_s: float) -> Ints:
    """Candidates near the fastest plan, in the order of their estimate."""
    rows = searched.swept.fastest(MAX_CANDIDATES)
    return rows[searched.swept.after_recompute_s[rows] <= (1.0 + MAX_SLOWDOWN) * fastest_s]


def estimates_in(
    worlds: Sequence[World],
    searched: Searched,
    rows: Ints,
    box: ErrorBox,
    limit_bytes: Callable[[Context], float],
    *,
    parallel: bool,
    should_cancel: Callable[[], bool] | None,
) -> list[Floats] | None:
    """Step times of candidates in each world, with enough recomputed to stay below a limit [rows]; inf where none does.

    parallel : by two processes. None when cancelled.
    """
    worker = _Swept(searched, rows, box, limit_bytes, should_cancel or (lambda: False))
    return by_two(worker, _Swept.estimates, worlds, parallel=parallel, should_cancel=should_cancel)


@dataclass
class _Swept:
    """Sweeps the same candidates in one world after the other."""

    searched: Searched
    rows: Ints
    box: ErrorBox
    limit_bytes: Callable[[Context], float]
    stopped: Callable[[], bool]

    def estimates(self, world: World) -> Floats:
        """Step times in a world [rows]; inf where there was no time."""
        estimates = np.full(len(self.rows), np.inf)
        variants = self.searched.variant[self.rows]
        for variant in np.unique(variants).tolist():
            if self.stopped():
                break
            of_variant = np.flatnonzero(variants == variant)
            context = self.searched.contexts[variant]
            context_in_world = replace(
                context_in(context, self.box.numbers, world), limit_bytes=self.limit_bytes(context)
            )
            estimates[of_variant] = sweep(
                self.searched.candidates.take(self.rows[of_variant]), context_in_world, parts=False
            ).after_recompute_s
        return estimates


def bad_worlds(answers: Responses, count: int) -> list[World]:
    """The worlds in which one number, of the most influential, is where the first plan falls farthest behind."""
    order = np.argsort(-answers.influence(), kind="stable")[:count]
    ends = answers.box.ends()
    worlds: list[World] = []
    for number in order.tolist():
        behind = [
            moved[0] - (answers.nominal + moved).min() for moved in (answers.low[:, number], answers.high[:, number])
        ]
        worlds.append(ends[2 * number + int(behind[1] >= behind[0])])
    return worlds


def first_of_each(rows: Ints, seconds: Floats, outer: Ints, count: int, *, without: Sequence[int] = ()) -> list[int]:
    """The first `count` candidates by their time, one of each outer strategy; none of the outer strategies left out."""
    seen = set(without)
    firsts: list[int] = []
    for place in np.argsort(seconds, kind="stable").tolist():
        number = int(outer[rows[place]])
        if len(firsts) == count or not np.isfinite(seconds[place]):
            break
        if number not in seen:
            seen.add(number)
            firsts.append(int(rows[place]))
    return firsts
