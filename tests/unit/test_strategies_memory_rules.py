"""Which memory choices a framework can launch with which strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autodeploy.costs.workload.memory_choices import CHOICES
from autodeploy.space.candidates import SCHEDULES, Candidates
from autodeploy.space.facts import facts_of
from autodeploy.space.rules import launchable
from autodeploy.specs.presets import load_preset
from autodeploy.specs.tuning import ADAPTERS
from autodeploy.stack.features import FEATURES
from autodeploy.stack.releases import release_of

EVERY_TARGET = ("mindspeed-llm", "megatron", "mindformers", "any")


def candidate(schedule: str = "interleaved", **axes: Any) -> Candidates:
    """One candidate; only the axes that memory rules read matter."""
    chosen = {
        **{"tp": 2, "pp": 4, "vpp": 2, "cp": 1, "cp_algo": 0, "ulysses": 1, "ep": 8, "etp": 1, "dp": 16},
        **{"micro_batch_size": 1, "micro_batches": 16, "moe_dispatcher": 0, "schedule": SCHEDULES.index(schedule)},
        **{"sequence_parallel": True, "reuse_fp32_param": False, "swap_optimizer": False, "virtual_optimizer": False},
        **{"keep_gathered": False, "dp_replicate": 1, "tp_pp_dp_mapping": False},
        **axes,
    }
    return Candidates(**{name: np.asarray([value]) for name, value in chosen.items()})


def allowed(
    target: str, model: str = "deepseek-v3", *, off: tuple[str, ...] = (), adapters: bool = False, **axes: Any
) -> frozenset[str]:
    facts = facts_of(
        load_preset(model),
        world=128,
        seq_length=4096,
        global_batch=256,
        node_ranks=8,
        tp_limit=8,
        features=set(FEATURES) - {"high_availability"} - set(off),
        tunings=(ADAPTERS,) if adapters else (),
        release=None if target == "any" else release_of(target, "nvidia" if target == "megatron" else "huawei"),
    )
    return launchable(candidate(**axes), facts, target)


def test_any_can_use_every_choice_there_is() -> None:
    assert allowed("any") == frozenset(CHOICES)


@pytest.mark.parametrize("target", EVERY_TARGET)
def test_every_target_can_recompute_whole_layers_under_a_plain_schedule(target: str) -> None:
    assert "full" in allowed(target)


def test_megatron_excludes_full_recompute_beside_paired_micro_batches() -> None:
    # Megatron-LM: overlap_moe_expert_parallel_comm excludes full recompute and `moe` in the recompute modules.
    assert not {"full", "moe"} & allowed("megatron", schedule="adaptive_pipe")
    assert {"full", "moe"} <= allowed("megatron")


def test_zero_memory_needs_an_overlapped_exchange() -> None:
    # MindSpeed: alltoall-overlap-comm or fb-overlap; under fb-overlap the documentation names level 0 only.
    levels = {"moe_zero_memory_level0", "moe_zero_memory_level1"}
    assert levels & allowed("mindspeed-llm", schedule="adaptive_pipe") == {"moe_zero_memory_level0"}
    assert levels <= allowed("mindspeed-llm")
    assert not levels & allowed("mindspeed-llm", off=("moe_alltoall_overlap",))
    assert not levels & allowed("mindspeed-llm", ep=1)
    assert not levels & (allowed("megatron") | allowed("mindformers"))


def test_swapped_attention_follows_the_schedule() -> None:
    # swap-attention excludes fb-overlap and dualpipev.
    paired, plain = (allowed("mindspeed-llm", schedule=s) for s in ("adaptive_pipe", "1f1b"))
    assert "swap_attention" in plain - paired
    assert "swap_attention" not in allowed("mindspeed-llm", schedule="dualpipev")
    assert "swap_attention" not in allowed("megatron")


@pytest.mark.parametrize("schedule", ["1f1b", "adaptive_pipe", "dualpipev"])
def test_no_release_starts_the_swap_before_the_unpermutation(schedule: str) -> None:
    # MindSpeed's dispatchers return None where the backward pass wants the swapped tensor: it stops in the first step.
    assert "swap_unpermute" not in allowed("mindspeed-llm", schedule=schedule)


def test_latent_up_projections_need_one_rank_or_sequence_parallelism() -> None:
    # MindSpeed recompute-mla-up-proj: tp 1, or mla-up-proj-tp-overlap, which needs sequence parallelism.
    assert "mla_up_proj" in allowed("mindspeed-llm", tp=1, sequence_parallel=False)
    assert "mla_up_proj" in allowed("mindspeed-llm", tp=2, sequence_parallel=True)
    assert "mla_up_proj" not in allowed("mindspeed-llm", tp=2, sequence_parallel=False)


def test_core_attention_is_recomputed_without_flash_attention_only() -> None:
    assert "core_attn" not in allowed("mindspeed-llm")
    assert "core_attn" in allowed("mindspeed-llm", off=("flash_attention",))


@pytest.mark.parametrize("target", ["mindspeed-llm", "megatron"])
def test_only_latent_attention_has_up_projections_to_recompute(target: str) -> None:
    # Under `any` every choice is launchable; there the choice frees nothing of grouped-query attention.
    assert "mla_up_proj" in allowed(target)
    assert "mla_up_proj" not in allowed(target, "llama2-70b", ep=1)


def test_mindformers_has_no_switch_for_latent_up_projections() -> None:
    assert "mla_up_proj" not in allowed("mindformers")
    assert "mla_up_proj" not in allowed("mindformers", "llama2-70b", ep=1)


def test_attention_is_not_swapped_beside_adapters() -> None:
    # MindSpeed's swap_attention.py: "swap attention is not compatible with LoRA".
    plain, adapted = (
        allowed("mindspeed-llm", "qwen3-32b", schedule="1f1b", ep=1, adapters=adapters) for adapters in (False, True)
    )
    assert plain - adapted == {"swap_attention"}
    assert "swap_attention" in allowed("any", "qwen3-32b", adapters=True)
