"""Which features are on, and why the others are not."""

from __future__ import annotations

from typing import Any

import pytest

from autodeploy.kit.errors import UnsupportedError
from autodeploy.space.feature_choice import FeatureChoice, choose_features
from autodeploy.specs.presets import load_preset
from autodeploy.specs.search import SearchSpec
from autodeploy.stack.features import FEATURES
from hardware_profiles import load_profile

TARGETS = ("mindspeed-llm", "megatron", "mindformers", "any")


def choose(model: str = "deepseek-v3", profile: str = "ascend-800t-a2", **search: Any) -> FeatureChoice:
    return choose_features(SearchSpec(**search), load_preset(model), load_profile(profile))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", ["deepseek-v3", "llama2-70b"])
def test_every_feature_is_on_or_has_a_reason(target: str, model: str) -> None:
    choice = choose(model, target=target)
    assert set(choice.switches) == set(FEATURES)
    assert choice.on | set(choice.off_reasons) == set(FEATURES)
    assert not choice.on & set(choice.off_reasons)
    assert {n for n, s in choice.switches.items() if s == "off"} == set(FEATURES) - choice.on


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_off_is_off(name: str) -> None:
    choice = choose("deepseek-v3", target="any", features={name: "off"})
    assert name not in choice.on
    assert choice.off_reasons[name] == "switched off"


def test_every_refusal_is_told_at_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        choose(target="mindspeed-llm", features={"expert_migration": "on", "hierarchical_a2a": "on"})
    assert {p.path for p in caught.value.errors} == {
        "/search/features/expert_migration",
        "/search/features/hierarchical_a2a",
    }


def test_exact_numerics_leave_reordering_features_off() -> None:
    choice = choose(numerics="exact")
    assert all(FEATURES[name].numerics == "exact" for name in choice.on)
    with pytest.raises(UnsupportedError, match="numerics"):
        choose("llama2-70b", numerics="exact", features={"mc2": "on"})


def test_mc2_and_coc_exclude_each_other() -> None:
    # MindSpeed: MC2 and CoC exclude each other; the one asked for stays.
    assert not {"mc2", "coc"} <= choose("llama2-70b").on
    assert choose("llama2-70b", features={"coc": "on"}).on & {"mc2", "coc"} == {"coc"}
    assert choose("llama2-70b", features={"mc2": "on"}).on & {"mc2", "coc"} == {"mc2"}


def test_fused_collectives_exclude_mixture_of_experts() -> None:
    assert not {"mc2", "coc"} & choose("deepseek-v3", target="any").on
    with pytest.raises(UnsupportedError, match="n_routed_experts"):
        choose("deepseek-v3", features={"mc2": "on"})


def test_mc2_is_not_on_atlas_900_a3() -> None:
    assert "mc2" not in choose("llama2-70b", "cloudmatrix-384").on
    assert "coc" in choose("llama2-70b", "cloudmatrix-384").on
    assert "coc_kernel" not in choose("deepseek-v3", "cloudmatrix-384").on


def test_the_fused_kernel_of_coc_serves_models_with_experts_and_takes_the_place_of_chunks() -> None:
    assert "coc_kernel" in choose("deepseek-v3").on
    assert choose("llama2-70b", features={"mc2": "off"}).on & {"mc2", "coc", "coc_kernel"} == {"coc_kernel"}


def test_a_dense_model_has_no_expert_features() -> None:
    choice = choose("llama2-70b", target="any")
    assert not {"adaptive_pipe", "hierarchical_a2a", "moe_alltoall_overlap", "grouped_gemm", "tp_extend_ep"} & choice.on


def test_huaweis_own_mechanisms_run_under_any_only() -> None:
    # Hierarchical All-to-All is registered in MindSpeed core_r0.8.0 only.
    assert "hierarchical_a2a" in choose(target="any").on
    for target in ("mindspeed-llm", "megatron"):
        assert "hierarchical_a2a" not in choose(target=target).on


def test_adaptive_pipe_is_on_where_it_can_be_launched() -> None:
    # MindSpeed moe-fb-overlap; Megatron-LM overlap-moe-expert-parallel-comm.
    for target in ("mindspeed-llm", "megatron", "any"):
        assert "adaptive_pipe" in choose(target=target).on


def test_a_group_switches_its_members() -> None:
    assert "virtual_pipeline_balance" not in choose(features={"edpb": "off"}).on
    assert "host_sync_free" not in choose(target="any", features={"host": "off"}).on


def test_operators_of_a_mechanism_that_the_model_does_not_have_are_off() -> None:
    choice = choose("llama2-70b", target="any")
    assert not {"rect_fa", "vector_sort", "cube_vector_parallel"} & choice.on
    assert {"rect_fa", "ascendp_mm", "vector_sort", "cube_vector_parallel"} <= choose("deepseek-v3", target="any").on


def test_kernels_of_huaweis_own_stack_are_launched_by_no_public_release() -> None:
    own = {"ascendp_mm", "vector_sort", "cube_vector_parallel", "host_sync_free", "host_reorder"}
    assert own <= choose(target="any").on
    for target in ("mindspeed-llm", "megatron", "mindformers"):
        assert not own & choose(target=target).on
    assert "host_core_binding" in choose(target="mindspeed-llm").on
    assert not (own - {"host_sync_free"}) & choose("deepseek-v3", "nvidia-h100", target="any").on


def test_migration_and_mutual_routing_exclude_each_other() -> None:
    # MindSpeed replaces the same layer for both; the one asked for stays.
    choice = choose(target="any")
    assert "expert_migration" in choice.on
    assert choice.off_reasons["mutual_routing"] == "not allowed with expert_migration"
    assert "mutual_routing" not in choice.off_everywhere, "the faster of the two is chosen for each strategy"
    assert choose("llama2-7b", target="megatron").off_everywhere["mutual_routing"] == "requires n_routed_experts"
    asked = choose(target="any", features={"mutual_routing": "on"})
    assert asked.on & {"expert_migration", "mutual_routing"} == {"mutual_routing"}


def test_a_feature_without_what_it_rests_on_is_off_or_refused() -> None:
    # MindSpeed checks --moe-grouped-gemm for both; Megatron-LM gathers parameters only where it overlaps the reduction.
    apart = choose(target="megatron", features={"grouped_gemm": "off"})
    assert not {"moe_alltoall_overlap", "tp_extend_ep", "mutual_routing"} & apart.on
    assert apart.off_reasons["moe_alltoall_overlap"] == "requires grouped_gemm"
    assert "shared_expert_overlap" in apart.on
    assert "moe_alltoall_overlap" in choose(target="any", features={"grouped_gemm": "off"}).on
    with pytest.raises(UnsupportedError, match="tp_extend_ep: requires grouped_gemm"):
        choose(target="mindspeed-llm", features={"grouped_gemm": "off", "tp_extend_ep": "on"})
    assert "overlap_param_gather" not in choose("llama2-70b", features={"overlap_grad_reduce": "off"}).on


@pytest.mark.parametrize("target", ["any", "megatron"])
def test_alternatives_are_left_to_time_only_where_auto_may_have_either(target: str) -> None:
    choice = choose(target=target)
    (copies,) = choice.alternatives
    assert copies == choice.on - {"expert_migration"} | {"mutual_routing"}
    for name in ("expert_migration", "mutual_routing"):
        for asked in ("on", "off"):
            assert choose(target=target, features={name: asked}).alternatives == ()
    assert choose("llama2-70b", target=target).alternatives == ()
    assert choose(target=target, numerics="exact").alternatives == ()


@pytest.mark.parametrize("target", TARGETS)
def test_grouped_multiplication_is_not_left_to_time(target: str) -> None:
    choice = choose(target=target)
    assert all("grouped_gemm" in on for on in (choice.on, *choice.alternatives))


def test_dropped_tokens_are_lossy() -> None:
    assert "capacity_drop" not in choose(target="any").on
    assert "capacity_drop" in choose(target="any", numerics="lossy").on


def test_dropped_tokens_and_the_fused_permutation_exclude_each_other_where_mindspeed_launches() -> None:
    # MindSpeed features_manager/fusions/fused_moe_permute.py: --moe-permute-fusion takes padded experts only.
    lossy = choose(target="mindspeed-llm", numerics="lossy")
    assert lossy.on & {"capacity_drop", "fused_operators"} == {"fused_operators"}
    assert lossy.off_reasons["capacity_drop"] == "not allowed with fused_operators"
    asked = choose(target="mindspeed-llm", numerics="lossy", features={"capacity_drop": "on"})
    assert asked.on & {"capacity_drop", "fused_operators"} == {"capacity_drop"}
    assert {"capacity_drop", "fused_operators"} <= choose(target="any", numerics="lossy").on


def test_levelling_is_launched_where_a_release_registers_its_flags() -> None:
    # MindSpeed registers both; MindSpeed-LLM builds its own list of MindSpeed's features, without them.
    levelling = {"expert_migration", "mutual_routing"}
    for target in ("mindspeed-llm", "mindformers"):
        assert not {*levelling, "sample_rearrangement"} & choose(target=target).on
        assert not choose(target=target).alternatives
    assert "expert_migration" in choose(target="megatron").on
    assert "mutual_routing" in choose(target="megatron", features={"mutual_routing": "on"}).on
    assert not levelling & choose(profile="nvidia-h100", target="megatron").on
    assert not levelling & choose("llama2-70b", target="any").on


def test_what_ascends_framework_has_without_mindspeed_llm() -> None:
    # Megatron-LM with MindSpeed: what MindSpeed registers is there, on Ascend only.
    there = choose("llama2-70b", target="megatron").on
    assert {"swap_attention", "reuse_fp32_param", "virtual_optimizer"} <= there
    assert there & {"mc2", "coc"}
    assert not {"swap_attention", "reuse_fp32_param", "mc2"} & choose("llama2-70b", "nvidia-h100", target="megatron").on


def test_mindformers_has_a_two_step_exchange() -> None:
    assert "hierarchical_a2a" in choose(target="mindformers").on
