"""What `auto` leaves to time: each candidate uses the faster of two features, where its target lets it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.costs.layers.unit_costs import closed, fastest_costs, resolved
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.search.branch_and_bound.search_space import legal_candidates, search_space
from autodeploy.search.planner import estimate, plan, prepare, reestimate
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

CUTS: list[dict[str, Any]] = [
    {"tp": 2, "pp": 2, "ep": 4, "etp": 1},
    {"tp": 8, "pp": 2, "ep": 1, "etp": 8},
    {"tp": 1, "pp": 4, "ep": 8, "moe_dispatcher": "allgather"},
]


def spec_of(
    strategy: dict[str, Any] | None = None, *, target: str = "any", imbalance: float = 1.3, **search: Any
) -> Spec:
    document: dict[str, Any] = {
        "model": "mixtral-8x7b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
        "training": {"seq_length": 4096, "global_batch_size": 128, "routing_imbalance": imbalance},
        "search": {"target": target, "effort": "fast", "top_k": 2, "risk": "neutral", **search},
    }
    if strategy is not None:
        document["strategy"] = strategy
    return read_spec_document(document)


SHORT_PIPELINES = {
    **{"tp": [1], "pp": [2], "cp": [1], "micro_batch_size": [1]},
    **{"ep": [8], "moe_dispatcher": ["alltoall"]},
}
# What MindSpeed moves experts with is there under its overlapped layer alone.
SCHEDULES: dict[str, dict[str, list[Any]]] = {
    "any": {"schedule": ["1f1b"], "vpp": [1]},
    "megatron": {"schedule": ["adaptive_pipe"], "vpp": [1, 2]},
}
FORCED: dict[str, dict[str, str]] = {
    "migration": {"expert_migration": "on"},
    "copies": {"mutual_routing": "on"},
    "auto": {},
}


@pytest.mark.parametrize("strategy", CUTS, ids=str)
def test_auto_is_the_faster_of_two_that_exclude_each_other(strategy: dict[str, Any]) -> None:
    steps = {
        name: estimate(spec_of(strategy, imbalance=2.0, features=features)).step_time_s
        for name, features in FORCED.items()
    }
    # What migrating costs a step is left out of the choice.
    assert steps["auto"] <= min(steps["migration"], steps["copies"]) * 1.02
    assert steps["auto"] in {steps["migration"], steps["copies"]}


@pytest.mark.parametrize("target", ["any", "megatron"])
def test_the_best_plan_is_no_slower_than_with_either_forced(target: str) -> None:
    found = {}
    allow = SHORT_PIPELINES | SCHEDULES[target]
    for name, features in FORCED.items():
        spec = spec_of(target=target, imbalance=2.0, features=features, allow=allow, effort=0.02, top_k=1)
        answer = plan(spec, alone=True)
        found[name] = answer.plans[0].step_time_s
        for each in answer.plans:
            # A plan names the features that it uses: under these alone it is predicted the same.
            assert reestimate(spec_of(target=target, imbalance=2.0), each).step_time_s == pytest.approx(
                each.step_time_s
            )
    assert found["auto"] <= min(found["migration"], found["copies"]) * 1.02


@pytest.mark.parametrize("target", ["any", "megatron"])
def test_no_alternative_of_a_candidate_is_faster(target: str) -> None:
    """The sweep of each set of features alone against the sweep that chooses, over all legal candidates."""
    spec = spec_of(target=target, imbalance=2.0)
    prepared = prepare(spec)
    sets = closed(prepared.context)
    assert len(sets) == 2
    legal, _ = legal_candidates(spec.search, prepared.context, prepared.profile, prepared.choice)
    legal = legal.take(slice(0, None, 97))
    _, used = fastest_costs(prepared.context, legal)
    assert len(set(used.tolist())) > 1
    chosen = sweep(legal, prepared.context).step_time_s
    alone = [sweep(legal, each).step_time_s for each in sets]
    np.testing.assert_allclose(chosen, np.array(alone)[used, np.arange(len(legal))], rtol=1e-12)
    if target == "any":
        # No rule holds an alternative back; what migration costs a step is left out of the choice.
        assert np.mean(chosen <= np.min(alone, axis=0) * (1 + 1e-9)) > 0.95
        assert (chosen <= np.min(alone, axis=0) * 1.02).all()


def test_candidates_of_a_search_have_contexts_with_nothing_open() -> None:
    spec = spec_of(imbalance=2.0)
    prepared = prepare(spec)
    searched = search_space(spec, prepared.profile, prepared.choice, prepared.context)
    assert all(not context.alternatives for context in searched.contexts)
    for index in range(0, len(searched.candidates), 997):
        one = searched.candidates.take(slice(index, index + 1))
        assert searched.context_of(index).features == resolved(prepared.context, one).features


def test_copies_of_hot_experts_are_no_choice_where_experts_are_even() -> None:
    assert all("mutual_routing" not in each.features for each in closed(prepare(spec_of(imbalance=1.0)).context))


def test_a_strategy_without_a_distributed_optimizer_keeps_its_states_whole() -> None:
    sharded, whole = (estimate(spec_of(CUTS[0] | {"distributed_optimizer": on})) for on in (True, False))
    assert whole.peak_memory_gib > sharded.peak_memory_gib + 1.0
