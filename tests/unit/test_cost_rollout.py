"""Generation over the distribution of lengths, held against generation played through event by event."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cost_models.placements import asynchronous
from cost_models.response_lengths import equal_lengths, histogram_lengths, lognormal_lengths
from cost_models.rollout import rollout
from cost_models.rollout_batch import Engines
from cost_models.rollout_slots import held_tokens, slots
from tests.support.rollout_events import mean_step_s, slowest_unit_s

SPREAD = lognormal_lengths(300, 0.8, 1024)
LONG_TAIL = lognormal_lengths(300, 1.5, 4096)
STEPS = histogram_lengths({100: 0.5, 400: 0.3, 1000: 0.2})
CUT = lognormal_lengths(800, 0.8, 1024)
EQUAL = equal_lengths(500)


def tpot(batch, context):
    return 1.0 + 0.02 * batch + 1e-5 * batch * context


def nothing(tokens):
    return 0.0 * tokens


def decode_s(lengths, shape, **options):
    found = rollout(Engines.of(*shape), lengths, 100, tpot, nothing, **options)
    return float(found.decode_s[0])


# Responses of a rank, slots, ranks of a unit, units; responses of a prompt on a rank.
ALONE, REPLICAS, PROMPTS, GROUP, GROUPS = (
    ((64, 64, 1, 1), 1),
    ((64, 64, 1, 8), 1),
    ((64, 64, 1, 8), 16),
    ((64, 64, 8, 1), 16),
    ((32, 32, 16, 2), 8),
)
QUEUE, QUEUES, ONE_BY_ONE, FEW = ((64, 16, 1, 1), 1), ((64, 8, 4, 2), 8), ((8, 1, 1, 4), 1), ((4, 4, 1, 16), 1)


@pytest.mark.parametrize(("shape", "group_size"), [ALONE, REPLICAS, PROMPTS, GROUP, GROUPS, QUEUE, QUEUES, FEW])
@pytest.mark.parametrize("lengths", [SPREAD, STEPS, CUT], ids=["spread", "steps", "cut"])
def test_generation_takes_as_long_as_played_through(lengths, shape, group_size):
    played = slowest_unit_s(lengths, 100, tpot, shape, group_size=group_size, correlation=0.5)
    assert decode_s(lengths, shape, group_size=group_size) == pytest.approx(played, rel=0.06)


@pytest.mark.parametrize(("shape", "group_size"), [ALONE, REPLICAS, GROUP, GROUPS, QUEUE, FEW])
def test_a_long_tail_takes_as_long_as_played_through(shape, group_size):
    """The longest of few responses varies by a third from step to step: more steps, and what remains of that."""
    played = slowest_unit_s(LONG_TAIL, 100, tpot, shape, group_size=group_size, correlation=0.5, trials=80)
    assert decode_s(LONG_TAIL, shape, group_size=group_size) == pytest.approx(played, rel=0.09)


@pytest.mark.parametrize(("shape", "group_size"), [ALONE, PROMPTS, GROUPS, QUEUE, QUEUES, ONE_BY_ONE])
def test_equal_responses_take_exactly_as_long(shape, group_size):
    played = slowest_unit_s(EQUAL, 100, tpot, shape, group_size=group_size, trials=1)
    assert decode_s(EQUAL, shape, group_size=group_size) == pytest.approx(played, rel=1e-9)


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
@pytest.mark.parametrize("training_s", [1.0, 300.0, 1000.0, 3000.0])
def test_asynchronous_steps_take_as_long_as_played_through(training_s, staleness):
    def plain(batch, context):
        return 1.0 + 0.02 * batch

    strict, ahead = (
        rollout(Engines.of(32, 1e6), SPREAD, 0, plain, nothing, parts=parts).generation_s
        for parts in (max(1, staleness), staleness + 1)
    )
    step = asynchronous(strict, 0.0, {"update": training_s}, 32, staleness, ahead_s=ahead)
    played = mean_step_s(SPREAD, plain, 32, training_s, staleness)
    assert float(step.step_s[0]) == pytest.approx(played, rel=0.06)


def test_a_linear_time_counts_the_longest_response_and_all_tokens():
    """a E max + b (sum of lengths): exact, whatever the distribution."""
    found = rollout(Engines.of(64, 64), SPREAD, 0, lambda batch, context: 2.0 + 0.1 * batch, nothing)
    exact = 2.0 * float(found.longest_tokens[0]) + 0.1 * 64 * SPREAD.mean
    assert float(found.decode_s[0]) == pytest.approx(exact, rel=1e-9)


def test_contexts_add_up():
    """Every token is written once with the tokens before it in its cache: sum of l^2 / 2, and the prompt."""
    for held in (64, 20, 5):
        found = rollout(Engines.of(64, held), SPREAD, 50, lambda batch, context: batch * context, nothing)
        exact = 64 * (SPREAD.mean * 50 + SPREAD.mean_square / 2)
        assert float(found.decode_s[0]) == pytest.approx(exact, rel=0.03)


def test_prefill_counts_a_shared_prompt_once():
    def prefill(tokens):
        return 1e-3 * tokens

    each = [
        float(rollout(Engines.of(64, 64), SPREAD, 500, tpot, prefill, group_size=16, shared_prefix=shared).prefill_s[0])
        for shared in (True, False)
    ]
    assert each == pytest.approx([1e-3 * 4 * 500, 1e-3 * 64 * 500])


def test_partial_rollout_runs_old_and_new_responses_beside_each_other():
    """Equal responses of 500 tokens over two steps: always twice as many, 250 steps, and the older half kept."""
    found = rollout(Engines.of(10, 100), EQUAL, 0, tpot, lambda tokens: 1e-3 * tokens, parts=2)
    assert found.batch[0] == pytest.approx(20.0)
    assert float(found.decode_s[0]) == pytest.approx(250 * (1.0 + 0.02 * 20 + 1e-5 * 20 * 250), rel=1e-3)
    assert float(found.kept_tokens[0]) == pytest.approx(10 * 250, rel=0.03)
    assert float(found.prefill_s[0]) == pytest.approx(2.5, rel=0.03)
    resumed = rollout(Engines.of(10, 100), EQUAL, 0, tpot, lambda tokens: 1e-3 * tokens, parts=2, prefill_kept=False)
    assert float(resumed.prefill_s[0]) == 0.0


def test_many_parts_tend_to_the_steady_rate():
    found = rollout(Engines.of(64, 64), SPREAD, 0, tpot, nothing, parts=8)
    assert float(found.decode_s[0]) == pytest.approx(float(found.steady_s[0]), rel=0.03)


def test_the_series_ends_with_the_tail():
    found = rollout(Engines.of(128, 128, 1, 16), lognormal_lengths(2500, 0.8, 8192), 512, tpot, nothing, group_size=16)
    assert found.start_batch[0] == 128.0
    assert found.ends_s[0, -1] == pytest.approx(float(found.decode_s[0]))
    assert np.all(np.diff(found.ends_s[0]) >= 0.0)
    last = found.ends_s[0] > found.decode_s[0] - found.tail_s[0] + 1e-6
    assert np.all(found.mean_batch[0][last] <= 12.8 + 1e-9)
    assert found.longest_s[0] == pytest.approx(float(found.decode_s[0]))


@pytest.mark.parametrize(("mean", "cap", "least", "most"), [(2500, 8192, 0.15, 0.35), (8000, 32768, 0.25, 0.5)])
def test_the_last_tenth_of_requests_takes_what_is_published(mean, cap, least, most):
    """Seer, arXiv:2511.14617: the last 10 % of requests take up to half of the rollout.

    With a time per token as of Qwen3-32B on 4 x 800T A2: 53 ms alone, 70 ms at a batch of 34.
    """
    lengths = lognormal_lengths(mean, 0.8, cap)
    found = rollout(Engines.of(300, 300, 1, 8), lengths, 512, lambda b, c: 0.053 + 5e-4 * b, nothing)
    assert least < float(found.tail_share[0]) < most


def test_a_group_waits_for_its_fullest_rank():
    one, group = decode_s(SPREAD, (32, 32, 1, 1)), decode_s(SPREAD, (32, 32, 64, 1))
    replicas = decode_s(SPREAD, (32, 32, 1, 64))
    assert one < replicas < group


def test_generation_does_not_scale_with_cards():
    """T = a + b / N of two sizes leaves more than half in a, the longest response one token at a time.

    As two sizes of one run of NeMo RL do: responses of 3,200 tokens of at most 4,096, 2,048 of them.
    """
    lengths = lognormal_lengths(3203, 0.8, 4096)
    small, large = (
        float(
            rollout(
                Engines.of(2048 / units, 2048 / units, 1, units), lengths, 110, lambda b, c: 0.012 + 5e-5 * b, nothing
            ).generation_s[0]
        )
        for units in (16, 32)
    )
    constant = 2 * large - small
    assert 0.5 < constant / small < 1.0
    assert large < small < 2 * large


@pytest.mark.parametrize("parts", [1, 2])
def test_few_responses_of_a_group_reach_few_experts(parts):
    """The fullest rank has one response long before the group has only one: its experts' weights are read less."""

    def experts(batch, context, group=None):
        group = 64.0 * batch if group is None else group
        assert np.all(group >= np.maximum(1.0, batch) * (1 - 1e-9))
        assert np.all(group <= 64.0 * batch * (1 + 1e-9))
        return 1.0 + 4.0 * (1.0 - (1.0 - 8 / 256) ** group)

    engines = Engines.of(32, 32, 64, 2)
    each = [
        float(rollout(engines, LONG_TAIL, 100, experts, nothing, parts=parts, by_group=known).decode_s[0])
        for known in (False, True)
    ]
    assert each[1] < (0.97 if parts == 1 else 1.0) * each[0]


def test_likeness_makes_replicas_differ():
    alike = decode_s(CUT, (64, 64, 1, 32), group_size=16, correlation=0.8)
    unlike = decode_s(CUT, (64, 64, 1, 32), group_size=16, correlation=0.0)
    assert alike > 1.02 * unlike


def test_slots_follow_from_the_cache():
    longest = 1024 + 100
    at_once, queued = (float(x) for x in held_tokens(SPREAD, 100))
    assert at_once < queued
    cases = {
        64 * at_once + 1: 64.0,  # all fit while they shrink in number as they grow in length
        64 * at_once - 1: math.floor((64 * at_once - 1) / queued),
        longest: max(1.0, math.floor(longest / queued)),
        longest - 1: 0.0,
    }
    for kv_tokens, expected in cases.items():
        assert float(slots(64, kv_tokens, 1000, SPREAD, 100)) == expected
    assert float(slots(64, 1e9, 24, SPREAD, 100)) == 24.0
    shared = float(slots(64, 64 * at_once * 0.9, 1000, SPREAD, 100, group_size=16))
    assert shared > float(slots(64, 64 * at_once * 0.9, 1000, SPREAD, 100))


def test_thousands_of_layouts_are_one_call():
    count = 2000
    shapes = [2.0 ** (3 + np.arange(count) % 8), 64, 4, 2.0 ** (np.arange(count) % 5)]
    many = rollout(Engines.of(*shapes), SPREAD, 100, tpot, nothing, group_size=8)
    for one in (0, 5, 777, 1999):
        alone = decode_s(SPREAD, tuple(float(np.broadcast_to(each, count)[one]) for each in shapes), group_size=8)
        assert float(many.decode_s[one]) == pytest.approx(alone, rel=1e-12)
