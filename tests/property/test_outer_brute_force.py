"""Spaces small enough to enumerate whole, outer tuples times placements times recompute times swap: the same best K."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.build_problem import build_problem
from autodeploy.costs.stages.stage_memory import communication_bytes
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.frontier import SearchRequest, outer_tuples
from autodeploy.search.branch_and_bound.search_space import legal_candidates
from autodeploy.search.choices.effort import DEFAULT, Budget
from autodeploy.search.choices.memory_options import memory_choices
from autodeploy.search.planner import Prepared, prepare
from autodeploy.specs.reading import read_spec_document
from cost_models.hbm import GIB
from tests.property.test_solver_brute_force import best_step_s
from tests.support.cut_costs import cut_costs
from tests.support.examples import examples

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.stages.step_classes import StepClasses
    from autodeploy.space.candidates import Candidates

INSTANCES = examples(24)
TOP_K = 3
TINY: dict[str, Any] = {
    "name": "tiny",
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 4096,
    "vocab_size": 32_000,
}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
OFF = ("reuse_fp32_param", "swap_optimizer", "virtual_optimizer", "selective_recompute", "selective_swap")

instances = st.fixed_dictionaries(
    {
        "layers": st.integers(2, 4),
        "moe": st.booleans(),
        "npus": st.sampled_from([4, 8]),
        "batch": st.sampled_from([8, 16]),
        "room": st.floats(-0.1, 1.1),
        "tp": st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=2, unique=True),
        "pp": st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2, unique=True),
        "ep": st.sampled_from([[1], [1, 2], [2, 4]]),
        "sizes": st.sampled_from([[1], [2], [1, 2]]),
    }
)


@settings(
    max_examples=INSTANCES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
@given(instances)
def test_the_best_plans_are_those_of_the_enumeration(drawn: dict[str, Any]) -> None:
    roomy = resolved(drawn, None)
    legal, _ = legal_candidates(roomy.spec.search, roomy.context, roomy.profile, roomy.choice)
    assume(0 < len(legal) <= 6)
    # Between what the leanest needs with everything recomputed and what the largest needs with nothing.
    loose = sweep(legal, roomy.context)
    machine = roomy.context.machine
    beside = float(communication_bytes(legal, roomy.context).max()) + machine.runtime_bytes
    low = float(loose.recomputed_bytes.min())
    high = float(loose.memory_bytes.max()) * (1.0 + machine.fragmentation) + beside
    prepared = resolved(drawn, (low + drawn["room"] * (high - low)) / GIB)
    context = prepared.context
    swept = sweep(legal, context)
    outer = outer_tuples(legal)
    classes = step_classes(unit_costs(context, legal), legal, context)
    truth: dict[int, float] = {}
    for index in range(len(legal)):
        truth[int(outer[index])] = min(truth.get(int(outer[index]), math.inf), fastest(classes, legal, context, index))
    expected = sorted(seconds for seconds in truth.values() if math.isfinite(seconds))[:TOP_K]
    budget = Budget(quick=10**6, slots=math.inf, refined=10**6, effort=DEFAULT)
    found = best_first(SearchRequest(legal, swept, lambda _: context, TOP_K, 0.0, budget, cut_costs(legal, context)))
    best = [solved.solution.step_s for solved in found.best[:TOP_K]]
    assert len(best) == len(expected), (best, expected)
    np.testing.assert_allclose(best, expected, rtol=3e-6)
    if best:
        proven = min(found.open_bound_s, *(solved.solution.bound_s for solved in found.best))
        assert proven <= expected[0] * (1.0 + 1e-9)


def resolved(drawn: dict[str, Any], limit_gib: float | None) -> Prepared:
    """The drawn spec on cards with so much memory."""
    return prepare(
        read_spec_document(
            {
                "model": TINY | {"num_hidden_layers": drawn["layers"]} | (EXPERTS if drawn["moe"] else {}),
                "cluster": {"profile": "ascend-800t-a2", "num_npus": drawn["npus"]},
                "training": {"seq_length": 4096, "global_batch_size": drawn["batch"]},
                "search": {
                    "target": "any",
                    "memory_limit_gib": limit_gib,
                    "fix": {"vpp": 1, "schedule": "1f1b", "cp": 1, "etp": 1},
                    "allow": {
                        "tp": drawn["tp"],
                        "pp": drawn["pp"],
                        "ep": drawn["ep"] if drawn["moe"] else [1],
                        "micro_batch_size": drawn["sizes"],
                        "moe_dispatcher": ["alltoall"],
                    },
                    "features": dict.fromkeys(OFF, "off"),
                },
            }
        )
    )


def fastest(classes: StepClasses, legal: Candidates, context: Context, index: int) -> float:
    """Least simulated step time of one candidate over every placement and every count of every memory choice.

    Recomputing whole layers takes a buffer: strategies that do without it are enumerated without it.
    """
    choices = memory_choices(legal.take(slice(index, index + 1)), context)
    problems = [
        build_problem(Priced(classes, legal, context, index), choices=each) for each in (choices, choices - {"full"})
    ]
    return min(best_step_s(problem) for problem in problems)
