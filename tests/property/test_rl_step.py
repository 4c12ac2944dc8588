"""Laws of one step of post-training, on random lengths, cards and placements."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.post_training.generation import Case, generation_part
from autodeploy.costs.post_training.overheads import Overheads
from autodeploy.costs.post_training.rl_step import rl_step
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.presets import load_preset
from autodeploy.specs.rl import GenerationLayout, RlStrategy, RlTraining
from autodeploy.specs.strategy import Recompute, Strategy
from cost_models.placements import asynchronous
from tests.support.examples import examples

if TYPE_CHECKING:
    from autodeploy.costs.post_training.step import RlStep

MODELS = {name: load_preset(name) for name in ("qwen3-8b", "qwen3-30b-a3b")}
PROFILE = profile_of(ClusterSpec(profile="nvidia-h100", num_npus=8))
OFFLOAD = ("optimizer", "gradients", "parameters")
FEW = settings(max_examples=examples(4), deadline=None)
NOTHING = Overheads()

names = st.sampled_from(sorted(MODELS))
means = st.floats(256.0, 2000.0)
spreads = st.floats(0.2, 1.4)
stale = st.integers(1, 4)


def update_of(name: str) -> Strategy:
    recompute = Recompute(granularity="full")
    return Strategy(tp=2, pp=2, recompute=recompute) if name == "qwen3-8b" else Strategy(ep=8, recompute=recompute)


def training(mean: float, cv: float, *, prompts: int = 64, responses: int = 16, **others: Any) -> RlTraining:
    return RlTraining.model_validate(
        {
            "prompts_per_step": prompts,
            "responses_per_prompt": responses,
            "prompt_length": {"mean": 128},
            "response_length": {"mean": mean, "cv": cv, "max": 4096},
            **others,
        }
    )


def step(name: str, rl: RlTraining, placement: str, cards: int = 32, tp: int = 2, **how: Any) -> RlStep:
    layout = {
        "placement": placement,
        "generation": GenerationLayout(tp=tp, mode="graph", memory_fraction=0.8),
        "pack_tokens": 8192,
        **({"offload": OFFLOAD} if placement == "colocated" else {"generation_npus": cards // 2}),
        **how,
    }
    cluster = ClusterSpec(profile="nvidia-h100", num_npus=cards)
    strategy, made = update_of(name), RlStrategy.model_validate(layout)
    return rl_step(MODELS[name], PROFILE, cluster, rl, strategy, made, overheads=NOTHING)


@FEW
@given(name=names, mean=means, cv=spreads, placement=st.sampled_from(["colocated", "separate", "async"]), ahead=stale)
def test_phases_and_parts_add_up(name: str, mean: float, cv: float, placement: str, ahead: int) -> None:
    how = {"staleness": ahead} if placement == "async" else {}
    found = step(name, training(mean, cv), placement, **how)
    assert sum(phase.exposed_s for phase in found.phases) == pytest.approx(found.step_time_s, rel=1e-9)
    assert sum(found.breakdown.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert all(seconds >= 0.0 for seconds in found.breakdown.values())
    assert all(phase.exposed_s <= phase.end_s - phase.start_s + 1e-9 for phase in found.phases)
    rates = found.tokens_per_s
    assert rates["response"] < rates["mean"] <= rates["max"]


@FEW
@given(name=names, mean=means, cv=spreads)
def test_staleness_0_is_in_turn_and_more_of_it_never_slower(name: str, mean: float, cv: float) -> None:
    rl = training(mean, cv)
    turn = step(name, rl, "separate").step_time_s
    times = [step(name, rl, "async", staleness=ahead).step_time_s for ahead in range(4)]
    assert times[0] == turn
    assert all(later <= earlier * (1.0 + 1e-9) for earlier, later in pairwise(times))


@given(
    generation=st.floats(0.0, 1e4),
    ahead=st.none() | st.floats(0.0, 1e4),
    training=st.floats(0.0, 1e4),
    more=st.floats(0.0, 1e4),
    staleness=st.integers(0, 4),
)
def test_a_step_is_no_shorter_where_training_is_longer(
    generation: float, ahead: float | None, training: float, more: float, staleness: int
) -> None:
    """So the bound of a split, at the least that training takes, is one."""
    short, long = (
        float(asynchronous(generation, 0.0, {"training": t}, 1.0, staleness, ahead_s=ahead).step_s)
        for t in (training, training + more)
    )
    assert short <= long * (1.0 + 1e-9)


@FEW
@given(name=names, mean=st.floats(256.0, 1200.0), ahead=stale, short=st.floats(0.2, 0.6), more=st.floats(0.3, 0.8))
def test_a_longer_tail_costs_steps_in_turn_more(name: str, mean: float, ahead: int, short: float, more: float) -> None:
    """Mean and greatest length held."""
    rl = training(mean, short), training(mean, short + more)
    turn = [step(name, each, "separate").step_time_s for each in rl]
    stale_ = [step(name, each, "async", staleness=ahead).step_time_s for each in rl]
    assert turn[1] - turn[0] >= stale_[1] - stale_[0] - 1e-6 * turn[0]


@FEW
@given(name=names, mean=means, cv=spreads, cards=st.sampled_from([32, 64]), placement=st.sampled_from(["a", "s", "c"]))
def test_twice_the_cards_gain_at_most_twofold(name: str, mean: float, cv: float, cards: int, placement: str) -> None:
    how = {"a": ("async", {"staleness": 1}), "s": ("separate", {}), "c": ("colocated", {})}[placement]
    rl = training(mean, cv)
    one, two = (step(name, rl, how[0], cards=times * cards, **how[1]) for times in (1, 2))
    if one.generation["waves"] == 1.0:
        assert one.step_time_s <= 2.0 * two.step_time_s * (1.0 + 1e-6)


@FEW
@given(name=names, mean=means, cv=spreads, cards=st.sampled_from([4, 16, 64]), tp=st.sampled_from([2, 4]))
def test_generation_never_ends_before_its_longest_response_alone(
    name: str, mean: float, cv: float, cards: int, tp: int
) -> None:
    layout, cluster = GenerationLayout(tp=tp, mode="graph"), ClusterSpec(profile="nvidia-h100", num_npus=64)
    found = generation_part(MODELS[name], PROFILE, cluster, training(mean, cv), layout, Case(cards))
    alone = float(found.generator.model.tpot_s(1.0, 128.0))
    assert found.generation_s >= found.longest_s
    assert found.longest_s >= mean * alone


@FEW
@given(name=names, mean=means, cv=spreads, correlation=st.floats(0.0, 1.0))
def test_one_response_a_prompt_is_a_plain_prompt(name: str, mean: float, cv: float, correlation: float) -> None:
    """What responses of a prompt have in common says nothing where each prompt has one."""
    alone, plain = (
        step(name, training(mean, cv, prompts=1024, responses=1, prompt_correlation=each), "colocated")
        for each in (correlation, 0.0)
    )
    assert alone.phases == plain.phases
    assert alone.breakdown == plain.breakdown


@FEW
@given(name=names, mean=means, cv=spreads)
def test_a_step_is_the_same_to_the_bit(name: str, mean: float, cv: float) -> None:
    first, second = (step(name, training(mean, cv), "async", staleness=1) for _ in range(2))
    assert (first.phases, first.breakdown, first.peak_memory_bytes, first.notes) == (
        second.phases,
        second.breakdown,
        second.peak_memory_bytes,
        second.notes,
    )
