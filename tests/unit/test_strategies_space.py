"""The space of strategies: complete, free of duplicates, and cut as the spec says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from autodeploy.space.candidates import CHOICES, CP_ALGOS, DISPATCHERS, SCHEDULES, Candidates, concatenate
from autodeploy.space.grid import grid_of
from autodeploy.space.space import RESTRICTED, Space, default_space, divisors, restrict, values_left
from autodeploy.specs.presets import load_preset
from autodeploy.specs.search import SearchSpec


def space_of(
    model: str = "deepseek-v3", *, world: int = 128, seq: int = 4096, batch: int = 256, **switches: str
) -> Space:
    return default_space(load_preset(model), world, 8, seq, batch, switches)


def candidates_of(space: Space, *, world: int = 128, batch: int = 256, moe: bool = True) -> Candidates:
    return grid_of(space, world=world, global_batch=batch, moe=moe).whole().candidates()


@pytest.fixture(scope="module")
def deepseek() -> Candidates:
    return candidates_of(space_of())


@pytest.mark.parametrize("number", [1, 2, 12, 97, 384, 6144])
def test_divisors(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_no_strategy_is_enumerated_twice(deepseek: Candidates) -> None:
    number, kinds = np.zeros(len(deepseek), dtype=np.int64), 1
    for column in deepseek.columns().values():
        values, places = np.unique(np.asarray(column, dtype=np.int64), return_inverse=True)
        number, kinds = number * len(values) + places, kinds * len(values)
    assert kinds < 2**63, "each strategy has a number of its own"
    assert len(np.unique(number)) == len(deepseek)


def test_ranks_and_batch_follow_from_the_axes(deepseek: Candidates) -> None:
    c = deepseek
    assert np.all(c.tp * c.pp * c.cp * c.dp == 128)
    assert np.all(c.micro_batches == 256 // (c.micro_batch_size * c.dp))
    assert np.all((c.etp == 1) | (c.etp == c.tp))
    assert np.array_equal(c.sequence_parallel, c.tp > 1)


def test_schedules_have_the_chunks_they_need(deepseek: Candidates) -> None:
    c = deepseek
    plain, interleaved = SCHEDULES.index("1f1b"), SCHEDULES.index("interleaved")
    assert np.all(c.vpp[c.schedule == plain] == 1)
    assert np.all(c.vpp[c.schedule == interleaved] > 1)
    assert np.all(c.pp[c.vpp > 1] > 1)


def test_redundant_spellings_are_made_once(deepseek: Candidates) -> None:
    c = deepseek
    assert set(np.unique(c.moe_dispatcher[c.ep == 1]).tolist()) == {0}
    assert set(np.unique(c.cp_algo[c.cp == 1]).tolist()) == {0}
    assert np.all(c.ulysses[c.cp == 1] == 1)
    assert DISPATCHERS.index("alltoall_seq") not in c.moe_dispatcher[c.tp == 1]


def test_layers_need_not_divide_by_stages(deepseek: Candidates) -> None:
    assert 16 in deepseek.pp, "61 layers over 16 stages"


def test_a_dense_model_has_no_expert_axis() -> None:
    found = candidates_of(space_of("llama2-70b"), moe=False)
    assert np.all(found.ep == 1)
    assert np.all(found.etp == 1)
    assert np.all(found.moe_dispatcher == 0)
    assert SCHEDULES.index("adaptive_pipe") not in found.schedule


def test_long_sequences_are_cut_and_short_ones_hardly() -> None:
    assert max(space_of("llama3-8b", seq=131_072).cp) >= 16
    assert max(space_of("llama3-8b", seq=4096).cp) <= 2
    found = candidates_of(space_of("llama3-8b", seq=32_768), moe=False)
    hybrid = found.cp_algo == CP_ALGOS.index("hybrid")
    assert hybrid.any()
    assert np.all(found.cp[hybrid] > found.ulysses[hybrid])
    assert np.all(found.ulysses[hybrid] > 1)


def test_tensor_parallel_groups_stay_inside_a_node() -> None:
    assert max(space_of(world=1024).tp) == 8


@pytest.mark.parametrize(
    ("search", "axis", "values"),
    [
        ({"fix": {"tp": 4}}, "tp", {4}),
        ({"allow": {"pp": [4, 8]}}, "pp", {4, 8}),
        ({"forbid": {"ep": [1, 2]}}, "ep", None),
        ({"fix": {"schedule": "interleaved"}}, "schedule", {SCHEDULES.index("interleaved")}),
        ({"allow": {"moe_dispatcher": ["allgather"]}}, "moe_dispatcher", {DISPATCHERS.index("allgather")}),
    ],
)
def test_fix_allow_and_forbid(search: dict[str, Any], axis: str, values: set[int] | None) -> None:
    found = candidates_of(restrict(space_of(), SearchSpec(**search)))
    seen = set(np.unique(getattr(found, axis)).tolist())
    assert len(found)
    if values is None:
        assert not seen & {1, 2}
    else:
        assert seen == values


@pytest.mark.parametrize("field", ["fix", "allow", "forbid"])
@pytest.mark.parametrize("axis", RESTRICTED)
def test_every_value_that_a_spec_accepts_is_known_to_the_space(axis: str, field: str) -> None:
    """So that nothing after the spec has to refuse a value."""
    known = list(enumerate(CHOICES[axis])) if axis in CHOICES else [(1, 1), (8, "8"), (10**9 - 1, 10**9 - 1)]
    for code, value in known:
        search = SearchSpec.model_validate({field: {axis: value if field == "fix" else [value]}})
        assert values_left(search, axis, [code]) == ([] if field == "forbid" else [code])
    for nothing in ("", "1.5", "flat", 0, -1, 10**9):
        with pytest.raises(ValidationError, match=" cannot be "):
            SearchSpec.model_validate({field: {axis: nothing if field == "fix" else [nothing]}})


def test_a_pinned_value_beyond_the_default_space_is_looked_at() -> None:
    assert set(np.unique(candidates_of(restrict(space_of(), SearchSpec(fix={"tp": 16}))).tp).tolist()) == {16}


@pytest.mark.parametrize(
    ("feature", "axis", "value"),
    [
        ("adaptive_pipe", "schedule", SCHEDULES.index("adaptive_pipe")),
        ("hierarchical_a2a", "moe_dispatcher", DISPATCHERS.index("hierarchical")),
        ("reuse_fp32_param", "reuse_fp32_param", True),
        ("swap_optimizer", "swap_optimizer", True),
        ("virtual_optimizer", "virtual_optimizer", True),
    ],
)
def test_a_feature_that_is_off_leaves_the_space(feature: str, axis: str, value: int) -> None:
    assert value in getattr(candidates_of(space_of()), axis)
    assert value not in getattr(candidates_of(space_of(**{feature: "off"})), axis)


def test_memory_modes_exclude_each_other(deepseek: Candidates) -> None:
    modes = (deepseek.reuse_fp32_param, deepseek.swap_optimizer, deepseek.virtual_optimizer)
    assert not np.any(np.sum(modes, axis=0) > 1)


@pytest.mark.parametrize("off", [("ulysses",), ("hybrid_cp",)])
def test_algorithms_that_are_off_leave_context_parallelism_to_the_others(off: tuple[str, ...]) -> None:
    found = candidates_of(space_of("llama3-8b", seq=32_768, **dict.fromkeys(off, "off")), moe=False)
    name = {"ulysses": "ulysses", "hybrid_cp": "hybrid"}[off[0]]
    assert CP_ALGOS.index(name) not in found.cp_algo[found.cp > 1]
    assert 1 in found.cp


def test_a_sequence_is_cut_below_4096_tokens_a_rank_only_where_that_is_asked_for() -> None:
    assert space_of("llama3-8b", seq=8192).cp == [1, 2]
    assert space_of("llama3-8b", seq=64, ring="on").cp == [1, 2, 4, 8, 16, 32, 64]


def test_without_ring_strategies_without_context_parallelism_remain() -> None:
    assert 1 in candidates_of(space_of("llama3-8b", ring="off"), moe=False).cp
    assert 1 in candidates_of(restrict(space_of("llama3-8b"), SearchSpec(fix={"cp_algo": "ulysses"})), moe=False).cp


def test_without_any_algorithm_the_sequence_is_not_cut() -> None:
    off = dict.fromkeys(("ring", "ulysses", "hybrid_cp"), "off")
    assert set(np.unique(candidates_of(space_of("llama3-8b", seq=32_768, **off), moe=False).cp).tolist()) == {1}


def test_candidates_are_taken_and_joined(deepseek: Candidates) -> None:
    first, rest = deepseek.take(slice(0, 10)), deepseek.take(slice(10, None))
    joined = concatenate([first, rest])
    assert len(joined) == len(deepseek)
    for name, values in joined.columns().items():
        assert np.array_equal(values, getattr(deepseek, name)), name


def test_axes_are_read_back_by_name(deepseek: Candidates) -> None:
    row = deepseek.axes_at(0)
    assert row["schedule"] in SCHEDULES
    assert row["moe_dispatcher"] in DISPATCHERS
    assert row["cp_algo"] in CP_ALGOS
    assert isinstance(row["sequence_parallel"], bool)
