"""What is recommended by one search held against what another one recommends, in the same draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.inputs.build_context import healthy_npus, profile_of
from autodeploy.costs.post_training.overheads import overheads_of
from autodeploy.kit.deadline import Deadline
from autodeploy.search import planner
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.frontier import outer_tuples
from autodeploy.search.branch_and_bound.search_space import search_space
from autodeploy.search.plan_search import UpdateSearch
from autodeploy.search.post_training.advice import advise
from autodeploy.search.post_training.search import RlSearch
from autodeploy.search.ranking.advice import DRAWS, Adviser, from_search
from autodeploy.search.ranking.expected_cost import price_of
from autodeploy.search.ranking.regret import regret_order
from autodeploy.search.ranking.selection import weight_of
from autodeploy.space.candidates import concatenate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.search.branch_and_bound.search_space import SearchSpace
    from autodeploy.search.post_training.advice import RlAdvice, WeighedChoice
    from autodeploy.search.ranking.advice import Advice, Weighed
    from autodeploy.specs.spec import Spec


def advised(spec: Spec, *, stepping: bool = False, searched: SearchSpace | None = None) -> Advice | None:
    """The recommendation of a search of a spec, however long it takes; None where nothing fits.

    stepping : also the steps of the first plan's axes are weighed, as in a plan of the product. searched : its space,
    where it is known.
    """
    p, search = planner.prepare(spec), spec.search
    searched = searched or search_space(p.spec, p.profile, p.choice, p.context)
    if not len(searched.candidates):
        return None
    budget = planner.budget_of(spec)
    frontier = best_first(searched.request(search.top_k, search.gap, budget), keep=from_search(search.top_k))
    if not frontier.best:
        return None
    weight, price = partial(weight_of, objective=search.objective), price_of(spec, frontier.best[0].solution.step_s)
    adviser = Adviser(p.profile, searched, frontier, search.top_k, budget, weight, price)
    return adviser.advise(stepping=stepping)


def is_same_space(one: SearchSpace, other: SearchSpace) -> bool:
    """Whether two searches have the same candidates with the same sweep: their answers are the same."""
    return (
        len(one.candidates) == len(other.candidates)
        and bool((outer_tuples(one.candidates) == outer_tuples(other.candidates)).all())
        and all(
            np.array_equal(getattr(one.swept, name), getattr(other.swept, name))
            for name in ("step_time_s", "after_recompute_s", "bound_s", "least_bytes")
        )
    )


@dataclass(frozen=True)
class Held:
    """The first plan of a ranking against the first of another one. excess : of its expected cost, as a share."""

    own: Weighed | WeighedChoice
    other: Weighed | WeighedChoice
    excess: float


def held(own: Advice, other: Advice) -> Held:
    """The first plan of a ranking against that of another one, both among the plans of the one."""
    pool = sorted(own.weighed, key=lambda each: each.row)
    rival = other.weighed[0]
    pool.append(rival)
    mine, theirs = own.responses, other.responses
    last = slice(rival.row, rival.row + 1)
    nominal, low, high = (
        np.concatenate([getattr(mine, name), getattr(theirs, name)[last]]) for name in ("nominal", "low", "high")
    )
    answers = type(mine)(mine.box, nominal, low, high)
    order = regret_order(
        answers.at(mine.box.draws(DRAWS)),
        nominal,
        np.array([each.p_fits for each in pool]),
        [each.unproven for each in pool],
        own.price.floor,
        starts=np.array([each.p_starts for each in pool]),
        weights=np.log([*own.weights, other.weights[rival.row]]),
        alike=outer_tuples(concatenate([each.solved.candidate for each in pool])),
        price=own.price,
    )
    first = own.weighed[0]
    return Held(first, rival, float(order.expected_s[first.row] / order.expected_s[-1] - 1.0))


def is_dominated(advice: Advice | RlAdvice) -> bool:
    """Whether a plan that was considered is nowhere behind the first: in time, expected time, P(fits), evidence."""
    first = advice.weighed[0]

    def column(each: Weighed | WeighedChoice) -> tuple[float, ...]:
        weight = advice.weights[each.row]
        return each.step_s * weight, each.expected_s * weight, -each.p_fits, float(len(each.unproven))

    mine = column(first)
    return any(
        column(each) != mine and all(theirs <= own for theirs, own in zip(column(each), mine, strict=True))
        for each in advice.weighed
    )


@dataclass(frozen=True, eq=False)
class PostTraining:
    """The recommendation of a search of post-training, and with what it is weighed again."""

    spec: Spec
    advice: RlAdvice

    def held(self, other: PostTraining) -> Held:
        """The first plan against that of another search, both among the plans of this one."""
        rival = other.advice.weighed[0]
        pool = [each.choice for each in sorted(self.advice.weighed, key=lambda each: each.row)]
        again = _advice(self.spec, [*pool, rival.choice])
        costs = {each.row: each.expected_s for each in again.weighed}
        first = self.advice.weighed[0]
        return Held(first, rival, costs[first.row] / costs[len(pool)] - 1.0)

    def axes(self, place: int) -> Mapping[str, object]:
        """Axes of the plan at a place of the ranking."""
        return self.advice.weighed[place].axes


def advised_post_training(spec: Spec) -> PostTraining | None:
    """The recommendation of a search of post-training, however long it takes; None where nothing fits."""
    profile = profile_of(spec.cluster)
    stop = Deadline(None, 0.0, float("inf"))
    result = RlSearch(spec, profile, healthy_npus(profile, spec.cluster), UpdateSearch(stop), stop).run()
    return PostTraining(spec, _advice(spec, result.choices)) if result.choices else None


def _advice(spec: Spec, choices: Sequence[object]) -> RlAdvice:
    found = advise(spec, profile_of(spec.cluster), choices, overheads_of(spec.search.target), lambda: False)
    assert found is not None
    return found
