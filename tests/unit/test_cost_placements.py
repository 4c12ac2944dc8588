"""Colocated, separate and asynchronous steps: phases, what is exposed, splits, the rules to count tokens."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.placements import MOVES, asynchronous, colocated, separate, tokens_per_s

TRAINING = {"log_probabilities": 4.0, "reference": 3.0, "update": 20.0}


def spans(step):
    return {phase.name: (float(phase.start_s), float(phase.end_s), phase.devices) for phase in step.phases}


def exposed(step):
    return sum(float(phase.exposed_s) for phase in step.phases)


def test_colocated_phases_follow_each_other():
    moves = {"onload_generation": 1.0, "onload_training": 2.0, "offload_training": 2.0}
    step = colocated(50.0, 0.5, TRAINING, 512, moves=moves)
    assert float(step.step_s) == 50 + 0.5 + 27 + 5
    assert list(spans(step)) == [
        "hand_over",
        "onload_generation",
        "generation",
        "onload_training",
        "log_probabilities",
        "reference",
        "update",
        "offload_training",
    ]
    assert spans(step)["update"] == (60.5, 80.5, "all")
    assert exposed(step) == float(step.step_s)
    assert float(step.samples_in_flight) == 512
    assert float(colocated(50.0, 0.5, TRAINING, 512, kept_samples=100).samples_in_flight) == 612


def test_a_move_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="'onload' is no move; known: onload_generation"):
        colocated(50.0, 0.5, TRAINING, 512, moves={"onload": 1.0})
    assert len(MOVES) == 4


def test_separate_devices_wait_for_each_other():
    step = separate(50.0, 2.0, TRAINING, 512)
    assert spans(step)["generation"] == (0.0, 50.0, "generation")
    assert spans(step)["update"] == (57.0, 77.0, "training")
    assert float(step.step_s) == 79.0
    assert exposed(step) == 79.0


@pytest.mark.parametrize("options", [{}, {"ahead_s": 30.0}, {"steady_s": 10.0}])
def test_staleness_0_equals_synchronous(options):
    assert asynchronous(50.0, 2.0, TRAINING, 512, 0, **options) == separate(50.0, 2.0, TRAINING, 512)


@pytest.mark.parametrize(
    ("generation_s", "ahead_s", "step_s"),
    [
        (20.0, None, 27 + 2),  # training sets the pace
        (50.0, None, 50 + 2),  # one step off policy
        (50.0, 50.0, 50 + 2),  # full batches: running more at once gains nothing
    ],
)
def test_asynchronous_steps_take_the_longer_side(generation_s, ahead_s, step_s):
    step = asynchronous(generation_s, 2.0, TRAINING, 512, 1, ahead_s=ahead_s)
    assert float(step.step_s) == pytest.approx(step_s)
    assert exposed(step) == pytest.approx(step_s)
    assert float(step.samples_in_flight) == 1024


def test_running_ahead_satisfies_the_bound():
    """(staleness + 1) step = o g(o) + training, with g linear between both."""
    for staleness, strict, ahead in ((1, 100.0, 55.0), (2, 60.0, 42.0), (4, 40.0, 34.0)):
        step = asynchronous(strict, 0.0, TRAINING, 512, staleness, ahead_s=ahead)
        pace = float(step.step_s)
        share = (strict - pace) / (strict - ahead)
        assert 0.0 < share < 1.0
        assert (staleness + share) * pace + 27.0 == pytest.approx((staleness + 1) * pace)


def test_without_training_the_longest_response_takes_staleness_and_one_steps():
    assert float(asynchronous(100.0, 0.0, {"update": 0.0}, 1, 1, ahead_s=55.0).step_s) == pytest.approx(55.0)


def test_where_the_longest_response_blocks_it_is_told():
    step = asynchronous(50.0, 0.0, TRAINING, 512, 1, steady_s=30.0)
    assert float(step.blocked_s) == 20.0
    assert float(asynchronous(50.0, 0.0, TRAINING, 512, 1, steady_s=50.0).blocked_s) == 0.0
    assert float(asynchronous(20.0, 0.0, TRAINING, 512, 1, steady_s=10.0).blocked_s) == 0.0


def test_layouts_are_arrays():
    step = asynchronous(np.array([20.0, 50.0]), 2.0, {"update": np.array([30.0, 10.0])}, 512, 1)
    assert step.step_s.tolist() == [32.0, 52.0]


def test_three_rules_to_count_tokens():
    """NeMo RL, DeepSeek-V3 on 256 H100: 512 responses of 701 tokens, prompts of 110, 134 s: 12.1 tokens/s a card."""
    counts = tokens_per_s(512, 134.0, prompt_mean=110, prompt_max=110, response_mean=701, response_max=1426)
    assert float(counts["mean"]) / 256 == pytest.approx(12.1, abs=0.05)
    assert float(counts["max"]) == pytest.approx(512 * 1536 / 134)
    assert float(counts["response"]) == pytest.approx(512 * 701 / 134)


@pytest.mark.parametrize(
    ("cards", "samples", "length", "step_s", "published"),
    [(128, 512, 5698, 395.0, 58.9), (32, 2048, 3203, 192.0, 1102.0), (16, 2048, 1019, 92.8, 1581.0)],
)
def test_other_steps_of_nemo_are_counted_so_too(cards, samples, length, step_s, published):
    counts = tokens_per_s(samples, step_s, prompt_mean=110, prompt_max=110, response_mean=length, response_max=length)
    assert float(counts["mean"]) / cards == pytest.approx(published, rel=0.02)
