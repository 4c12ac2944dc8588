"""The recommended plan with one of its axes a step away, its layers and memory choices found anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.messages import Message
from autodeploy.search.ranking.explanation import added_and_saved
from autodeploy.search.ranking.unproven import unproven_in
from autodeploy.specs.planset import Counterfactual

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.search.branch_and_bound.search_space import SearchSpace
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.search import Axis

MOST: Final = 3
"""Steps that are told of."""
STEPPED: Final[tuple[Axis, ...]] = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")
FOLLOWING: Final[dict[Axis, tuple[Axis, ...]]] = {"pp": ("vpp", "schedule"), "vpp": ("schedule",)}
"""Axes that are chosen anew with one, as few values of theirs go with both of its values."""


@dataclass(frozen=True, slots=True)
class Step:
    """An axis and what it is moved to. axes : what is given, others are free. index : of the candidate that looks
    fastest of those that have them.
    """

    axis: Axis
    axes: dict[str, int | str]
    index: int


def steps_from(searched: SearchSpace, first: Solved) -> list[Step]:
    """Of each axis of a plan the step that costs least, those of the axes that matter most by the estimates first."""
    candidates, seconds = searched.candidates, searched.swept.after_recompute_s
    cards = np.array([context.num_npus == first.context.num_npus for context in searched.contexts])
    same = np.flatnonzero(cards[searched.variant] & np.isfinite(seconds))
    own = first.candidate.axes_at(0)
    columns = {axis: np.asarray(getattr(candidates, axis))[same] for axis in (*STEPPED, "schedule")}
    found: list[tuple[float, Step]] = []
    for axis in STEPPED:
        free = (axis, *FOLLOWING.get(axis, ()))
        like = np.ones(len(same), dtype=np.bool_)
        for name in columns.keys() - {*free}:
            like &= columns[name] == getattr(first.candidate, name)[0]
        rows, values = same[like], columns[axis][like]
        below, above = values[values < own[axis]], values[values > own[axis]]
        near = [
            int(side)
            for some, side in ((below, below.max(initial=0)), (above, above.min(initial=2**31 - 1)))
            if len(some)
        ]
        if near:
            at = rows[np.isin(values, near)]
            index = int(at[seconds[at].argmin()])
            axes: dict[str, int | str] = {name: _plain(own[name]) for name in columns if name not in free}
            axes[axis] = int(getattr(candidates, axis)[index])
            step = Step(axis, axes, index)
            found.append((float(seconds[index]), step))
    found.sort(key=lambda each: (-each[0], STEPPED.index(each[1].axis)))
    return [step for _, step in found]


def _plain(value: int | str | bool) -> int | str:
    return value if isinstance(value, str) else int(value)


def stepped(steps: Iterable[Step], ranked: Iterable[Solved]) -> list[tuple[Step, Solved]]:
    """The first of the ranking that has what a step gives, of as many steps as are told of."""
    plans = [(each.candidate.axes_at(0), each) for each in ranked]
    if not plans:
        return []
    top = plans[0][0]
    found = []
    for step in steps:
        others = {name: value for name, value in step.axes.items() if name != step.axis}
        moved = next((each for axes, each in plans if _has(axes, step.axes)), None)
        if moved is not None and _has(top, others) and not _has(top, step.axes):
            found.append((step, moved))
    return found[:MOST]


def _has(axes: Mapping[str, object], given: Mapping[str, object]) -> bool:
    return all(axes[name] == value for name, value in given.items())


def counterfactual(step: Step, plan: Plan, top: Plan) -> Counterfactual:
    """The document of a step of the recommended plan."""
    value, own = step.axes[step.axis], getattr(top.strategy, step.axis)
    name = step.axis.upper()
    change = Message("ranking.degree_instead_of", value=f"{name}{value}", own=f"{name}{own}")
    if step.axis == "micro_batch_size":
        change = Message("ranking.micro_batch_instead_of", value=value, own=own)
    longer_pct = 100.0 * (plan.step_time_s / top.step_time_s - 1.0)
    return Counterfactual(
        axes=step.axes,
        strategy=plan.strategy,
        step_time_s=plan.step_time_s,
        expected_step_time_s=plan.expected_step_time_s,
        p_fits=plan.p_fits,
        change=change,
        effect=Message("ranking.step_longer_by", pct=f"{longer_pct:+.1f}"),
        why=_risk_of(plan, top) if longer_pct < 0.0 else added_and_saved(top, plan),
    )


def _risk_of(plan: Plan, top: Plan) -> str:
    """The reason that a plan which is faster by prediction is not recommended."""
    names = sorted(unproven_in(plan.evidence) - unproven_in(top.evidence))
    if names:
        return Message("ranking.no_run_has_shown", names=", ".join(names))
    if plan.p_fits is not None and top.p_fits is not None and plan.p_fits < top.p_fits:
        return Message("ranking.fits_with_instead_of", chance=100.0 * plan.p_fits, own=100.0 * top.p_fits)
    return added_and_saved(top, plan)
