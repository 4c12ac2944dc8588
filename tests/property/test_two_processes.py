"""Two processes find what one finds, bit for bit."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.search import planner
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.candidate import LIKELY, CandidateSolver, PlansAhead
from autodeploy.search.branch_and_bound.candidate_bounds import CandidateBounds
from autodeploy.search.branch_and_bound.frontier import SearchState
from autodeploy.search.branch_and_bound.quick_plans import QuickPlans
from autodeploy.search.branch_and_bound.search_space import search_space
from autodeploy.search.branch_and_bound.worker_process import WorkerProcess
from autodeploy.specs.reading import read_spec_file
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.search.branch_and_bound.candidate import Quick

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SPACES = {
    "llama2_70b_32": {"search": {"fix": {"tp": 8}}},
    "qwen3_235b_128": {"search": {"fix": {"tp": 4, "ep": 8, "pp": 4}}},
    "deepseek_v3_cloudmatrix_384": {"search": {"fix": {"tp": 2, "pp": 16, "cp": 1}}},
}


def searched(spec: Spec, *, parallel: bool) -> SearchState:
    prepared = planner.prepare(spec)
    space = search_space(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    budget = replace(planner.budget_of(spec), quick=10, paths=100)
    return best_first(space.request(3, 0.0, budget), parallel=parallel)


@pytest.mark.parametrize("case", SPACES)
def test_two_processes_find_what_one_finds(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document = read_spec_file(EXAMPLES / f"{case}.yaml").model_dump(mode="json", exclude_unset=True)
    document["search"] = {**document.get("search", {}), **SPACES[case]["search"]}
    spec = Spec.model_validate(document)
    made: list[WorkerProcess[object]] = []
    fork = WorkerProcess._fork

    def counted(companion: WorkerProcess[object]) -> None:
        made.append(companion)
        fork(companion)

    monkeypatch.setattr(WorkerProcess, "_fork", counted)
    monkeypatch.setattr("autodeploy.search.branch_and_bound.candidate_bounds.ALONE", 0)
    alone = searched(spec, parallel=False)
    assert not made
    both = searched(spec, parallel=True)
    assert len(made) == 1
    assert math.isfinite(alone.open_bound_s)
    assert (alone.solved, alone.pruned) == (both.solved, both.pruned)
    assert (alone.open_bound_s, alone.relaxation) == (both.open_bound_s, both.relaxation)
    assert alone.work == pytest.approx(both.work)
    assert [solved.index for solved in alone.best] == [solved.index for solved in both.best]
    for one, other in zip(alone.best, both.best, strict=True):
        assert one.solution.step_s == other.solution.step_s
        assert one.solution.bound_s == other.solution.bound_s
        np.testing.assert_array_equal(one.solution.plan.layout, other.solution.plan.layout)
        np.testing.assert_array_equal(one.solution.plan.applied, other.solution.plan.applied)


@pytest.mark.parametrize("case", SPACES)
def test_what_is_planned_ahead_is_what_looks_ask_for(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document = read_spec_file(EXAMPLES / f"{case}.yaml").model_dump(mode="json", exclude_unset=True)
    prepared = planner.prepare(Spec.model_validate(document))
    space = search_space(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    request = space.request(3, 0.0, planner.budget_of(prepared.spec))
    ahead: set[int] = set()

    def noted(plans: PlansAhead, index: int, soon: Sequence[int]) -> Quick:
        ahead.update(soon)
        return plan(plans, index, soon)

    plan = PlansAhead.plan
    monkeypatch.setattr(PlansAhead, "plan", noted)
    here = CandidateSolver(request, together=True)
    with WorkerProcess(here, parallel=True, should_cancel=None) as worker:
        looks = QuickPlans(SearchState(), CandidateBounds(request, here, worker), request, lambda _: None, prune=True)
        looks.by_estimate(1.0)
        by_estimate = len(ahead)
        looks.by_bound(3.0)
    assert 0 < by_estimate < len(ahead)
    for index in ahead:
        rows = np.flatnonzero(request.outer == request.outer[index])
        assert request.swept.after_recompute_s[index] == request.swept.after_recompute_s[rows].min()


@pytest.mark.parametrize("case", SPACES)
def test_a_candidate_costs_the_same_priced_with_others_or_alone(case: str) -> None:
    document = read_spec_file(EXAMPLES / f"{case}.yaml").model_dump(mode="json", exclude_unset=True)
    prepared = planner.prepare(Spec.model_validate(document))
    space = search_space(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    request = space.request(3, 0.0, planner.budget_of(prepared.spec))
    together, alone = (CandidateSolver(request, together=each) for each in (True, False))
    last = [LIKELY] if len(request.candidates) > LIKELY else []
    some = [*request.swept.fastest(LIKELY + 1)[[*range(0, 200, 20), *last]].tolist()]
    for index in some:
        problems = [list(solver.plans(index).problems()) for solver in (together, alone)]
        for one, other in zip(*problems, strict=True):
            np.testing.assert_equal(asdict(one), asdict(other))


def test_a_planset_is_the_same_from_one_process_and_from_two(monkeypatch: pytest.MonkeyPatch) -> None:
    document = read_spec_file(EXAMPLES / "llama2_70b_32.yaml").model_dump(mode="json", exclude_unset=True)
    spec = Spec.model_validate({**document, "search": {"effort": 0.02, "fix": {"tp": 8, "pp": 4, "vpp": 1, "cp": 1}}})
    monkeypatch.setenv("AUTODEPLOY_CORES", "1")
    alone = planner.plan(spec)
    monkeypatch.setattr("autodeploy.search.plan_search.cores", lambda: 2)
    monkeypatch.setattr("autodeploy.search.branch_and_bound.candidate_bounds.ALONE", 0)
    both = planner.plan(spec)
    assert alone.plans
    assert alone.model_dump(exclude={"timing"}) == both.model_dump(exclude={"timing"})
