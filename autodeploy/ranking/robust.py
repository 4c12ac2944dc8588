"""How the best plans stand at the corners of what calibration leaves possible.

Step times are simulated at a corner as everywhere else. Which of the 2 ** n corners to simulate is read off the plans'
sensitivities: the logarithm of a step time is nearly linear in the logarithms of efficiencies, so each plan's slowest
corner and its corner of most regret by that model are simulated, for all plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from autodeploy.evaluation.build_context import spec_context
from autodeploy.evaluation.build_problem import build_problem
from autodeploy.evaluation.estimate import applied_array
from autodeploy.evaluation.stage_classes import step_classes
from autodeploy.evaluation.unit_costs import unit_costs
from autodeploy.ranking.corners import CornerBox, corner_box, factors_of
from autodeploy.ranking.plans import layout_of_solved
from autodeploy.solver.evaluate import Evaluator
from autodeploy.specs.planset import BoxSide, Robustness, RobustSearch
from autodeploy.strategies.candidates import concatenate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.evaluation.estimate import Layout
    from autodeploy.evaluation.inner_problem import Floats
    from autodeploy.solver.candidate import Solved
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile

NO_MATTER: Final = 1e-6
"""An efficiency that changes no plan's step by this share of its own change is none of the box."""
TOP: Final = 50
"""Plans that are held against each other at the corners."""


@dataclass(frozen=True)
class Robust:
    """Robustness of each plan, and what it was found by. None where the search was cancelled before."""

    plans: tuple[Robustness, ...]
    search: RobustSearch


def at_corners(
    solved: Sequence[Solved],
    weights: Floats,
    spec: Spec,
    profile: Profile,
    should_cancel: Callable[[], bool] | None = None,
) -> Robust | None:
    """Worst step time and worst regret of plans over the corners of the error box.

    Parameters
    ----------
    weights : what a second of each plan's step counts in the objective [plans]: plans on fewer cards or of another
        batch are compared by that. A plan's regret at a corner is how much more it costs than the best of them there.
    """
    box = corner_box(profile)
    layouts = [layout_of_solved(each) for each in solved]

    def steps(log_factors: Floats) -> Floats:
        return _step_times(solved, layouts, spec, profile, box, log_factors)

    nominal = steps(np.zeros(len(box.parameters)))
    slopes = np.empty((len(solved), len(box.parameters)))
    for number, width in enumerate(box.half_widths):
        if should_cancel is not None and should_cancel():
            return None
        moved = np.zeros(len(box.parameters))
        moved[number] = width
        slopes[:, number] = np.log(steps(moved) / nominal) / width
    telling = np.abs(slopes).max(axis=0) > NO_MATTER
    box, slopes = box.only(telling), slopes[:, telling]
    corners = _telling_corners(box, np.log(nominal * weights), slopes)
    found = np.empty((len(solved), len(corners)))
    for number, corner in enumerate(corners):
        if should_cancel is not None and should_cancel():
            return None
        found[:, number] = steps(corner)
    cost = found * weights[:, None]
    regret = cost / cost.min(axis=0) - 1.0
    slowest, sorriest = found.argmax(axis=1), regret.argmax(axis=1)
    plans = tuple(
        Robustness(
            worst_step_time_s=float(found[row, slowest[row]]),
            worst_regret_pct=100.0 * float(regret[row, sorriest[row]]),
            slowest_corner=factors_of(box, corners[slowest[row]]),
            regret_corner=factors_of(box, corners[sorriest[row]]),
        )
        for row in range(len(solved))
    )
    sides = tuple(
        BoxSide(name=p.name, meaning=p.meaning, low=float(np.exp(-width)), high=float(np.exp(width)))
        for p, width in zip(box.parameters, box.half_widths, strict=True)
    )
    criterion: Literal["regret", "worst_time"] = "worst_time" if spec.search.robust == "worst_time" else "regret"
    return Robust(plans, RobustSearch(criterion=criterion, plans=len(solved), corners=len(corners), box=sides))


def _telling_corners(box: CornerBox, log_cost: Floats, slopes: Floats) -> Floats:
    """Corners where some plan has its worst time or its worst regret by the linear model [corners, parameters]."""
    corners = box.corners()
    cost = log_cost[:, None] + slopes @ corners.T
    regret = cost - cost.min(axis=0)
    rows = np.unique(np.concatenate([cost.argmax(axis=1), regret.argmax(axis=1)]))
    return np.asarray(corners[rows])


def _step_times(
    solved: Sequence[Solved],
    layouts: Sequence[Layout],
    spec: Spec,
    profile: Profile,
    box: CornerBox,
    log_factors: Floats,
) -> Floats:
    """Simulated step times [plans] under log factors on the efficiencies."""
    efficiency = box.efficiency(profile, log_factors)
    found = np.empty(len(solved))
    groups: dict[int, list[int]] = {}
    for row, each in enumerate(solved):
        groups.setdefault(id(each.context), []).append(row)
    for rows in groups.values():
        usual = solved[rows[0]].context
        context = spec_context(
            spec,
            profile,
            usual.features,
            num_npus=usual.num_npus,
            global_batch=usual.global_batch,
            distributed_optimizer=usual.distributed_optimizer,
            efficiency=efficiency,
        )
        candidates = concatenate([solved[row].candidate for row in rows])
        classes = step_classes(unit_costs(context, candidates), candidates, context)
        for place, row in enumerate(rows):
            layout = layouts[row]
            used = frozenset(name.partition("@")[0] for name in layout.applied)
            problem = build_problem(classes, candidates, context, place, choices=used, menu=False)
            applied = applied_array(problem, layout)[0]
            found[row] = Evaluator(problem).incumbent(layout.layers, applied).step_s
    return found
