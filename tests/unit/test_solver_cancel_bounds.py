"""A search that is cancelled ends soon, while strategies are swept as while bounds are raised, and keeps its plan."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import ortools.sat.python.cp_model  # noqa: F401 - a first import is no part of a search
import pytest

from autodeploy.kit.errors import SearchCancelled
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.candidate_bounds import CandidateBounds
from autodeploy.search.branch_and_bound.search_space import SearchSpace, search_space
from autodeploy.search.planner import budget_of, plan, prepare
from autodeploy.specs.reading import read_spec_file
from tests.support.pace import limit_here_s

if TYPE_CHECKING:
    from autodeploy.search.branch_and_bound.frontier import SearchState
    from autodeploy.search.choices.effort import Budget

EXAMPLE = Path(__file__).parents[2] / "examples" / "deepseek_v3_cloudmatrix_384.yaml"
SOON_S = 0.5  # on the usual machine


@pytest.fixture(scope="module")
def space() -> tuple[SearchSpace, Budget]:
    spec = read_spec_file(EXAMPLE)
    search = spec.search.model_copy(update={"allow": {"tp": (8,), "pp": (6,)}, "effort": "fast"})
    spec = spec.model_copy(update={"search": search})
    prepared = prepare(spec)
    return search_space(prepared.spec, prepared.profile, prepared.choice, prepared.context), budget_of(spec)


@dataclass
class Polls:
    """Cancels at one of the polls since bounds were raised, and sees how much work lies between them.

    Polls of other threads come by the clock while CP-SAT works: only those of the search are counted, which repeat.
    """

    cancel_at: int | None
    raising: bool = False
    count: int = 0
    last_s: float = 0.0
    longest_s: float = 0.0
    cancelled_s: float = field(default=0.0)

    def __call__(self) -> bool:
        now = time.process_time()
        if not self.raising:
            return False
        if self.last_s:
            self.longest_s = max(self.longest_s, now - self.last_s)
        self.last_s = now
        self.count += threading.current_thread() is threading.main_thread()
        if self.cancel_at is None or self.count < self.cancel_at:
            return False
        self.cancelled_s = self.cancelled_s or now
        return True


def run(
    space: tuple[SearchSpace, Budget], polls: Polls, monkeypatch: pytest.MonkeyPatch, known: list[float] | None = None
) -> SearchState:
    """The search of a space, with `polls` looking on from its first bound on; `known` gets the best plan's times."""
    searched, budget = space

    def watch(frontier: SearchState, _index: int) -> None:
        if known is not None and frontier.incumbent_s is not None:
            known.append(frontier.incumbent_s)

    by_stages = CandidateBounds.by_stages

    def marked(self: CandidateBounds, high_s: float) -> int:
        polls.raising = True
        return by_stages(self, high_s)

    monkeypatch.setattr(CandidateBounds, "by_stages", marked)
    return best_first(searched.request(2, 0.0, budget, watch=watch, should_cancel=polls))


def test_cancelling_returns_the_plan_and_a_valid_bound(
    space: tuple[SearchSpace, Budget], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(space, Polls(5), monkeypatch)  # loads what is loaded at its first use
    whole = Polls(None)
    proven = run(space, whole, monkeypatch)
    assert whole.count > 20
    assert whole.longest_s < limit_here_s(SOON_S)
    # CP-SAT polls by the clock: another run has some more or some less.
    for place in (1, whole.count // 2):
        polls = Polls(place)
        known: list[float] = []
        found = run(space, polls, monkeypatch, known)
        assert time.process_time() - polls.cancelled_s < limit_here_s(SOON_S)
        assert found.cancelled
        assert known, "there was a plan before bounds were raised"
        assert found.best[0].solution.step_s <= known[-1]
        assert found.bound_s is not None
        assert found.bound_s <= proven.best[0].solution.step_s
        assert proven.bound_s is not None
        assert found.bound_s <= proven.bound_s * (1 + 1e-9)


def test_cancelling_while_strategies_are_swept_ends_soon_without_a_plan() -> None:
    spec = read_spec_file(EXAMPLE.with_name("pangu_ultra_moe_718b_6144.yaml"))
    polls = Polls(None, raising=True)
    reached: list[int] = []

    def whole(_progress: object) -> None:
        reached.append(polls.count)
        polls.cancel_at = polls.count

    plan(spec, progress=whole, should_cancel=polls)
    assert reached[0] > 3, "polled between blocks of the sweep"
    for place in (1, reached[0] // 2):
        polls = Polls(place, raising=True)
        try:
            result = plan(spec, should_cancel=polls)
        except SearchCancelled:  # what did not look in time was interrupted
            result = None
        assert time.process_time() - polls.cancelled_s < limit_here_s(SOON_S)
        assert result is None or (result.status == "cancelled" and not result.plans)
