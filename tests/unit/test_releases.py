"""Releases and what their parsers register: one default for each vendor, and tables of facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.stack.checkpoints import checkpoint_formats
from autodeploy.stack.flag_tables import RegisteredFlag
from autodeploy.stack.frameworks import FRAMEWORKS
from autodeploy.stack.releases import registered, release_named, release_of, releases

RELEASES = releases()
PRE_TRAINING = [release for release in RELEASES if not FRAMEWORKS[release.framework].post_trains]


@pytest.mark.parametrize(
    ("framework", "vendor", "name", "components"),
    [
        ("mindspeed-llm", "Huawei", "mindspeed-llm-master", {"mindspeed-llm", "mindspeed", "megatron"}),
        ("mindspeed-llm-fsdp2", "Huawei", "mindspeed-llm-fsdp2-master", {"mindspeed-llm-fsdp2"}),
        ("megatron", "Huawei", "megatron-mindspeed-master", {"mindspeed", "megatron"}),
        ("megatron", "NVIDIA", "megatron-main", {"megatron"}),
        ("megatron", "another", "megatron-main", {"megatron"}),
        ("mindformers", "Huawei", "mindformers-master", {"mindformers"}),
        ("verl", "Huawei", "verl-mindspeed-main", {"verl", "mindspeed", "megatron"}),
        ("verl", "NVIDIA", "verl-main", {"verl", "megatron"}),
        (
            *("mindspeed-rl", "Huawei", "mindspeed-rl-master"),
            {"mindspeed-rl", "mindspeed-llm", "mindspeed", "megatron"},
        ),
    ],
)
def test_a_framework_and_a_vendor_mean_one_release(framework, vendor, name, components):
    found = release_of(framework, vendor)
    assert (found.name, {*found.components}) == (name, components)
    assert release_of(framework, vendor, name) is found


@pytest.mark.parametrize(
    ("framework", "vendor", "name", "hint"),
    [
        ("mindspeed-llm", "Huawei", "mindspeed-llm-26.0.00", "mindspeed-llm-26.0.0"),
        ("mindspeed-llm", "Huawei", "megatron-main", "mindspeed-llm-master"),
        ("megatron", "NVIDIA", "megatron-mindspeed-2.0.0", "megatron-main"),
    ],
)
def test_a_release_that_is_not_of_the_framework_or_the_chip_is_refused(framework, vendor, name, hint):
    with pytest.raises(SpecError) as refused:
        release_of(framework, vendor, name)
    (error,) = refused.value.errors
    assert error.path == "/search/target_release"
    assert hint in error.hint


@pytest.mark.parametrize("release", RELEASES, ids=[release.name for release in RELEASES])
def test_every_release_has_a_table_of_facts(release):
    assert all(len(part.commit) == 40 for part in release.components.values())
    table = release.registered
    assert len(table) > (150 if {"mindspeed-llm-fsdp2", "torchtitan-npu"} & release.components.keys() else 400)
    assert {flag.registered_in for flag in table.values()} == {*release.components}
    assert (bool(release.flags) != bool(release.keys)) is not FRAMEWORKS[release.framework].post_trains
    assert all(":" in flag.source for flag in table.values())


def test_releases_differ_where_their_sources_do():
    """Hot experts are MindSpeed's, not MindSpeed-LLM's; the exchange over levels is of an older MindSpeed only."""
    where = {
        flag: {release.name for release in PRE_TRAINING if release.registers(flag)}
        for flag in (
            *("--balanced-moe-experts", "--moe-hierarchical-alltoallv", "--overlap-moe-expert-parallel-comm"),
            "--moe-fb-overlap",
        )
    }
    newer = {"megatron-mindspeed-0.17", "megatron-mindspeed-0.18"}
    assert where["--balanced-moe-experts"] == {"megatron-mindspeed-master", *newer}
    assert where["--moe-hierarchical-alltoallv"] == {"megatron-mindspeed-2.0.0"}
    of_main = {"megatron-main", "megatron-0.19", "megatron-0.18", "megatron-0.17", "megatron-0.16"}
    assert where["--overlap-moe-expert-parallel-comm"] == {*of_main, *newer}
    assert where["--moe-fb-overlap"] == {r.name for r in PRE_TRAINING if r.has("mindspeed")}
    assert release_named("mindspeed-llm-master").registers("--moe-token-dispatcher-type", "alltoall_seq")
    assert not release_named("megatron-main").registers("--moe-token-dispatcher-type", "alltoall_seq")


@pytest.mark.parametrize("release", ["megatron-0.19", "megatron-0.18", "megatron-0.17", "megatron-0.16"])
def test_a_release_that_is_like_another_has_its_checkpoints_and_stack(release):
    of, like = release_named(release), release_named("megatron-main")
    assert [each.name for each in checkpoint_formats(of)] == [each.name for each in checkpoint_formats(like)]
    assert of.names == {release, "megatron-main"}


def test_post_training_hands_on_what_its_own_classes_have():
    """MindSpeed-RL refuses every key that MegatronConfig lacks; verl hands on what needs no model of its own."""
    closed, handing_on = release_named("mindspeed-rl-master"), release_named("verl-mindspeed-main")
    for flag in ("--num-layer-list", "--moe-alltoall-overlap-comm", "--swap-optimizer"):
        assert closed.registers(flag)
        assert closed.registers(f"megatron_training.{flag.removeprefix('--').replace('-', '_')}")
    assert not closed.registers("--moe-fb-overlap")
    assert not handing_on.registers("--moe-fb-overlap")
    section = "actor_rollout_ref.actor.megatron.override_transformer_config"
    assert handing_on.registers("--swap-optimizer")
    assert handing_on.registers(f"{section}.swap_optimizer")
    assert not release_named("verl-main").registers("--swap-optimizer")
    assert handing_on.keys["actor_rollout_ref.rollout.gpu_memory_utilization"].type == "float"
    assert handing_on.keys["actor_rollout_ref.rollout.max_model_len"].type == "int"  # null in the file: of the class


def test_a_source_names_repository_commit_and_line():
    assert (
        release_named("mindspeed-llm-master")
        .source("--moe-fb-overlap")
        .startswith("Ascend/MindSpeed@028de58c:mindspeed/features_manager/moe/fb_overlap.py:")
    )


@pytest.mark.parametrize(
    ("flag", "values", "fault"),
    [
        (("--f", "flag"), [], None),
        (("--f", "flag"), ["1"], "number of values of --f must be 0, not 1"),
        (("--f", "int"), ["8"], None),
        (("--f", "int"), ["${TP}"], None),
        (("--f", "int"), ["8.5"], "--f takes a whole number, not '8.5'"),
        (("--f", "int"), [], "number of values of --f must be 1, not 0"),
        (("--f", "float"), ["1e-5"], None),
        (("--f", "float"), ["much"], "--f takes a number, not 'much'"),
        (("--f", "str", ("a", "b")), ["b"], None),
        (("--f", "str", ("a", "b")), ["c"], "--f takes one of a, b, not 'c'"),
        (("--f", "str", (), "+"), ["a", "b"], None),
        (("--f", "str", (), "+"), [], "number of values of --f must be >= 1, not 0"),
        (("--f", "str", (), "*"), [], None),
        (("--f", "str", (), "?"), ["a", "b"], "number of values of --f must be 0-1, not 2"),
        (("--f", "str", (), "2"), ["a"], "number of values of --f must be 2, not 1"),
    ],
)
def test_values_are_judged_as_the_parser_does(flag, values, fault):
    name, kind, choices, nargs, *_ = (*flag, (), "", "")[:4]
    assert RegisteredFlag(name, kind, choices, nargs or "", "megatron", "").fault(values) == fault


def test_a_release_can_be_registered_while_the_program_runs():
    base = release_named("megatron-main")
    own = replace(base, name="mine", table={"--mine": RegisteredFlag("--mine", "flag", (), "", "megatron", "a.py:1")})
    with registered(own):
        assert release_of("megatron", "NVIDIA", "mine").registers("--mine")
        assert release_of("megatron", "NVIDIA") is base
    with pytest.raises(SpecError):
        release_named("mine")
