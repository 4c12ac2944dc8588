"""A spec planned once, and searched again wherever its uncertain numbers may be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.layers.unit_costs import closed
from autodeploy.costs.steps.scenarios import context_in, step_times_in
from autodeploy.search import planner
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.search_space import SearchSpace, legal_tree, search_space, swept_tree
from autodeploy.search.choices.effort import budget
from autodeploy.search.ranking.advice import Adviser, from_search
from autodeploy.search.ranking.expected_cost import price_of
from autodeploy.search.ranking.plans import layouts_of_solved, plans_of_solved
from autodeploy.search.ranking.selection import weight_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.steps.scenarios import Scenario
    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.search.ranking.advice import Advice
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from cost_models.arrays import Floats


class Planned:
    """A spec's advice, and the best of any world."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._prepared = planner.prepare(spec)
        p = self._prepared
        searched = search_space(spec, p.profile, p.choice, p.context)
        asked = searched.request(spec.search.top_k, spec.search.gap, planner.budget_of(spec))
        frontier = best_first(asked, keep=from_search(spec.search.top_k))
        weight = partial(weight_of, objective=spec.search.objective)
        price = price_of(spec, frontier.best[0].solution.step_s)
        budget_asked = planner.budget_of(spec)
        self.advice: Advice = Adviser(
            p.profile, searched, frontier, spec.search.top_k, budget_asked, weight, price
        ).advise()
        self._searched = searched
        self._layouts = layouts_of_solved([each.solved for each in self.advice.weighed])
        self._tree, _ = legal_tree(spec.search, p.context, p.profile, p.choice)
        short = spec.search.model_copy(update={"effort": "fast", "top_k": 1})
        # Nothing is proven here: plans alone are wanted.
        self._budget = replace(budget(short, alone=True), paths=0, exact_solves=0)

    def plan_of(self, place: int) -> Plan:
        """The document of a plan that was considered."""
        identity = self._prepared.identity
        return plans_of_solved([self.advice.weighed[place].solved], self.spec, identity)[0]

    def known_s(self, worlds: Sequence[Scenario]) -> Floats:
        """Step times in each world of the plans that were considered, as they stand, in their order [worlds, plans]."""
        numbers = self.advice.responses.box.numbers
        seconds = [
            step_times_in(each.solved.candidate, each.solved.context, [layout], numbers, worlds)[0]
            for each, layout in zip(self.advice.weighed, self._layouts, strict=True)
        ]
        return np.array(seconds).T

    def best_s(self, world: Scenario, memory_factor: float) -> float:
        """Step time of the best plan found in a world where peaks are `memory_factor` times the predicted ones."""
        best = self._best(world, memory_factor)
        return float("inf") if best is None else best.solution.step_s

    def planned_again(self, memory_factor: float) -> Solved | None:
        """The best plan found by the predicted times, were it known that peaks are so many times the predicted ones."""
        return self._best({number.name: 0.0 for number in self.advice.responses.box.numbers}, memory_factor)

    def time_s(self, solved: Solved, world: Scenario) -> float:
        """Step time in a world of a plan that `planned_again` found."""
        numbers, layouts = self.advice.responses.box.numbers, layouts_of_solved([solved])
        return float(step_times_in(solved.candidate, solved.context, layouts, numbers, [world])[0, 0])

    def _best(self, world: Scenario, memory_factor: float) -> Solved | None:
        numbers = self.advice.responses.box.numbers
        context = self._prepared.context
        there = context_in(context, numbers, world)
        limit = context.limit_bytes / memory_factor
        others = tuple(replace(each, limit_bytes=limit) for each in there.alternatives)
        there = replace(there, limit_bytes=limit, alternatives=others)
        swept = swept_tree(self._tree, there)
        fits = np.flatnonzero(np.isfinite(swept.sweep.after_recompute_s))
        candidates, contexts = self._tree.candidates().take(fits), closed(there)
        searched = SearchSpace(
            candidates,
            swept.sweep.take(fits),
            swept.used[fits],
            contexts,
            swept.costs.take(fits),
            self._searched.counts,
        )
        frontier = best_first(searched.request(1, 0.05, self._budget))
        return frontier.best[0] if frontier.best else None
