"""Launches of post-training: verl's overrides, MindSpeed-RL's configuration, and what both refuse."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from autodeploy.formats.megatron.post_training_launch import MISSING, key_fault
from autodeploy.formats.registry import export, formats_of
from autodeploy.kit.errors import UnsupportedError
from autodeploy.specs.rl import RlTraining
from autodeploy.specs.rl_facts import facts_of
from autodeploy.specs.strategy import Strategy
from autodeploy.stack.expression import names
from autodeploy.stack.launch_rules import broken_rules, launch_rules
from autodeploy.stack.releases import release_named
from tests import factories
from tests.support.rl_plans import ASYNC, CASES, DEEPSEEK, DENSE, changed, rl_plan_set

if TYPE_CHECKING:
    from collections.abc import Mapping

MEGATRON = "actor_rollout_ref.actor.megatron"
OVERRIDE = f"{MEGATRON}.override_transformer_config"
ROLLOUT = "actor_rollout_ref.rollout"
# Dense, one node of eight cards with two dies; experts over all of it.
SHARDED = changed(DENSE, tp=1, pp=1, fsdp=True, sequence_parallel=False)
ONE_STEP = changed(ASYNC, layout={"staleness": 1, "partial_rollout": False})
SEPARATE = changed(ASYNC, layout={"placement": "separate", "staleness": 0, "partial_rollout": False})


def overrides(case: Mapping[str, Any], profile: str = "cloudmatrix-384") -> dict[str, str]:
    """The overrides as Hydra sees them, `+` taken away, and the entry point under ""."""
    plan_set, plan = rl_plan_set(case, "verl", profile)
    text = export(plan_set, plan, "verl").text
    found = {}
    for body in re.findall(r"^\w+_ARGS=\(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL):
        for word in shlex.split(body):
            key, _, value = word.lstrip("+").partition("=")
            assert key not in found
            found[key] = value
    return found | {"": " ".join(re.findall(r"-m (\S+) .*--config-name=(\S+)", text)[0])}


def configuration(case: Mapping[str, Any]) -> dict[str, Any]:
    plan_set, plan = rl_plan_set(case, "mindspeed-rl")
    return YAML(typ="safe").load(export(plan_set, plan, "mindspeed-rl").text)


def refusal(case: Mapping[str, Any], to: str, profile: str = "cloudmatrix-384") -> str:
    plan_set, plan = rl_plan_set(case, to, profile)
    with pytest.raises(UnsupportedError) as caught:
        export(plan_set, plan, to)
    assert all(error.path.startswith("/") for error in caught.value.errors)
    return str(caught.value)


def test_verl_gets_the_degrees_and_numbers_of_the_plan():
    found = overrides(DEEPSEEK)
    expected = {
        "": "verl.trainer.main_ppo ppo_megatron_trainer.yaml",
        "data.train_batch_size": "512",
        "data.max_prompt_length": "1024",
        f"{MEGATRON}.expert_model_parallel_size": "32",
        f"{MEGATRON}.expert_tensor_parallel_size": "1",
        f"{MEGATRON}.optimizer_offload": "False",
        f"{MEGATRON}.param_offload": "True",
        f"{OVERRIDE}.pipeline_model_parallel_layout": '"Ettttttt|ttttttt|(tttttttt|)*5tttttttL"',
        f"{OVERRIDE}.recompute_num_layers": "4",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "4096",
        f"{ROLLOUT}.data_parallel_size": "64",
        f"{ROLLOUT}.expert_parallel_size": "256",
        f"{ROLLOUT}.enforce_eager": "True",
        f"{ROLLOUT}.n": "16",
        "trainer.device": "npu",
        "trainer.nnodes": "16",
        "trainer.n_gpus_per_node": "16",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert f"{OVERRIDE}.moe_tp_extend_ep" not in found


def test_packs_are_those_of_a_context_parallel_rank():
    """verl multiplies the tokens of a rank by its context-parallel size (workers/engine/utils.py)."""
    case = changed(DENSE, cp=2, cp_algo="ulysses", layout={"pack_tokens": 8192}, micro_batch_size=1)
    found = overrides(case)
    assert found["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == "4096"
    assert "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu" not in found


@pytest.mark.parametrize(
    ("case", "entry", "expected"),
    [
        (
            ASYNC,
            "verl.experimental.fully_async_policy.fully_async_main fully_async_ppo_megatron_trainer.yaml",
            {
                **{"async_training.staleness_threshold": "2", "async_training.partial_rollout": "True"},
                **{"data.train_batch_size": "0", "rollout.nnodes": "8", "trainer.nnodes": "8"},
            },
        ),
        (
            ONE_STEP,
            "verl.experimental.one_step_off_policy.main_ppo one_step_off_ppo_megatron_trainer.yaml",
            {
                "data.train_batch_size": "128",
                "rollout.n_gpus_per_node": "16",
                f"{ROLLOUT}.checkpoint_engine.backend": "hccl",
            },
        ),
        (
            SEPARATE,
            "verl.experimental.fully_async_policy.fully_async_main fully_async_ppo_megatron_trainer.yaml",
            {"async_training.staleness_threshold": "0", "async_training.partial_rollout": "False"},
        ),
    ],
)
def test_verl_is_started_where_its_placement_is(case, entry, expected):
    found = overrides(case)
    assert found[""] == entry
    assert found["actor_rollout_ref.hybrid_engine"] == "False"
    assert {key: found.get(key) for key in expected} == expected


def test_layers_at_both_ends_have_numbers_of_their_own():
    found = overrides(ASYNC)
    assert found[f"{OVERRIDE}.num_layers_in_first_pipeline_stage"] == "11"
    assert found[f"{OVERRIDE}.num_layers_in_last_pipeline_stage"] == "11"


def test_groups_of_interleaved_micro_batches_have_the_name_of_their_field():
    plan_set, plan = rl_plan_set(changed(DENSE, vpp=2, schedule="interleaved", layout={"pack_tokens": 4096}))
    plan = plan.model_copy(update={"micro_batches": 3})
    text = export(plan_set, plan, "verl").text
    assert f"{OVERRIDE}.microbatch_group_size_per_vp_stage=3" in text
    assert f"{MEGATRON}.virtual_pipeline_model_parallel_size=2" in text


def test_sharded_parameters_are_trained_by_fsdp2():
    found = overrides(SHARDED)
    assert found[""] == "verl.trainer.main_ppo ppo_trainer.yaml"
    assert found["actor_rollout_ref.actor.strategy"] == "fsdp2"
    assert not [key for key in found if ".megatron." in key]


def test_ppo_has_its_critic_and_dapo_its_clips():
    found = overrides(changed(DENSE, rl={"algorithm": "ppo"}))
    assert (found["algorithm.adv_estimator"], found["critic.megatron.tensor_model_parallel_size"]) == ("gae", "2")
    found = overrides(changed(DENSE, rl={"algorithm": "dapo", "reference_model": False}))
    assert found["algorithm.filter_groups.enable"] == "True"
    assert found["actor_rollout_ref.actor.clip_ratio_high"] == "0.28"
    assert found["actor_rollout_ref.actor.use_kl_loss"] == "False"


def test_on_other_chips_verl_stands_on_megatron_alone():
    case = changed(DENSE, layout={"generation": {"engine": "sglang"}})
    found = overrides(case | {"num_npus": 16}, "nvidia-h100")
    assert (found["trainer.device"], found[f"{ROLLOUT}.name"], found["trainer.nnodes"]) == ("cuda", "sglang", "2")


def test_mindspeed_rl_counts_prompts_and_dies():
    found = configuration(DEEPSEEK)
    assert found["megatron_training"]["global_batch_size"] == 512
    assert found["megatron_training"]["data_path"] == MISSING
    assert found["megatron_training"]["n_shared_experts"] == 1
    actor, generate, rl = found["actor_config"], found["generate_config"], found["rl_config"]
    assert (actor["expert_model_parallel_size"], actor["moe_tp_extend_ep"], actor["noop_layers"]) == (
        8,
        True,
        "7,15,63",
    )
    # The engine's data-parallel size, though its name says experts.
    assert (generate["infer_expert_parallel_size"], generate["infer_tensor_parallel_size"]) == (64, 4)
    assert generate["max_model_len"] == 3072
    assert (rl["actor_resource"], rl["mini_batch_size"]) == ({"num_npus": 256}, 512)
    assert {rl[f"{name}_packing_token_size"] for name in ("max", "ref_max", "update_max")} == {4096}
    assert rl["use_remove_padding"]
    assert found["megatron_training"]["reset_attention_mask"]
    plan_set, plan = rl_plan_set(DEEPSEEK, "mindspeed-rl")
    assert "VLLM_DP_SIZE=64 TASK_QUEUE_ENABLE=2" in export(plan_set, plan, "mindspeed-rl").text


def test_mindspeed_rl_lets_all_responses_of_a_rank_run_where_the_plan_leaves_it_open():
    generate = configuration(changed(DENSE, layout={"generation": {"max_num_seqs": None}}))["generate_config"]
    assert generate["max_num_seqs"] == 32 * 8 // 16


def test_dapo_filters_by_a_reward_that_is_computed():
    """validate_config.py refuses a metric that is no verifier."""
    found = configuration(changed(DENSE, rl={"algorithm": "dapo", "reference_model": False}))
    rl = found["rl_config"]
    assert found["megatron_training"]["stage"] == "ray_dapo"
    assert rl["filter_groups_metric"] in rl["verifier_function"]
    assert (rl["filter_groups_train_batch_size"], rl["init_kl_coef"]) == (32, 0.0)


@pytest.mark.parametrize(
    ("case", "to", "words"),
    [
        (ASYNC, "mindspeed-rl", "placement: async"),
        (changed(DENSE, layout={"generation": {"precision": "int8"}}), "mindspeed-rl", "generation.precision: int8"),
        (changed(DENSE, rl={"algorithm": "ppo"}), "mindspeed-rl", "algorithm: ppo"),
        (changed(DENSE, rl={"reward": "qwen3-8b"}), "mindspeed-rl", "reward: Qwen3-8B"),
        (changed(DENSE, rl={"prompts_per_step": 30}), "mindspeed-rl", "prompts_per_step must be divisible"),
        (changed(DENSE, layout={"partial_rollout": True}), "verl", "placement: async"),
        (changed(ASYNC, layout={"staleness": 0}), "verl", "staleness: 1"),
        (changed(ASYNC, layout={"generation_npus": 63}), "verl", "do not fill whole nodes"),
        (changed(ASYNC, layout={"generation_npus": 80}), "verl", "generation_ranks must be divisible"),
        (changed(DENSE, layout={"pack_tokens": 2048}), "verl", "exceeds pack_tokens"),
        (changed(SHARDED, tp=2), "verl", "requires tp: 1, pp: 1, ep: 1"),
        (changed(ASYNC, layout={"generation_npus": None}), "verl", "generation_npus is required"),
        (changed(DENSE, rl={"prompts_per_step": 31}), "verl", "must be divisible"),
        (changed(DENSE, schedule="dualpipev"), "verl", "dualpipev"),
    ],
)
def test_what_a_framework_cannot_launch_is_refused_by_name(case, to, words):
    assert words in refusal(case, to)


def test_plans_of_one_kind_are_not_launched_as_the_other():
    plan_set, plan = rl_plan_set(DENSE)
    for to in ("mindspeed-llm", "megatron", "megatron-flags", "mindformers", "ascendjob", "chrome-trace"):
        assert to not in formats_of("1f1b", post_trains=True)
        with pytest.raises(UnsupportedError, match="does not do reinforcement learning"):
            export(plan_set, plan, to)
    pre_training = factories.plan_set(1)
    for to in ("verl", "mindspeed-rl"):
        assert to not in formats_of("1f1b")
        assert to in formats_of("1f1b", post_trains=True)
        with pytest.raises(UnsupportedError, match=r"needs training\.kind"):
            export(pre_training, pre_training.plans[0], to)
    assert "dualpipev" not in formats_of("dualpipev", post_trains=True)


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        (f"{ROLLOUT}.n", 8, None),
        (f"{ROLLOUT}.n", True, "takes int, not True"),
        (f"{ROLLOUT}.n", "8", "takes int, not '8'"),
        (f"{ROLLOUT}.gpu_memory_utilization", 1, None),
        (f"{ROLLOUT}.enforce_eager", 1, "takes bool, not 1"),
        (f"{OVERRIDE}.recompute_method", "all", "not 'all'"),
        (f"{ROLLOUT}.num", 8, "unknown key "),
        ("trainer.save_freq", "${SAVE_FREQ}", None),
    ],
)
def test_keys_are_judged_by_the_table(name, value, fault):
    said = key_fault(dict(release_named("verl-mindspeed-main").keys), name, value)
    assert said is None if fault is None else fault in (said or "")


@pytest.mark.parametrize("framework", ["verl", "mindspeed-rl"])
def test_every_rule_reads_numbers_that_a_launch_has(framework):
    facts = _facts(DENSE)
    rules = launch_rules(framework)
    assert len({rule.name for rule in rules}) == len(rules)
    for rule in rules:
        read = names(rule.require) | (names(rule.when) if rule.when else frozenset())
        assert read <= facts.keys(), rule.name
        assert ":" in rule.source or rule.source.endswith(".md")


# What breaks each rule, from a launch that meets them all.
BREAKS: dict[str, dict[str, dict[str, int]]] = {
    "verl": {
        "mini_batch_in_step": {"mini_batch_prompts": 64},
        "ranks_divide_into_replicas": {"training_ranks": 18},
        "update_divides_over_replicas": {"mini_batch_prompts": 31, "responses": 1},
        "step_divides_into_micro_batches": {"micro_batch_size": 3},
        "pack_holds_the_longest": {"packed": 1, "pack_tokens": 3000},
        "generation_divides_into_replicas": {"generation_ranks": 24, "generation_dp": 16},
        "experts_over_the_replica": {"generation_ep": 4},
        "replica_fills_nodes": {"generation_tp": 24, "generation_dp": 1, "generation_ranks": 48},
        "data_parallel_replica_fills_a_node": {"generation_dp": 2},
    },
    "mindspeed-rl": {
        "ranks_divide_into_replicas": {"training_ranks": 18},
        "prompts_divide_over_replicas": {"prompts": 30},
        "step_divides_into_micro_batches": {"micro_batch_size": 3},
        "prompts_divide_over_engines": {"generation_ranks": 24},
        "prompts_divide_over_nodes": {"nodes": 3},
        "engine_ranks_fill_groups": {"generation_ep": 3, "generation_dp": 3},
        "pack_holds_the_longest": {"packed": 1, "pack_tokens": 3000},
        "tp_doubles_or_halves": {"generation_tp": 3},
        "packs_without_virtual_stages": {"packed": 1, "pack_tokens": 4096, "pp": 2, "vpp": 2},
        "partial_rollout_without_virtual_stages": {"partial_rollout": 1, "vpp": 2},
    },
}


@pytest.mark.parametrize(("framework", "name"), [(each, name) for each, rules in BREAKS.items() for name in rules])
def test_each_rule_catches_what_it_is_there_for(framework, name):
    sound = _facts(DENSE)
    assert broken_rules(framework, sound, "vllm") == []
    assert name in {rule.name for rule in broken_rules(framework, sound | BREAKS[framework][name], "vllm")}
    assert {rule.name for rule in launch_rules(framework)} == BREAKS[framework].keys()


def _facts(case: Mapping[str, Any]) -> dict[str, int]:
    strategy = Strategy.model_validate(
        case["strategy"] | {"rl": changed(case, layout={"generation": {"dp": 1}})["strategy"]["rl"]}
    )
    rl = RlTraining.model_validate(case["rl"])
    assert strategy.rl is not None
    return asdict(facts_of(rl, strategy, strategy.rl, ranks=16, per_card=2, ranks_per_node=16))


def test_the_same_plan_gives_the_same_text():
    for to in ("verl", "mindspeed-rl"):
        first, second = (export(*rl_plan_set(DEEPSEEK, to), to).text for _ in range(2))
        assert first == second


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_shell_reads_the_script(case, tmp_path):
    import subprocess

    plan_set, plan = rl_plan_set(case)
    script = tmp_path / "launch.sh"
    script.write_text(export(plan_set, plan, "verl").text, encoding="utf-8")
    subprocess.run(["bash", "-n", str(script)], check=True)
