"""One step of post-training: what adds up, what equals what, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.post_training.generation import Case, generation_part, generations
from autodeploy.costs.post_training.overheads import overheads_of
from autodeploy.costs.post_training.rl_step import rl_step
from autodeploy.costs.post_training.samples import InfeasibleRlError, samples_of, update_context
from autodeploy.costs.post_training.step import combined
from autodeploy.costs.post_training.update import update_part
from autodeploy.costs.steps.one_strategy import StepPhase, estimated, phase_cost
from autodeploy.kit.errors import SpecError
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.presets import load_preset
from autodeploy.specs.rl import GenerationLayout, RlStrategy, RlTraining
from autodeploy.specs.strategy import Recompute, Strategy

pytestmark = pytest.mark.unit

MODEL = load_preset("qwen3-8b")
EXPERTS = load_preset("qwen3-30b-a3b")
BIG = load_preset("qwen3-32b")
H100 = ClusterSpec(profile="nvidia-h100", num_npus=16)
A3 = ClusterSpec(profile="cloudmatrix-384", num_npus=16)
PROFILE, A3_PROFILE = profile_of(H100), profile_of(A3)
OFFLOAD = ("optimizer", "gradients", "parameters")
UPDATE = Strategy(tp=2, pp=2, recompute=Recompute(granularity="full"))
TP1 = GenerationLayout(tp=1, mode="graph")


def training(**changes: Any) -> RlTraining:
    return RlTraining.model_validate(
        {
            "prompts_per_step": 64,
            "responses_per_prompt": 16,
            "prompt_length": {"mean": 128, "max": 512},
            "response_length": {"mean": 1024, "cv": 0.8, "max": 4096},
            **changes,
        }
    )


def layout(placement: str = "colocated", **changes: Any) -> RlStrategy:
    offload = {"offload": OFFLOAD} if placement == "colocated" else {}
    document = {"placement": placement, "generation": TP1, "pack_tokens": 8192, **offload, **changes}
    return RlStrategy.model_validate(document)


def step(
    how: RlStrategy, rl: RlTraining | None = None, cluster: ClusterSpec = H100, strategy: Strategy = UPDATE
) -> Any:
    profile = PROFILE if cluster.profile == "nvidia-h100" else A3_PROFILE
    return rl_step(MODEL, profile, cluster, rl or training(), strategy, how)


PLACEMENTS = [
    layout(),
    layout(partial_rollout=True),
    layout("separate", generation_npus=8),
    layout("async", generation_npus=8, staleness=1),
    layout("async", generation_npus=12, staleness=3, partial_rollout=True),
]


@pytest.mark.parametrize("how", PLACEMENTS)
def test_exposed_phases_and_the_breakdown_add_up_to_the_step(how: RlStrategy) -> None:
    found = step(how)
    assert sum(phase.exposed_s for phase in found.phases) == pytest.approx(found.step_time_s, rel=1e-12)
    assert sum(found.breakdown.values()) == pytest.approx(found.step_time_s, rel=1e-9)
    assert min(found.breakdown.values()) >= 0.0
    assert {"generation_s", "hand_over_s", "compute_s", "pipeline_bubble_s"} <= found.breakdown.keys()
    assert found.generation.keys() == {
        *("tpot_ms", "batch_per_replica", "waves", "kv_gib", "longest_s", "tail_share"),
    }
    assert 0.0 < found.half_width < 1.0


def test_staleness_0_is_the_synchronous_step() -> None:
    synchronous, stale = step(layout("separate", generation_npus=8)), step(layout("async", generation_npus=8))
    assert stale.step_time_s == synchronous.step_time_s
    assert stale.breakdown == synchronous.breakdown


def test_a_step_is_the_same_twice() -> None:
    first, second = step(layout()), step(layout())
    assert first.phases == second.phases
    assert first.breakdown == second.breakdown


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_a_longer_tail_costs_a_synchronous_step_more_than_one_with_staleness(staleness: int) -> None:
    def times(cv: float) -> tuple[float, float]:
        rl = training(response_length={"mean": 1024, "cv": cv, "max": 8192})
        how = {"generation_npus": 8, "pack_tokens": 16384}
        separate = step(layout("separate", **how), rl)
        return separate.step_time_s, step(layout("async", staleness=staleness, **how), rl).step_time_s

    short, long = times(0.3), times(1.2)
    assert long[0] > short[0]
    assert long[0] - short[0] > long[1] - short[1]


def test_a_tail_that_training_hides_costs_nothing() -> None:
    """Where trainers set the pace, an asynchronous step is training and the hand-over."""
    found = step(layout("async", generation_npus=12, staleness=2))
    trained = sum(phase.exposed_s for phase in found.phases if phase.devices == "training")
    assert found.step_time_s == pytest.approx(trained + found.hand_over_s)


@pytest.mark.parametrize("cards", [8, 16, 32])
def test_twice_the_cards_gain_less_than_twofold(cards: int) -> None:
    one, two = (
        step(layout(), cluster=ClusterSpec(profile="nvidia-h100", num_npus=cards * times)).step_time_s
        for times in (1, 2)
    )
    assert two < one <= 2.0 * two


def test_generation_never_ends_before_its_longest_response_alone() -> None:
    rl = training()
    for cards in (1, 4, 64):
        part = generation_part(MODEL, PROFILE, H100, rl, TP1, Case(cards))
        alone = float(part.generator.model.tpot_s(1.0, 128.0))
        mean_longest = part.series.ends_s[-1]
        assert part.generation_s >= mean_longest >= 4000 * alone * 0.9


def test_one_response_a_prompt_equals_plain_prompts() -> None:
    plain = training(prompts_per_step=1024, responses_per_prompt=1)
    parts = [
        generation_part(MODEL, PROFILE, H100, rl, TP1, Case(16)).generation_s
        for rl in (plain, plain.model_copy(update={"prompt_correlation": 0.0}))
    ]
    assert parts[0] == parts[1]


def test_many_cases_are_those_one_by_one() -> None:
    rl, cases = training(), [Case(8), Case(16, 20e9), Case(8, 0.0, 2), Case(16, 0.0, 1, True), Case(8, 75e9)]
    together = generations(MODEL, PROFILE, H100, rl, [(TP1, case) for case in cases])
    assert isinstance(together[-1], InfeasibleRlError)
    for case, found in zip(cases[:-1], together, strict=False):
        assert not isinstance(found, InfeasibleRlError)
        alone = generation_part(MODEL, PROFILE, H100, rl, TP1, case)
        assert found.generation_s == pytest.approx(alone.generation_s, rel=1e-9)
        assert found.tpot_ms == alone.tpot_ms


def test_a_phase_that_goes_forward_alone_is_the_forward_part_of_an_update() -> None:
    samples = samples_of(training(), UPDATE, 4, 8192)
    context = update_context(MODEL, PROFILE, H100, UPDATE, samples, npus=16)
    forward = estimated(UPDATE, context, forward_only=True).estimate
    update = estimated(UPDATE, context).estimate
    assert forward.forward_s == pytest.approx(update.forward_s)
    assert np.all(forward.backward_s == 0.0)
    assert forward.step_time_s < update.step_time_s / 3.0
    assert sum(forward.breakdown.values()) == pytest.approx(forward.step_time_s)
    for part in ("recompute_s", "optimizer_s", "exposed_dp_s"):
        assert forward.breakdown[part] == 0.0
        assert update.breakdown[part] > 0.0
    assert np.all(forward.allocator_bytes <= update.allocator_bytes)


def test_a_forward_pipeline_takes_its_fill_and_the_slowest_stage() -> None:
    """Flow shop of equal jobs: sum of the stages and m - 1 times the slowest."""
    strategy = Strategy(pp=4)
    samples = samples_of(training(), strategy, 4, 8192)
    context = update_context(MODEL, PROFILE, H100, strategy, samples, npus=16)
    forward = estimated(strategy, context, forward_only=True)
    stages = forward.estimate.forward_s[:, 0]
    runs = int(forward.candidate.micro_batches[0])
    assert forward.estimate.step_time_s == pytest.approx(stages.sum() + (runs - 1) * stages.max(), rel=2e-3)


def test_several_updates_fill_the_pipeline_as_often() -> None:
    def seconds(updates: int) -> float:
        part = update_part(MODEL, PROFILE, H100, training(updates_per_step=updates), UPDATE, npus=16, pack_tokens=8192)
        return part.phases["update"].seconds

    assert seconds(1) < seconds(4) < 4.0 * seconds(1)
    rl = training(updates_per_step=4)
    samples = samples_of(rl, UPDATE, 4, 8192)
    context = update_context(MODEL, PROFILE, H100, UPDATE, samples, npus=16)
    one = phase_cost(StepPhase("update", samples.update_rows), UPDATE, context)
    assert seconds(4) == pytest.approx(4.0 * one.seconds)


@pytest.mark.parametrize(
    ("rl", "names"),
    [
        ({"reference_model": False}, ["log_probabilities", "update"]),
        ({}, ["log_probabilities", "reference", "update"]),
        ({"algorithm": "ppo"}, ["log_probabilities", "reference", "values", "critic_update", "update"]),
        ({"reward": "qwen3-0.6b"}, ["log_probabilities", "reference", "reward", "update"]),
    ],
)
def test_the_algorithm_says_which_phases_run(rl: dict[str, Any], names: list[str]) -> None:
    assert list(update_part(MODEL, PROFILE, H100, training(**rl), UPDATE, npus=16).phases) == names


def test_a_critic_takes_memory_and_as_long_as_its_model() -> None:
    alone, with_critic = (
        update_part(MODEL, PROFILE, H100, training(algorithm=name), UPDATE, npus=16) for name in ("grpo", "ppo")
    )
    assert with_critic.peak_bytes > alone.peak_bytes
    assert with_critic.left_bytes(()) == pytest.approx(2.0 * alone.left_bytes(()), rel=0.2)
    assert with_critic.phases["critic_update"].seconds == with_critic.phases["update"].seconds


def test_what_is_offloaded_makes_room_and_takes_the_host_link() -> None:
    rl = training()
    kept, away = step(layout(offload=()), rl), step(layout(), rl)
    moves = {phase.name: phase.exposed_s for phase in away.phases if phase.name.endswith("_training")}
    assert moves.keys() == {"onload_training", "offload_training"}
    assert len(kept.phases) == len(away.phases) - 2
    assert away.breakdown["exposed_swap_s"] > kept.breakdown["exposed_swap_s"]
    part = update_part(MODEL, PROFILE, H100, rl, UPDATE, npus=16, pack_tokens=8192)
    assert part.left_bytes(OFFLOAD) == 0.0 < part.left_bytes(("optimizer",)) < part.left_bytes(())


def test_a_missing_split_is_the_best_and_said() -> None:
    cluster = ClusterSpec(profile="nvidia-h100", num_npus=32)
    found = step(layout("async", staleness=1), cluster=cluster)
    each = [step(layout("async", staleness=1, generation_npus=n), cluster=cluster).step_time_s for n in (8, 16, 24)]
    assert found.step_time_s == min(each)
    assert found.notes[-1].kind == "best_split"


@pytest.mark.parametrize(
    ("how", "rl", "rule", "path"),
    [
        (layout(generation=GenerationLayout(tp=3)), {}, "generation_cards", "/strategy/rl/generation/tp"),
        (layout(offload=()), {"response_length": {"max": 400_000}}, "pack_tokens", "/strategy/rl/pack_tokens"),
        (
            layout("separate", generation_npus=8, generation=GenerationLayout(tp=1, memory_fraction=0.22)),
            {},
            "generation_weights",
            "/strategy/rl/generation/memory_fraction",
        ),
        (
            layout("separate", generation_npus=8, generation=GenerationLayout(tp=1, memory_fraction=0.27)),
            {"response_length": {"mean": 1024, "max": 32768}},
            "generation_kv",
            "/strategy/rl/generation/memory_fraction",
        ),
        (layout("separate", generation_npus=16), {}, "split", "/strategy/rl/generation_npus"),
        (layout("separate", generation_npus=10), {}, "", "/strategy/pp"),
    ],
)
def test_what_can_not_run_is_refused_with_its_place(how: RlStrategy, rl: dict[str, Any], rule: str, path: str) -> None:
    if rule == "generation_kv":
        how = how.model_copy(update={"pack_tokens": 65536})
    with pytest.raises(SpecError) as caught:
        step(how, training(**rl))
    assert caught.value.errors[0].path == path
    assert caught.value.errors[0].hint
    assert getattr(caught.value, "rule", "") == rule


def refused(layout_: GenerationLayout, left_bytes: float = 0.0, **lengths: Any) -> InfeasibleRlError:
    rl = training(response_length={"mean": 1024, "max": 4096, **lengths})
    with pytest.raises(InfeasibleRlError) as caught:
        generation_part(BIG, PROFILE, H100, rl, layout_, Case(16, left_bytes))
    return caught.value


def fits(layout_: GenerationLayout, left_bytes: float = 0.0, **lengths: Any) -> bool:
    rl = training(response_length={"mean": 1024, "max": 4096, **lengths})
    return generation_part(BIG, PROFILE, H100, rl, layout_, Case(16, left_bytes)).waves >= 1.0


def test_the_nearest_change_makes_room() -> None:
    assert refused(GenerationLayout(tp=1, memory_fraction=0.75)).errors[0].hint == "memory_fraction=0.83"
    assert fits(GenerationLayout(tp=1, memory_fraction=0.83))
    assert refused(GenerationLayout(tp=1, memory_fraction=0.9), 30e9).errors[0].hint == "offload more states"
    long = refused(GenerationLayout(tp=1, memory_fraction=0.9), mean=8000, max=100_000).errors[0].hint
    most = int(long.split()[4])
    assert fits(GenerationLayout(tp=1, memory_fraction=0.9), mean=8000, max=most - 128)
    assert refused(GenerationLayout(tp=1, memory_fraction=0.9), mean=8000, max=most - 126).rule == "generation_kv"


def test_training_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InfeasibleRlError) as caught:
        step(layout(pack_tokens=262_144), strategy=Strategy(tp=1))
    assert caught.value.rule == "update_memory"


def test_experts_and_what_is_assumed_are_said() -> None:
    found = rl_step(
        EXPERTS,
        A3_PROFILE,
        A3,
        training(response_length={"max": 2048}),
        Strategy(tp=1, ep=8, recompute=Recompute(granularity="full")),
        layout(generation=GenerationLayout(tp=1, dp=8, ep=8, engine="vllm-ascend")),
    )
    assert {note.kind for note in found.notes} == {"mode_assumed", "mean_absent", "experts"}
    assert found.generation["tail_share"] == 0.0


def test_combining_moves_nothing_of_the_parts() -> None:
    rl, how = training(), layout("separate", generation_npus=8)
    update = update_part(MODEL, PROFILE, H100, rl, UPDATE, npus=8, pack_tokens=8192)
    part = generation_part(MODEL, PROFILE, H100, rl, TP1, Case(8))
    found = combined(update, part, rl, how, profile=PROFILE, cluster=H100)
    host = overheads_of("other").step_s
    assert found.step_time_s == pytest.approx(host + update.training_s + part.generation_s + found.hand_over_s)
    assert found.breakdown["host_bound_s"] >= host
    slower = replace(part, generation_s=part.generation_s + 7.0)
    later = combined(update, slower, rl, how, profile=PROFILE, cluster=H100)
    assert later.step_time_s == pytest.approx(found.step_time_s + 7.0)
