"""A plan that is changed in one axis: what follows from the axis is chosen anew, wherever the question is asked."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given as given_values
from hypothesis import settings
from hypothesis import strategies as st

from api.ui.plan_page import KNOBS, changed_strategy, one_more_turn
from autodeploy.analysis.launch_requests import read_strategy
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import complete, plan, reestimate, why_not
from autodeploy.search.ranking.why_not import given_axes, is_whole
from autodeploy.specs.derived_fields import FOLLOWS, OF_ALL_AXES, RESHAPING, of_launch
from autodeploy.specs.planset import PlanSet
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Recompute, Strategy
from cost_models.schedule import searched

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

ONE = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "micro_batch_size": 1, "schedule": "1f1b"}
TWO_STAGES = ONE | {"pp": 2}
# model, profile, cards, sequence length, batch; degrees that are fixed; what else the search is asked; the changes
Case = tuple[tuple[str, str, int, int, int], dict[str, Any], dict[str, Any], tuple[dict[str, Any], ...]]
A2, H100 = "ascend-800t-a2", "nvidia-h100"
CASES: dict[str, Case] = {
    "dense": (("qwen3-1.7b", A2, 8, 4096, 16), ONE, {}, ({"tp": 2}, {"pp": 2}, {"cp": 2})),
    "stages": (("qwen3-8b", A2, 8, 4096, 32), TWO_STAGES, {}, ({"tp": 4}, {"vpp": 3}, {"pp": 4})),
    "interleaved": (
        ("qwen3-8b", A2, 8, 4096, 32),
        TWO_STAGES | {"vpp": 3, "schedule": "interleaved"},
        {},
        ({"tp": 2}, {"vpp": 1}, {"schedule": "1f1b"}),
    ),
    "whole heads": (
        ("qwen3-1.7b", A2, 8, 32_768, 8),
        ONE | {"cp": 4, "cp_algo": "ulysses"},
        {},
        ({"cp": 2}, {"cp_algo": "ring"}, {"tp": 2}),
    ),
    "experts": (
        ("qwen3-30b-a3b", A2, 16, 4096, 32),
        TWO_STAGES | {"ep": 8},
        {},
        ({"tp": 2}, {"ep": 4}, {"micro_batch_size": 2}),
    ),
    "experts apart": (
        ("qwen3-30b-a3b", A2, 32, 4096, 64),
        ONE | {"ep": 16, "tp": 2, "moe_dispatcher": "alltoall_seq"},
        {},
        ({"tp": 1}, {"tp": 4}, {"ep": 32}),
    ),
    "experts cut": (
        ("mixtral-8x7b", A2, 32, 4096, 64),
        ONE | {"tp": 4, "ep": 2, "pp": 2, "etp": 4},
        {},
        ({"tp": 2}, {"ep": 4}, {"pp": 4}),
    ),
    "paired": (
        ("deepseek-v2-lite", A2, 16, 4096, 64),
        TWO_STAGES | {"ep": 8, "vpp": 2, "schedule": "adaptive_pipe"},
        {},
        ({"tp": 2}, {"pp": 1}, {"ep": 4}),
    ),
    "exact": (
        ("llama2-7b", A2, 8, 4096, 32),
        ONE | {"tp": 2},
        {"numerics": "exact", "features": {"swap_optimizer": "off", "reuse_fp32_param": "off"}},
        ({"tp": 4}, {"pp": 2}, {"micro_batch_size": 2}),
    ),
    "another maker": (
        ("llama3-8b", H100, 8, 8192, 32),
        ONE | {"tp": 2},
        {"target": "megatron"},
        ({"tp": 1}, {"cp": 2}, {"pp": 2}),
    ),
    "its experts": (
        ("qwen3-30b-a3b", H100, 16, 4096, 32),
        ONE | {"ep": 8},
        {"target": "megatron"},
        ({"tp": 2}, {"ep": 16}, {"pp": 2}),
    ),
    "two dies": (
        ("qwen3-8b", "cloudmatrix-384", 8, 4096, 32),
        ONE | {"tp": 2, "pp": 2},
        {},
        ({"tp": 4}, {"pp": 1}, {"micro_batch_size": 2}),
    ),
}


@cache
def spec_of(name: str, **search: Any) -> Spec:
    (model, profile, cards, length, batch), _, asked, _ = CASES[name]
    return parse_spec(
        {
            "model": model,
            "cluster": {"profile": profile, "num_npus": cards},
            "training": {"seq_length": length, "global_batch_size": batch},
            "search": {"effort": "fast", "risk": "neutral", **asked, **search},
        }
    )


def with_fixed(spec: Spec, axes: dict[str, Any]) -> Spec:
    return spec.model_copy(update={"search": spec.search.model_copy(update={"fix": axes})})


@cache
def stored(name: str) -> PlanSet:
    """The answer of a search as a database keeps it."""
    return PlanSet.model_validate_json(plan(with_fixed(spec_of(name), CASES[name][1]), alone=True).model_dump_json())


@pytest.mark.parametrize("name", CASES)
def test_what_if_why_not_and_a_search_with_every_axis_fixed_agree(name: str) -> None:
    spec, best = spec_of(name), stored(name)
    for change in CASES[name][-1]:
        changed = read_strategy(change, best.plans[0].strategy)
        axes = given_axes(changed, moe=spec.model.is_moe)
        searched_anew = plan(with_fixed(spec, axes), alone=True).plans[0]
        explained = why_not(spec, changed, best=best).completed
        turned = complete(spec, changed_strategy(best.plans[0].strategy, {k: str(v) for k, v in change.items()}))
        assert explained is not None
        assert turned.strategy == explained.strategy == searched_anew.strategy, change
        for answer in (turned, explained):
            assert answer.step_time_s == pytest.approx(searched_anew.step_time_s, rel=1e-6), change
        assert turned.strategy.sequence_parallel is (turned.strategy.tp > 1)


@pytest.mark.parametrize("name", ["stages", "experts", "paired"])
def test_a_changed_plan_is_to_the_bit_what_why_not_completes_predicted_once_more(name: str) -> None:
    spec, best = spec_of(name), stored(name)
    for change in CASES[name][-1]:
        changed = read_strategy(change, best.plans[0].strategy)
        explained = why_not(spec, changed, best=best).completed
        assert explained is not None
        assert complete(spec, changed, best=best) == reestimate(spec, explained), change


# -- what of a plan follows -----------------------------------------------------------------------------------------

BASE = Strategy(
    tp=2,
    pp=4,
    vpp=2,
    dp=2,
    cp=2,
    cp_algo="ring",
    ep=8,
    etp=1,
    sequence_parallel=True,
    schedule="interleaved",
    layers_per_stage=((2, 2),) * 4,
    moe_dispatcher="alltoall_seq",
    recompute=Recompute(granularity="full", per_stage=({"full": 4},) * 4),
    swap=("attention",),
    swap_per_stage=({"attention": 1},) * 4,
    reuse_fp32_param=True,
    features=("grouped_gemm", "reuse_fp32_param"),
)


IMPLIED = {
    "swap": {"swap_per_stage"},
    "swap_optimizer": {"reuse_fp32_param", "features"},
    "reuse_fp32_param": {"features"},
}


def left(change: dict[str, Any], **of_base: Any) -> dict[str, Any]:
    """What a stored plan still says once it is changed."""
    base = Strategy.model_validate(BASE.model_dump(mode="json") | of_base)
    return read_strategy(change, base).model_dump(mode="json", exclude_unset=True)


@pytest.mark.parametrize(
    ("of_base", "change", "follows"),
    [
        ({"tp": 1, "sequence_parallel": False}, {"tp": 2}, {"sequence_parallel", "etp", "moe_dispatcher"}),
        ({"tp": 1, "sequence_parallel": False}, {"tp": 8}, {"sequence_parallel", "etp", "moe_dispatcher"}),
        ({}, {"tp": 1}, {"sequence_parallel", "etp", "moe_dispatcher"}),
        ({"etp": 2}, {"tp": 4}, {"sequence_parallel", "etp", "moe_dispatcher"}),
        ({"sequence_parallel": None}, {"tp": 4}, {"sequence_parallel", "etp", "moe_dispatcher"}),
        ({"tp": 1, "sequence_parallel": False}, {"pp": 8}, {"sequence_parallel"}),
        ({}, {"ep": 1}, {"etp", "moe_dispatcher"}),
        ({"moe_dispatcher": "hierarchical"}, {"ep": 4}, {"etp", "moe_dispatcher"}),
        ({"cp": 1, "cp_algo": None}, {"cp": 2}, {"cp_algo"}),
        ({}, {"cp": 1}, {"cp_algo"}),
        ({"cp": 4, "cp_algo": "hybrid", "ulysses_degree": 2}, {"cp": 8}, {"cp_algo", "ulysses_degree"}),
        ({"cp": 4, "cp_algo": "hybrid", "ulysses_degree": 2}, {"cp_algo": "ring"}, {"ulysses_degree"}),
        ({"pp": 1, "vpp": 1, "schedule": "1f1b"}, {"pp": 4}, {"vpp", "schedule"}),
        ({}, {"pp": 1}, {"vpp", "schedule"}),
        ({}, {"vpp": 1}, {"schedule"}),
        ({"vpp": 1, "schedule": "1f1b"}, {"vpp": 3}, {"schedule"}),
        ({}, {"schedule": "1f1b"}, {"vpp"}),
        ({"dp_replicate": 2}, {"pp": 2}, {"dp_replicate"}),
        ({}, {"micro_batch_size": 2}, set()),
    ],
)
def test_what_was_chosen_for_an_axis_follows_when_it_changes(
    of_base: dict[str, Any], change: dict[str, Any], follows: set[str]
) -> None:
    of_base = {**of_base}
    if "pp" in of_base:
        of_base |= {"layers_per_stage": [16], "recompute": {}, "swap_per_stage": None}
    before = {k: v for k, v in (BASE.model_dump(mode="json") | of_base).items() if v is not None}
    said = left(change, **of_base)
    follows = follows | {"sequence_parallel"}
    assert follows.isdisjoint(said)
    assert OF_ALL_AXES.isdisjoint(said)
    degrees = {name for name in before if name in RESHAPING} - follows
    assert {name: said[name] for name in degrees} == {name: before[name] for name in degrees} | change
    assert not is_whole(Strategy.model_validate(said), moe=True)


@pytest.mark.parametrize(
    "change",
    [
        {"tp": 4, "sequence_parallel": False},
        {"tp": 4, "etp": 4},
        {"cp": 4, "cp_algo": "ulysses"},
        {"ep": 16, "moe_dispatcher": "allgather"},
        {"pp": 8, "recompute": {"granularity": "full"}},
        {"micro_batch_size": 2, "swap_optimizer": True, "reuse_fp32_param": False},
        {"vpp": 1, "schedule": "1f1b", "features": ["grouped_gemm"]},
    ],
)
def test_what_the_change_names_itself_stays(change: dict[str, Any]) -> None:
    said = left(change)
    assert {name: said[name] for name in change if name != "recompute"} == {
        name: value for name, value in change.items() if name != "recompute"
    }
    assert said.get("recompute", {}).get("granularity") == change.get("recompute", {}).get("granularity")


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("axis", [{"pp": 8}, {"ep": 4}, {"micro_batch_size": 2}, {"tp": 16}])
def test_sequence_parallelism_that_somebody_left_off_stays_off(tp: int, axis: dict[str, int]) -> None:
    assert left(axis, tp=tp, sequence_parallel=False)["sequence_parallel"] is False


@pytest.mark.parametrize(
    "change",
    [
        {"recompute": {"granularity": "none"}},
        {"swap": []},
        {"swap_optimizer": True},
        {"reuse_fp32_param": False},
        {"features": ["grouped_gemm", "coc"]},
        {"tp": 2, "fsdp": True},
    ],
)
def test_a_plan_stands_where_no_axis_changes(change: dict[str, Any]) -> None:
    said = Strategy.model_validate(left(change))
    assert is_whole(said, moe=True)
    changed = {name for name in Strategy.model_fields if getattr(said, name) != getattr(BASE, name)}
    implied = {name for field in change for name in IMPLIED.get(field, ())}
    assert changed == {name for name in change if name != "tp"} | implied | {"dp"}
    assert ("reuse_fp32_param" in said.features) is (
        not change.keys() & {"reuse_fp32_param", "features", "swap_optimizer"}
    )


@given_values(
    st.fixed_dictionaries(
        {},
        optional={
            "tp": st.sampled_from([1, 2, 4, 8]),
            "cp": st.sampled_from([1, 2, 4]),
            "ep": st.sampled_from([1, 4, 8]),
            "pp": st.sampled_from([1, 2, 4]),
            "vpp": st.sampled_from([1, 2, 3]),
            "micro_batch_size": st.sampled_from([1, 2]),
            "schedule": st.sampled_from([each.name for each in searched()]),
            "swap_optimizer": st.booleans(),
            "sequence_parallel": st.booleans(),
        },
    )
)
@settings(max_examples=200, deadline=None)
def test_a_changed_plan_has_the_change_and_nothing_that_was_chosen_for_other_axes(change: dict[str, Any]) -> None:
    said = left(change)
    turned = {name for name in change if name in RESHAPING and change[name] != getattr(BASE, name)}
    assert change.items() <= said.items()
    if turned:
        assert (OF_ALL_AXES & said.keys()) <= change.keys()
        assert not {name for name, of in FOLLOWS.items() if of & turned and name in said} - change.keys()


# -- what a user fixed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "search", "change", "fixed"),
    [
        ("whole heads", {"fix": {"cp_algo": "ulysses"}}, {"cp": 2}, {"cp_algo": "ulysses"}),
        ("experts", {"fix": {"etp": 1}}, {"tp": 2}, {"etp": 1}),
        ("experts", {"fix": {"moe_dispatcher": "alltoall_seq"}}, {"tp": 2}, {"moe_dispatcher": "alltoall_seq"}),
        ("stages", {"features": {"reuse_fp32_param": "off"}}, {"vpp": 3}, {"reuse_fp32_param": False}),
        ("dense", {"features": {"swap_optimizer": "on"}}, {"tp": 2}, {"swap_optimizer": True}),
        ("stages", {"fix": {"schedule": "interleaved"}}, {"vpp": 3}, {"schedule": "interleaved"}),
        ("dense", {}, {"tp": 2, "sequence_parallel": False}, {"sequence_parallel": False}),
        ("experts", {}, {"tp": 2, "ep": 4, "etp": 2}, {"etp": 2}),
    ],
)
def test_what_the_spec_or_the_change_fixes_is_so_in_the_answer(
    name: str, search: dict[str, Any], change: dict[str, Any], fixed: dict[str, Any]
) -> None:
    answer = complete(spec_of.__wrapped__(name, **search), read_strategy(change, stored(name).plans[0].strategy))
    assert {axis: getattr(answer.strategy, axis) for axis in fixed} == fixed


def test_optimizer_memory_that_is_switched_off_takes_memory() -> None:
    best, spec = stored("interleaved"), spec_of("interleaved")
    on, off = (
        complete(spec, read_strategy({"reuse_fp32_param": reused}, best.plans[0].strategy), best=best)
        for reused in (True, False)
    )
    assert off.peak_memory_gib > on.peak_memory_gib + 0.5


def test_what_fits_nowhere_is_refused_with_what_it_lacks() -> None:
    tight = spec_of.__wrapped__("stages", memory_limit_gib=12.0)
    changed = read_strategy({"micro_batch_size": 8}, stored("stages").plans[0].strategy)
    answer = why_not(tight, changed, best=stored("stages"))
    assert answer.rule == "memory"
    with pytest.raises(SpecError) as refused:
        complete(tight, changed, best=stored("stages"))
    (error,) = refused.value.errors
    assert (error.path, error.message) == ("/strategy", answer.message)


@pytest.mark.parametrize("change", [{"tp": 8}, {"tp": 4, "cp": 4}, {"pp": 64}, {"cp": 16}, {"tp": 3}])
def test_degrees_that_contradict_the_cluster_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as refused:
        complete(spec_of("stages"), read_strategy(change, stored("stages").plans[0].strategy))
    assert refused.value.errors[0].path.startswith("/strategy")


# -- launches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "axis", "follows"),
    [
        ({"tp": 1, "sequence_parallel": False}, {"tp": 2}, {"sequence_parallel": None}),
        ({"tp": 2, "sequence_parallel": False}, {"tp": 4}, {"sequence_parallel": False}),
        ({"tp": 2, "sequence_parallel": True}, {"tp": 4}, {"sequence_parallel": None}),
        ({"tp": 2, "etp": 2}, {"tp": 4}, {"etp": 4}),
        ({"tp": 2, "etp": 1}, {"tp": 4}, {"etp": 1}),
        ({"tp": 2, "moe_dispatcher": "alltoall_seq"}, {"tp": 1}, {"moe_dispatcher": None}),
        ({"cp": 2, "cp_algo": "ulysses"}, {"cp": 4}, {"cp_algo": "ulysses"}),
        ({"cp": 2, "cp_algo": "ulysses"}, {"cp": 1}, {"cp_algo": None}),
        ({"cp": 4, "cp_algo": "hybrid", "ulysses_degree": 2}, {"cp": 8}, {"cp_algo": "hybrid", "ulysses_degree": None}),
        ({"pp": 2, "vpp": 2, "schedule": "interleaved"}, {"pp": 1}, {"vpp": 1, "schedule": "1f1b"}),
        ({"pp": 2, "vpp": 2, "schedule": "interleaved"}, {"vpp": 1}, {"schedule": "1f1b"}),
        ({"pp": 2}, {"schedule": "dualpipev"}, {"vpp": 2}),
        ({"pp": 2, "schedule": "dualpipev"}, {"tp": 2}, {"vpp": 1, "schedule": "dualpipev"}),
    ],
)
def test_of_a_launch_only_that_follows_which_its_author_could_not_choose(
    before: dict[str, Any], axis: dict[str, Any], follows: dict[str, Any]
) -> None:
    launched = Strategy.model_validate(before)
    changed = of_launch(launched, launched.model_copy(update=axis))
    assert {name: getattr(changed, name) for name in follows} == follows
    assert Strategy.model_validate(changed.model_dump()).model_dump() == changed.model_dump()


@pytest.mark.parametrize(
    "counts", [{"swap_per_stage": [{"nonsense": 1}]}, {"recompute": {"per_stage": [{"moe@": 1, "": 1}]}}]
)
def test_layers_counted_for_an_unknown_memory_choice_are_refused_by_every_door(counts: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as refused:
        read_strategy({"tp": 1, "pp": 1, **counts})
    assert refused.value.errors[0].path.startswith(
        ("/strategy/swap_per_stage", "/strategy/recompute/per_stage", "/swap", "/recompute")
    )


# -- what is computed before it is asked for -----------------------------------------------------------------------


def turns_of(turned: dict[str, str]) -> list[Strategy]:
    return list(one_more_turn(BASE, turned))


def test_of_an_open_form_every_other_value_is_asked_ahead_the_nearest_first() -> None:
    turns = turns_of({})
    assert len(turns) == len({each.model_dump_json(exclude_unset=True) for each in turns})
    assert turns[0] == changed_strategy(BASE, {"tp": "1"})
    degrees = [each.ep for each in turns if each.ep != BASE.ep]
    assert set(degrees[:2]) == {4, 16}
    assert {1, 256} <= set(degrees)


def test_of_a_turned_form_its_knob_comes_first_and_of_others_the_nearest() -> None:
    turns = turns_of({"ep": "16"})
    other_degrees = [int(value) for value in KNOBS["ep"] if value != "16"]
    assert {each.ep for each in turns[: len(other_degrees)]} == {*other_degrees}
    assert {each.pp for each in turns if each.pp != BASE.pp} == {2, 8}
