"""Presets: their parameter counts against the published ones, and how they are found and loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.specs.presets import _read, list_presets, load_preset, preset_names, presets_of_width, read_preset
from tests.support.pace import at_most

EXPECTED = [
    "deepseek-v2",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "ernie-4.5-300b-a47b",
    "gemma3-27b",
    "glm-4.5",
    "glm-4.5-air",
    "glm-5",
    "glm-5.2",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "gpt3-175b",
    "hunyuan-a13b",
    "kimi-k2",
    "kimi-linear-48b-a3b",
    "llama2-13b",
    "llama2-70b",
    "llama2-7b",
    "llama3-70b",
    "llama3-8b",
    "llama3.1-405b",
    "llama3.1-70b",
    "llama3.1-8b",
    "llama4-maverick",
    "llama4-scout",
    "longcat-flash",
    "minimax-m2",
    "mixtral-8x22b",
    "mixtral-8x7b",
    "pangu-pro-moe-72b",
    "pangu-ultra-135b",
    "pangu-ultra-moe-718b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen2.5-72b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-14b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen3-8b",
    "qwen3-next-80b-a3b",
    "qwen3.5-27b",
    "qwen3.5-35b-a3b",
    "qwen3.5-397b-a17b",
    "step-3.5-flash",
]


def test_the_presets_are_the_promised_ones() -> None:
    assert list(preset_names()) == EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    preset = read_preset(name)
    published = preset.published
    total_b, active_b = preset.counted_params_b()
    tolerance = published.tolerance_pct / 100
    assert total_b == pytest.approx(published.total_params_b, rel=tolerance)
    assert preset.model.is_moe == (published.active_params_b is not None)
    if published.active_params_b is not None:
        assert active_b == pytest.approx(published.active_params_b, rel=tolerance)
    if published.mtp_params_b is not None:
        assert preset.model.mtp_params / 1e9 == pytest.approx(published.mtp_params_b, rel=tolerance)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_wide_tolerance_has_a_reason(name: str) -> None:
    published = read_preset(name).published
    assert published.tolerance_pct <= 1.0 or published.tolerance_reason


def test_deepseek_v3_is_what_its_article_says() -> None:
    model = load_preset("deepseek-v3")
    assert model.name == "DeepSeek-V3 671B"
    assert (model.num_dense_layers, model.num_moe_layers, model.num_nextn_predict_layers) == (3, 58, 1)
    assert model.kv_lora_rank is not None
    assert model.total_params() / 1e9 == pytest.approx(671.0, abs=0.1)
    assert model.active_params(include_embedding=False) / 1e9 == pytest.approx(36.6, abs=0.05)


def test_a_preset_is_found_however_its_name_is_written() -> None:
    assert load_preset(" DeepSeek_V3 ") is load_preset("deepseek-v3")


@pytest.mark.parametrize("name", ["deepsek-v3", "../presets", "", "nothing like it", "x" * 10_000])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_preset(name)
    (error,) = caught.value.errors
    assert error.path == "/model"
    assert error.hint
    assert len(error.message) < 200


def test_a_near_miss_gets_a_suggestion() -> None:
    with pytest.raises(SpecError) as caught:
        load_preset("qwen3-235b")
    assert "qwen3-235b-a22b" in caught.value.errors[0].hint


def test_presets_of_a_width_are_all_those_that_have_it() -> None:
    every = [read_preset(name) for name in preset_names()]
    for width in {preset.model.hidden_size for preset in every}:
        assert presets_of_width(width) == [preset for preset in every if preset.model.hidden_size == width]
    assert presets_of_width(716) == []


def test_the_list_says_what_is_assumed() -> None:
    listed = {info.name: info for info in list_presets()}
    assert list(listed) == EXPECTED
    assert all(info.source and info.params_b >= info.active_b > 0 for info in listed.values())
    assert [name for name, info in listed.items() if info.assumed] == ["pangu-ultra-moe-718b"]
    assert listed["qwen3-235b-a22b"].active_b == 22
    assert listed["llama2-70b"].active_b == listed["llama2-70b"].params_b


def test_one_preset_loads_fast() -> None:
    load_preset("mixtral-8x22b")  # the YAML library is imported once
    _read.cache_clear()
    with at_most(0.02):
        load_preset("glm-4.5")


def test_importing_presets_reads_no_file() -> None:
    code = "import sys, autodeploy.specs.presets; assert not any(m.startswith('ruamel') for m in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
