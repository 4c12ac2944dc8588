"""Pruning loses nothing: with it and without it a search finds the same best K."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings

from autodeploy.costs.stages.stage_memory import communication_bytes
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.frontier import SearchRequest
from autodeploy.search.branch_and_bound.search_space import legal_candidates
from autodeploy.search.choices.effort import FAST, Budget
from cost_models.hbm import GIB
from tests.property.test_outer_brute_force import TOP_K, instances, resolved
from tests.support.cut_costs import cut_costs
from tests.support.examples import examples

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.branch_and_bound.frontier import SearchState
    from autodeploy.space.candidates import Candidates

pruned: list[int] = []


@settings(
    max_examples=examples(10), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
@given(instances)
def compare(drawn: dict[str, Any]) -> None:
    roomy = resolved(drawn, None)
    legal, _ = legal_candidates(roomy.spec.search, roomy.context, roomy.profile, roomy.choice)
    assume(0 < len(legal) <= 24)
    loose = sweep(legal, roomy.context)
    beside = float(communication_bytes(legal, roomy.context).max()) + roomy.context.machine.runtime_bytes
    low = float(loose.recomputed_bytes.min())
    high = float(loose.memory_bytes.max()) * (1.0 + roomy.context.machine.fragmentation) + beside
    context = resolved(drawn, (low + drawn["room"] * (high - low)) / GIB).context
    with_it, without = (searched(legal, context, prune=prune) for prune in (True, False))
    assert steps(with_it) == steps(without)
    assert without.pruned <= with_it.pruned
    pruned.append(without.solved - with_it.solved)
    if with_it.best:
        bound = with_it.bound_s
        assert bound is not None
        assert bound <= with_it.best[0].solution.step_s * (1 + 1e-9)


def searched(legal: Candidates, context: Context, *, prune: bool) -> SearchState:
    """All of a small space; nothing but pruning may leave a candidate out."""
    budget = Budget(quick=10**4, slots=math.inf, refined=10**4, effort=FAST)
    costs = cut_costs(legal, context)
    request = SearchRequest(legal, sweep(legal, context), lambda _: context, TOP_K, 0.0, budget, costs)
    return best_first(request, prune=prune)


def steps(found: SearchState) -> list[float]:
    """Step times of the best K."""
    return np.round([solved.solution.step_s for solved in found.best[:TOP_K]], 9).tolist()


def test_pruning_loses_no_plan() -> None:
    pruned.clear()
    compare()
    assert len(pruned) > 6
    assert sum(pruned) > 0, "something was pruned at all"
