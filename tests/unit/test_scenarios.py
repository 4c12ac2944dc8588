"""Step times where uncertain numbers have moved: the right way, and as a spec with those numbers says."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.steps.one_strategy import Estimated, estimated, estimated_with_slopes
from autodeploy.costs.steps.scenarios import context_in, sensitivities, step_times_in
from autodeploy.search.ranking.uncertainty import factors_of
from autodeploy.search.ranking.uncertainty_set import UncertaintySet, uncertainty_set
from autodeploy.space.candidates import concatenate
from autodeploy.specs.reading import read_spec_document
from autodeploy.specs.strategy import Strategy

FEATURES = frozenset(
    {
        *(
            "flash_attention",
            "grouped_gemm",
            "fused_swiglu",
            "fused_rmsnorm",
            "fused_operators",
            "moe_alltoall_overlap",
        ),
        *("overlap_grad_reduce", "overlap_param_gather", "swap_optimizer"),
    }
)
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"tp": 1, "pp": 1, "ep": 32, "etp": 1, "swap_optimizer": True},
    {"tp": 2, "pp": 2, "ep": 8, "etp": 1},
    {"tp": 1, "pp": 2, "vpp": 2, "ep": 16, "etp": 1, "schedule": "dualpipev"},
    {"tp": 1, "pp": 1, "ep": 64, "etp": 1},
    {"tp": 2, "pp": 8, "ep": 2, "etp": 1},
)
SLOWER = (
    "operator",
    "host_issue",
    "host_sync",
    "nodes",
    "small_messages",
    "exchange_loss",
    "contention",
    "imbalance",
)  # as they grow
EITHER = ("imbalance_growth",)  # below or above the group that the imbalance is stated for
CLUSTERS = {"ascend-800t-a2": 64, "cloudmatrix-384": 32}


def document(profile: str, overrides: dict[str, float] | None = None, **training: Any) -> dict[str, Any]:
    """A small model of experts on 64 ranks."""
    return {
        "model": "qwen3-30b-a3b",
        "cluster": {"profile": profile, "num_npus": CLUSTERS[profile], "overrides": overrides or {}},
        "training": {"seq_length": 4096, "global_batch_size": 512, **training},
        "search": {"target": "any"},
    }


def prepared(
    profile: str, overrides: dict[str, float] | None = None, *, most: int = len(STRATEGIES), **training: Any
) -> list[Estimated]:
    """The first strategies as estimated, all in one context."""
    spec = read_spec_document(document(profile, overrides, **training))
    context = spec_context(spec, profile_of(spec.cluster), FEATURES)
    return [estimated(Strategy.model_validate({"micro_batch_size": 1, **each}), context) for each in STRATEGIES[:most]]


@cache
def plans(profile: str) -> tuple[list[Estimated], UncertaintySet, dict[str, np.ndarray], np.ndarray]:
    """The strategies with their box: step times at the ends of each number [plans, low and high], and nominal ones."""
    found = prepared(profile)
    context = found[0].context
    box = uncertainty_set(profile_of(read_spec_document(document(profile)).cluster), context)
    batch, layouts = concatenate([each.candidate for each in found]), [each.layout for each in found]
    times = step_times_in(batch, context, layouts, box.numbers, [{}, *box.ends()])
    ends = {number.name: times[:, 1 + 2 * n : 3 + 2 * n] for n, number in enumerate(box.numbers)}
    return found, box, ends, times[:, 0]


@pytest.mark.parametrize("profile", sorted(CLUSTERS))
def test_a_world_where_nothing_moved_is_the_estimate_to_the_bit(profile: str) -> None:
    found, box, _, nominal = plans(profile)
    assert nominal.tolist() == [each.estimate.step_time_s for each in found]
    zeros = {number.name: 0.0 for number in box.numbers}
    for each in found:
        again = estimated_in(each, box, zeros)
        assert again == each.estimate.step_time_s


@pytest.mark.parametrize("profile", sorted(CLUSTERS))
def test_an_estimate_with_slopes_is_each_alone_to_the_bit(profile: str) -> None:
    for each, strategy in zip(plans(profile)[0], STRATEGIES, strict=True):
        factors = factors_of(each.context)
        document = Strategy.model_validate({"micro_batch_size": 1, **strategy})
        found, slopes = estimated_with_slopes(document, each.context, factors)
        assert np.any(slopes)
        assert np.array_equal(slopes, sensitivities(each.candidate, each.context, [each.layout], factors)[0])
        for name, value in vars(each.estimate).items():
            np.testing.assert_equal(getattr(found.estimate, name), value, err_msg=name)


def estimated_in(plan: Estimated, box: UncertaintySet, world: dict[str, float]) -> float:
    """Step time of a plan by the ordinary way, in a context that has moved."""
    times = step_times_in(plan.candidate, context_in(plan.context, box.numbers, world), [plan.layout], (), [{}])
    return float(times[0, 0]) if not any(world.values()) else float("nan")


@pytest.mark.parametrize("profile", sorted(CLUSTERS))
def test_each_number_moves_a_plan_its_own_way(profile: str) -> None:
    _, box, ends, _ = plans(profile)
    small = {"permute"} if profile == "cloudmatrix-384" else set()
    assert len(box.numbers) > 20
    for number in box.numbers:
        low, high = ends[number.name].T
        slower = high - low if number.name.startswith(SLOWER) or number.name == "grouped" else low - high
        if number.name in EITHER:
            assert np.abs(slower).max() > 0.0, number.name
            continue
        assert slower.min() >= -1e-12, number.name
        assert slower.max() > 0.0 or number.name in small, number.name


@pytest.mark.parametrize("profile", sorted(CLUSTERS))
def test_a_world_is_the_spec_with_these_numbers(profile: str) -> None:
    """Where the spec can say a number, an estimate from there takes as long: at one end here, at the other there."""
    found, box, ends, _ = plans(profile)
    other = {number.name for each in CLUSTERS if each != profile for number in plans(each)[1].numbers}
    here = sorted(CLUSTERS).index(profile)
    hardware = found[0].context.profile
    assert hardware is not None
    checked = 0
    for number in box.numbers:
        for place, factor in enumerate(box.factors(number)):
            if number.name in other and place != (len(number.name) + here) % 2:
                continue
            overrides, training = {}, {}
            for name in number.multiplies:
                path = {
                    "vector_op": "fixed_costs.vector_op_us",
                    "host_link": "host.host_link_gb_per_s",
                    **{f"link_{tier.name}": f"{tier.name}.efficiency" for tier in hardware.tiers},
                    **{f"efficiency.{name}": f"efficiency.{name}" for name in hardware.efficiency},
                }.get(name if f"efficiency.{name}" not in hardware.quantities else f"efficiency.{name}")
                if path:
                    quantity = hardware.quantity(path)
                    limit = 1.0 if quantity.unit == "fraction" else float("inf")
                    overrides[path] = min(limit, quantity.value * factor)
                elif name == "imbalance_excess":
                    training["routing_imbalance"] = 1.0 + 0.3 * factor
            if overrides or training:
                checked += 1
                again = [each.estimate.step_time_s for each in prepared(profile, overrides, most=3, **training)]
                assert again == pytest.approx(ends[number.name][:3, place].tolist(), rel=1e-12), number.name
    assert checked > 15


def test_efficiencies_stay_within_what_they_can_be() -> None:
    _, box, ends, nominal = plans("ascend-800t-a2")
    gemm = next(number for number in box.numbers if number.name == "gemm")
    context = plans("ascend-800t-a2")[0][0].context
    moved = context_in(context, box.numbers, {"gemm": 10.0, "mesh": 10.0, "exchange_hccs": 10.0, "imbalance": 50.0})
    assert moved.machine.rates.gemm_fraction == 1.0
    mesh = moved.machine.tiers[0]
    assert mesh.efficiency == pytest.approx(1.0)
    assert mesh.efficiency * mesh.exchange <= 1.0 + 1e-12
    assert moved.loads.sustained.value == moved.loads.sustained.anchor
    assert moved.loads.worst == context.loads.worst
    assert np.array_equal(ends[gemm.name][:, 1], nominal)


def test_memory_is_that_of_the_context() -> None:
    found, box, _, _ = plans("ascend-800t-a2")
    low, high = (context_in(found[0].context, box.numbers, {"imbalance": move}) for move in (-0.5, 0.5))
    assert low.machine.fragmentation == high.machine.fragmentation
    assert low.loads.worst == high.loads.worst
    assert low.limit_bytes == high.limit_bytes
