"""Diversity of the plans of an answer, and the number of plans near the fastest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from autodeploy.search.branch_and_bound.frontier import outer_tuples
from autodeploy.space.candidates import CHOICES
from autodeploy.space.tree import distinct
from autodeploy.specs.planset import ParetoPoint, Valley

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import Plan
    from cost_models.arrays import Floats, Ints


MAX_SLOWDOWN = 0.03
"""Share of the fastest step time by which strategies of the valley are slower, at most: below the model's error."""

AXES = ("tp", "cp", "pp", "ep", "etp", "micro_batch_size")
SHARED = (*AXES, "vpp", "schedule", "moe_dispatcher")

T = TypeVar("T")


def outline(solved: Solved) -> tuple[Hashable, ...]:
    """Traits that tell plans apart for a launch: degrees, micro batch, cards, whether passes run in pairs."""
    candidate = solved.candidate
    return (*(int(getattr(candidate, axis)[0]) for axis in (*AXES, "dp")), bool(candidate.paired[0]))


def outlines(candidates: Candidates) -> Ints:
    """A number for each `outline` of candidates on one number of cards [n]."""
    return distinct([*(getattr(candidates, axis) for axis in (*AXES, "dp")), candidates.paired])[1]


def different(ranked: Sequence[T], top_k: int, outline_of: Callable[[T], Hashable]) -> list[T]:
    """The first of each outline; where there are too few outlines, the best of the others too. In order of rank.

    ranked : plans, the best first.
    """
    seen: set[Hashable] = set()
    firsts: list[int] = []
    others: list[int] = []
    for place, each in enumerate(ranked):
        own = outline_of(each)
        (others if own in seen else firsts).append(place)
        seen.add(own)
    return [ranked[place] for place in sorted([*firsts, *others][:top_k])]


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A solved plan. index : of its candidate. unproven : degrees and features it rests on that no run has."""

    plan_id: str
    index: int
    step_time_s: float
    unproven: int


def valley(
    candidates: Candidates, estimated_s: Floats, plans: Sequence[ShownPlan], *, within: float = MAX_SLOWDOWN
) -> Valley | None:
    """The outer strategies that are about as fast as the fastest; None where nothing fits.

    A strategy that was solved is held against the fastest plan, any other by its estimate against the least estimate:
    plans are faster than estimates, which know one placement only. Axes of which all candidates have one value are not
    called shared.

    estimated_s : step time of each candidate [n], with enough recomputed to fit; infinite where it does not.
    plans : solved plans in order of rank.
    """
    least_s = float(estimated_s.min(initial=np.inf))
    if not np.isfinite(least_s):
        return None
    near = np.flatnonzero(estimated_s <= (1.0 + within) * least_s)
    rows = candidates.take(np.concatenate([near, np.asarray([plan.index for plan in plans], dtype=np.int64)]))
    outer = outer_tuples(rows)
    solved_s: dict[int, float] = {}
    for number, plan in zip(outer[len(near) :].tolist(), plans, strict=True):
        solved_s[number] = min(plan.step_time_s, solved_s.get(number, np.inf))
    limit_s = (1.0 + within) * min(solved_s.values(), default=0.0)
    inside = {number for number, seconds in solved_s.items() if seconds <= limit_s}
    inside |= set(outer[: len(near)].tolist()) - solved_s.keys()
    among = [plan for number, plan in zip(outer[len(near) :].tolist(), plans, strict=True) if number in inside]
    proven = min(among, key=lambda plan: plan.unproven, default=None)
    return Valley(
        layouts=len(inside),
        within=within,
        shared=_shared(candidates, rows.take(np.isin(outer, sorted(inside)))),
        fewest_unproven=None if proven is None else proven.plan_id,
    )


def _shared(candidates: Candidates, inside: Candidates) -> dict[str, int | str]:
    """Axes of which these candidates have one value, and all candidates more."""
    shared: dict[str, int | str] = {}
    for axis in SHARED:
        everywhere, in_valley = getattr(candidates, axis), getattr(inside, axis)
        value = int(in_valley[0])
        if (in_valley == value).all() and (everywhere != value).any():
            shared[axis] = CHOICES[axis][value] if axis in CHOICES else value
    return shared


# Plans that no other plan beats in time, memory and cards at once.
def pareto_set(plans: Iterable[Plan], ranked: Sequence[Plan]) -> tuple[ParetoPoint, ...]:
    """Of everything that was solved and kept, what is not beaten in all three; the fastest first.

    Plans are compared by the time of a token, since their batches may differ.
    """
    ranks = {plan.plan_id: plan.rank for plan in ranked}
    points = list(plans)
    best = [plan for plan in points if not any(_beats(other, plan) for other in points)]
    unique = {plan.plan_id: plan for plan in sorted(best, key=lambda p: (-p.tokens_per_s, p.plan_id))}
    return tuple(
        ParetoPoint(
            plan_id=plan.plan_id,
            rank=ranks.get(plan.plan_id),
            strategy=plan.strategy,
            step_time_s=plan.step_time_s,
            tokens_per_s=plan.tokens_per_s,
            peak_memory_gib=plan.highest_gib,
            num_npus=plan.num_npus_used,
        )
        for plan in unique.values()
    )


def _beats(first: Plan, second: Plan) -> bool:
    """No worse in anything and better in something."""
    ours = (-first.tokens_per_s, first.highest_gib, first.num_npus_used)
    theirs = (-second.tokens_per_s, second.highest_gib, second.num_npus_used)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))
