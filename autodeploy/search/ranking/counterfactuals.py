"""The recommended plan with one of its axes a step away, its layers and memory choices found anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.messages import Message
from autodeploy.search.ranking.explanation import added_and_saved
from autodeploy.space.candidates import CHOICES
from autodeploy.specs.planset import Counterfactual
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.search.branch_and_bound.search_space import Searched
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.search import Axis, AxisValue
    from autodeploy.specs.what_if import WhyNot
    from cost_models.arrays import Bools

MOST: Final = 3
STEPPED: Final[tuple[Axis, ...]] = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")
FOLLOWING: Final[dict[Axis, tuple[Axis, ...]]] = {"pp": ("vpp", "schedule"), "vpp": ("schedule",)}
"""Axes that are chosen anew with one, as few values of theirs go with both of its values."""


def counterfactuals(
    searched: Searched, result: PlanSet, answer: Callable[[Strategy], WhyNot]
) -> Iterator[Counterfactual]:
    """Of each axis its step that costs least, of the axes that matter most by the estimates of the search.

    answer : `why_not` with the result of the search.
    """
    if not result.plans:
        return
    top = result.plans[0]
    for axis, value in _steps(searched, top.strategy):
        axes = _kept(top.strategy, axis) | {axis: value}
        plan = answer(Strategy.model_validate(axes)).completed
        if plan is not None:
            yield _told(axis, axes, plan, top)


def _kept(strategy: Strategy, moved: Axis) -> dict[Axis, AxisValue]:
    """The axes that stay as they are when one moves."""
    free = (moved, *FOLLOWING.get(moved, ()))
    names: tuple[Axis, ...] = (*STEPPED, "schedule")
    return {name: getattr(strategy, name) for name in names if name not in free}


def _steps(searched: Searched, strategy: Strategy) -> list[tuple[Axis, int]]:
    """The axes that matter most with their values next to the strategy's."""
    candidates, seconds = searched.candidates, searched.swept.after_recompute_s
    least: dict[Axis, tuple[float, int]] = {}
    for axis in STEPPED:
        own, values = int(getattr(strategy, axis)), np.asarray(getattr(candidates, axis))
        like = np.flatnonzero(_like(searched, _kept(strategy, axis)) & np.isfinite(seconds))
        below, above = (values[like][side(values[like], own)] for side in (np.less, np.greater))
        near = [int(below.max())] if len(below) else []
        near += [int(above.min())] if len(above) else []
        if near:
            least[axis] = min((float(seconds[like][values[like] == value].min()), value) for value in near)
    order = sorted(least, key=lambda axis: (-least[axis][0], STEPPED.index(axis)))
    return [(axis, least[axis][1]) for axis in order[:MOST]]


def _like(searched: Searched, axes: dict[Axis, AxisValue]) -> Bools:
    """The candidates that have these values [n]."""
    like = np.ones(len(searched.candidates), dtype=np.bool_)
    for axis, value in axes.items():
        code = CHOICES[axis].index(str(value)) if axis in CHOICES else int(value)
        like &= getattr(searched.candidates, axis) == code
    return like


def _told(axis: Axis, axes: dict[Axis, AxisValue], plan: Plan, top: Plan) -> Counterfactual:
    value, own = axes[axis], getattr(top.strategy, axis)
    change = Message("ranking.degree_instead_of", value=f"{axis.upper()}{value}", own=f"{axis.upper()}{own}")
    if axis == "micro_batch_size":
        change = Message("ranking.micro_batch_instead_of", value=value, own=own)
    longer_pct = 100.0 * (plan.step_time_s / top.step_time_s - 1.0)
    why = added_and_saved(top, plan)
    if plan.p_fits is not None and top.p_fits is not None and longer_pct < 0.0:
        why = Message("ranking.fits_with_instead_of", chance=100.0 * plan.p_fits, own=100.0 * top.p_fits)
    return Counterfactual(
        axes={str(name): value for name, value in axes.items()},
        step_time_s=plan.step_time_s,
        p_fits=plan.p_fits,
        change=change,
        effect=Message("ranking.step_longer_by", pct=f"{longer_pct:+.1f}"),
        why=why,
    )
