"""Time of an output token, of a prompt, and the bytes of keys and values, against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autodeploy.costs.post_training.generator import Generator, generator_of
from autodeploy.costs.workload.generation import rank_work
from autodeploy.costs.workload.kinds import ATTENTION
from autodeploy.kit.errors import UnsupportedError
from autodeploy.specs.presets import load_preset
from autodeploy.specs.rl import GenerationLayout
from cost_models.generation import experts_touched
from cost_models.serving import interrupted_share, served
from hardware_profiles.generation import GenerationNumbers, generation_numbers, generation_systems
from hardware_profiles.loader import load_profile

BATCHES = np.array([1.0, 2.0, 8.0, 32.0, 128.0, 512.0])


def generator(model: str = "qwen3-32b", profile: str = "nvidia-h100", **layout: Any) -> Generator:
    """A preset on a shipped profile."""
    hardware = load_profile(profile)
    return generator_of(load_preset(model), hardware, hardware.device(), GenerationLayout(**layout))


@pytest.mark.parametrize(
    ("model", "tp", "expected"),
    [
        ("qwen3-32b", 1, 262_144),  # 2 x 64 layers x 8 heads x 128 x 2 B
        ("qwen3-32b", 8, 32_768),
        ("qwen3-32b", 16, 32_768),  # eight heads: two ranks hold the same one
        ("llama3.1-8b", 1, 131_072),
        ("deepseek-v3", 1, 70_272),  # 61 layers x (512 + 64) x 2 B
        ("deepseek-v3", 8, 70_272),  # one latent for all heads, on every rank
    ],
)
def test_keys_and_values_of_a_token(model: str, tp: int, expected: int) -> None:
    spec = load_preset(model)
    cached = ATTENTION[spec.attention.name].cached
    assert cached is not None
    assert spec.num_hidden_layers * cached(spec, tp)[0] == expected
    assert generator(model, tp=tp, engine="vllm").model.kv_bytes_per_token == expected


def test_attention_data_parallel_ranks_do_not_share_keys_and_values() -> None:
    one = generator("deepseek-v3", "cloudmatrix-384", tp=1, dp=256, ep=256, engine="vllm-ascend").model
    eight = generator("deepseek-v3", "cloudmatrix-384", tp=8, dp=32, ep=256, engine="vllm-ascend").model
    assert one.kv_bytes_per_token == eight.kv_bytes_per_token
    # In the same space each of eight dies has sequences of its own, or all hold the same ones.
    assert one.requests_that_fit(4096, space_bytes=1e10) == eight.requests_that_fit(4096, space_bytes=1e10) == 34


def test_experts_that_a_batch_touches() -> None:
    assert experts_touched(128, 8 / 128, 1) == pytest.approx(8.0)
    assert experts_touched(4, 8 / 256, 10_000) == pytest.approx(4.0)
    # By counting: two tokens that choose 1 of 2 experts touch 1.5 in the mean.
    assert experts_touched(2, 0.5, 2) == pytest.approx(1.5)


def test_weights_of_few_tokens_are_those_of_the_experts_they_reach() -> None:
    model = generator("qwen3-30b-a3b", tp=1, engine="vllm").model
    parts = model.parts_s(BATCHES, 1000.0)
    rates = model.rates
    spec = load_preset("qwen3-30b-a3b")
    read = 48 * 2.0 * spec.routed_expert_params * experts_touched(128, 8 / 128, BATCHES)
    least = read / (np.asarray(rates.compute.hbm_bytes_per_s) * rates.expert_fraction)
    assert parts["experts_s"][0] == pytest.approx(least[0], rel=0.02)
    assert np.all(parts["experts_s"] >= least * (1 - 1e-9))
    assert parts["experts_s"][0] < 0.1 * parts["experts_s"][-1]


def test_weights_bind_small_batches_and_products_large_ones() -> None:
    model = generator(tp=2, engine="vllm").model
    seconds = model.parts_s(np.array([1.0, 16.0, 4096.0]), 1000.0)["weights_s"]
    linear = 2.0 * sum(p.weights for p in model.products)
    compute = model.rates.compute
    assert seconds[0] == pytest.approx(linear / (compute.hbm_bytes_per_s * compute.operand_fraction), rel=1e-3)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.02)
    assert seconds[2] > 3.0 * seconds[0]


@pytest.mark.parametrize("model", ["qwen3-32b", "qwen3-30b-a3b"])
def test_parts_add_up_and_grow_with_batch_and_context(model: str) -> None:
    found = generator(model, tp=2, engine="vllm").model
    assert np.array_equal(sum(found.parts_s(BATCHES, 2000.0).values()), found.tpot_s(BATCHES, 2000.0))
    assert np.all(np.diff(found.tpot_s(BATCHES, 2000.0)) > 0.0)
    assert np.all(np.diff(found.tpot_s(32.0, np.array([1.0, 100.0, 1e4]))) > 0.0)
    # One token each a step: a larger batch never makes fewer tokens a second.
    assert np.all(np.diff(BATCHES / found.tpot_s(BATCHES, 2000.0)) > 0.0)


def test_readers_of_arrays_and_of_numbers_agree() -> None:
    model = generator("deepseek-v3", "cloudmatrix-384", tp=1, dp=32, ep=32, engine="vllm-ascend").model
    many = model.tpot_s(BATCHES, np.full(6, 3000.0))
    contexts = np.array([[1000.0], [3000.0]])  # any shapes that broadcast together
    assert model.tpot_s(BATCHES, contexts, BATCHES * 32).shape == (2, 6)
    assert np.array_equal(model.tpot_s(BATCHES, contexts, BATCHES * 32)[1], model.tpot_s(BATCHES, 3000.0, BATCHES * 32))
    assert model.prefill_s(contexts, length=512.0).shape == (2, 1)
    assert many == pytest.approx([float(model.tpot_s(batch, 3000.0)) for batch in BATCHES], rel=1e-12)


def test_a_fuller_rank_waits_for_the_group_of_its_experts_only_as_far_as_it_has_tokens() -> None:
    model = generator("deepseek-v3", "cloudmatrix-384", tp=1, dp=32, ep=32, engine="vllm-ascend").model
    even, alone = model.tpot_s(16.0, 3000.0), model.tpot_s(16.0, 3000.0, group_batch=16.0)
    assert alone < even
    assert model.tpot_s(16.0, 3000.0, group_batch=16.0 * 32) == pytest.approx(even, rel=1e-12)


def test_eager_mode_takes_its_own_constant_and_is_named() -> None:
    graph = generator(tp=4, engine="vllm-ascend", profile="ascend-800t-a2", mode="graph")
    eager = generator(tp=4, engine="vllm-ascend", profile="ascend-800t-a2", mode="eager")
    unsaid = generator(tp=4, engine="vllm-ascend", profile="ascend-800t-a2")
    assert eager.model.tpot_s(1.0, 100.0) > 1.5 * graph.model.tpot_s(1.0, 100.0)
    assert (graph.mode, graph.mode_is_assumed) == ("graph", False)
    assert (unsaid.mode, unsaid.mode_is_assumed) == ("eager", True)
    assert unsaid.model == eager.model


def test_experts_on_ascend_are_predicted_within_40_percent_at_best() -> None:
    for profile in ("ascend-800t-a2", "cloudmatrix-384"):
        found = generator("qwen3-30b-a3b", profile, tp=1, engine="vllm-ascend")
        assert found.half_width >= 0.40
        assert found.model.rates.half_width == found.half_width


def test_requests_that_fit() -> None:
    model = generator(tp=2, engine="vllm").model
    space = model.cache_space_bytes
    assert model.requests_that_fit(4096) == np.floor(space / (131_072 * 4096))
    assert model.requests_that_fit(4096, space_bytes=-1.0) == 0.0
    assert model.requests_that_fit(4096, space_bytes=0.5 * space) <= 0.5 * model.requests_that_fit(4096)
    # 65.5 GB of weights on 80 GiB leave room for a handful of sequences, on 64 GiB for none.
    assert 1 <= float(generator(tp=1, engine="sglang").model.requests_that_fit(2048)) <= 16
    ascend = generator(tp=1, profile="ascend-800t-a2", engine="vllm-ascend").model
    assert float(ascend.requests_that_fit(2048)) == 0.0
    # What training leaves on the device is not there for keys and values.
    hardware, layout = load_profile("nvidia-h100"), GenerationLayout(tp=2)
    less = generator_of(load_preset("qwen3-32b"), hardware, hardware.device(), layout, taken_bytes=1e10).model
    assert less.cache_space_bytes == pytest.approx(space - 1e10)


def test_a_window_bounds_what_is_kept() -> None:
    spec = load_preset("qwen3-8b").model_copy(update={"sliding_window": 1024})
    hardware = load_profile("nvidia-h100")
    model = generator_of(spec, hardware, hardware.device(), GenerationLayout()).model
    assert model.cache_bytes(500.0) == pytest.approx(500.0 * model.kv_bytes_per_token)
    assert model.cache_bytes(50_000.0) == pytest.approx(1024.0 * model.kv_bytes_per_token)
    assert model.tpot_s(64.0, 50_000.0) == pytest.approx(model.tpot_s(64.0, 1024.0))


def test_weights_in_eight_bits_are_half_as_many_bytes() -> None:
    spec = load_preset("qwen3-32b")
    wide, narrow = (rank_work(spec, 4, 1, 1, weight_bytes=b).weights_bytes for b in (2.0, 1.0))
    ends = 2.0 * (spec.embedding_params + spec.head_params) / 4
    assert narrow - ends == pytest.approx((wide - ends) / 2, rel=1e-3)
    assert wide * 4 == pytest.approx(2.0 * spec.total_params(), rel=2e-3)
    slow, fast = (generator(tp=4, precision=p, engine="vllm").model.parts_s(1.0, 10.0) for p in ("bf16", "fp8"))
    assert fast["weights_s"] < 0.6 * slow["weights_s"]
    with pytest.raises(UnsupportedError, match="does not support fp8"):
        generator(tp=4, precision="fp8", profile="ascend-800t-a2", engine="vllm-ascend")


def test_prompts_cost_what_the_device_or_the_host_needs() -> None:
    model = generator("llama3.1-8b", tp=8, engine="trtllm").model
    assert model.prefill_s(128.0) == model.issue_floor_s > model.prefill_device_s(128.0)
    assert model.prefill_s(65_536.0) == model.prefill_device_s(65_536.0)
    assert model.prefill_device_s(0.0) == 0.0
    # Attention grows with the square: short prompts cost less than one of as many tokens.
    assert model.prefill_device_s(65_536.0, length=512.0) < model.prefill_device_s(65_536.0)


def test_tokens_are_dispatched_where_ranks_have_batches_of_their_own() -> None:
    def exchange(tp: int, dp: int, ep: int) -> float:
        model = generator("qwen3-30b-a3b", tp=tp, dp=dp, ep=ep, engine="vllm").model
        return float(model.parts_s(64.0, 1000.0)["exchange_s"].max())

    assert exchange(8, 1, 1) == exchange(8, 1, 8) == exchange(1, 8, 1) == 0.0
    start = 48 * 2 * generation_numbers(load_profile("nvidia-h100")).value("exchange_us") * 1e-6
    assert exchange(1, 8, 8) > start
    assert generator("qwen3-32b", tp=8, engine="vllm").model.reduces == 128


def test_share_of_prompts_between_tokens() -> None:
    assert interrupted_share(4.0, 1000.0, None) == 0.75
    assert interrupted_share(20.0, 1000.0, None, 0.1) == pytest.approx(0.85)
    assert interrupted_share(1.0, 1000.0, None, 0.1) == 0.0
    assert interrupted_share(16.0, 1000.0, 16_384.0) == 0.0  # one pass: all begin together
    assert interrupted_share(64.0, 1024.0, 16_384.0) == pytest.approx(3 / 8)


def test_serving_keeps_to_the_room_and_to_one_lifetime() -> None:
    model = generator(tp=2, engine="vllm").model
    alone = served(model, 1.0, 100.0, 1000.0)
    assert alone.tpot_s == alone.decode_s  # nobody interrupts
    full = served(model, np.array([32.0, 1000.0]), 4096.0, 1024.0)
    assert full.running[1] == model.requests_that_fit(4096.0 + 512.0) < 1000.0
    assert full.ttft_s[1] > 20.0 * full.ttft_s[0]
    limited = served(model, 64.0, 1024.0, 512.0, most_running=8.0)
    assert limited.running == 8.0
    assert limited.tpot_s < served(model, 64.0, 1024.0, 512.0).tpot_s


def test_numbers_of_generation_have_sources_and_intervals() -> None:
    for name in generation_systems():
        document = generation_numbers(load_profile(name)).document
        for number in document.numbers.values():
            assert number.interval[0] <= number.value <= number.interval[1]
            assert number.source in document.sources or " " in number.source
        for table in (document.layer_us, *document.engines.values()):
            assert table
    other = generation_numbers(load_profile("nvidia-a100-80g"))
    assert not other.own
    assert other.document.profile == "nvidia-h100"


def test_constants_are_the_engines_own_or_those_of_the_nearest_degree() -> None:
    numbers = generation_numbers(load_profile("nvidia-h100"), calibrated=False)
    assert numbers.layer("vllm", "graph", 16) == numbers.layer("vllm", "graph", 8)
    mine = numbers.document.layer_us["graph"][2].model_copy(update={"value": 77.0})
    own = numbers.document.model_copy(update={"engines": {"vllm": {"graph": {2: mine}}}})
    found = replace(numbers, document=own)
    assert isinstance(found, GenerationNumbers)
    assert (found.layer("vllm", "graph", 2).value, found.layer("sglang", "graph", 2).value) == (77.0, 60.0)
    assert found.layer("vllm", "graph", 4).value == 60.0
