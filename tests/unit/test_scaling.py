"""Scaling: whole nodes, the spec's own row as its search found it, and what does not fit is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.analysis.what_if.scaling import card_counts, scaling
from autodeploy.search import planner
from autodeploy.specs.spec import parse_spec
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec


class Counting:
    """A planner that finds plans on 96 cards or more only."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []

    def plan(self, spec: Spec, *, alone: bool = False) -> PlanSet:
        assert alone
        self.asked.append(spec.cluster.num_npus)
        if (spec.cluster.num_npus or 0) < 192:
            return factories.infeasible_plan_set(spec=spec)
        return factories.plan_set(1, spec=spec)


def test_every_count_but_the_own_is_searched() -> None:
    spec = factories.spec()
    found, asked = Counting(), factories.plan_set(1, spec=spec)
    rows = scaling(spec, asked.plans[0], planner=found).rows
    assert [row.num_npus for row in rows] == [96, 192, 384, 768, 1536]
    assert found.asked == [96, 192, 768, 1536]
    assert rows[0].strategy is None
    assert rows[2].step_time_s == asked.plans[0].step_time_s
    assert [row.efficiency for row in rows[1:]] == [1.0, 1.0, 1.0, 1.0]


def test_counts_are_whole_nodes() -> None:
    assert card_counts(factories.spec(num_npus=24), 24) == (6, 8, 24, 48, 96)


def test_real_searches_scale() -> None:
    spec = parse_spec(
        {
            "model": "llama2-7b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 16},
            "training": {"seq_length": 4096, "global_batch_size": 256},
            "search": {"effort": 0.02, "top_k": 1, "risk": "neutral", "fix": {"cp": 1}},
        }
    )
    best = planner.plan(spec).plans[0]
    rows = scaling(spec, best, planner=planner).rows
    steps = [row.step_time_s for row in rows if row.step_time_s is not None]
    assert len(steps) >= 4
    assert steps == sorted(steps, reverse=True)
    assert all(0.5 < (row.efficiency or 0.0) < 1.5 for row in rows if row.step_time_s is not None)
