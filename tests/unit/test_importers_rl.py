"""Launches of post-training read back: verl's overrides and MindSpeed-RL's configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.formats.import_document import import_document, import_file
from autodeploy.formats.megatron.post_training_launch import preset_named
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError, UnsupportedError
from tests.support.rl_plans import ASYNC, DEEPSEEK, DENSE, changed, rl_plan_set

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.common.import_result import ImportResult

SHARDED = changed(DENSE, tp=1, pp=1, fsdp=True, sequence_parallel=False)
ONE_STEP = changed(ASYNC, layout={"staleness": 1, "partial_rollout": False})
SEPARATE = changed(ASYNC, layout={"placement": "separate", "staleness": 0, "partial_rollout": False})
# Axes that a file says as the plan does; features and swaps are the framework's own.
SAID = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "fsdp", "swap_optimizer")
LAUNCH = """
MODEL=Qwen/Qwen3-8B
python3 -m verl.trainer.main_ppo --config-path=config --config-name='ppo_megatron_trainer.yaml' \\
    algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_prompt_length=$((1024 * 2)) \\
    actor_rollout_ref.model.path="$HOME/models/${MODEL}" actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \\
    trainer.n_gpus_per_node=8 trainer.nnodes=${NNODES:-2} trainer.device=npu """


def read_back(case: Mapping[str, Any], to: str) -> ImportResult:
    plan_set, plan = rl_plan_set(case, to)
    artefact = export(plan_set, plan, to)
    variables = {"MODEL_PATH": f"models/{case['model']}", "LR": "1e-6", "CKPT_SAVE_DIR": "c", "TRAIN_FILE": "t"}
    variables |= {"TOTAL_ROLLOUT_STEPS": "1000"}
    name = case["model"] if to == "mindspeed-rl" else None
    return import_document(artefact.text, artefact.filename, variables=variables, name=name)


@pytest.mark.parametrize(
    ("case", "to"),
    [
        *((case, "verl") for case in (DEEPSEEK, DENSE, ASYNC, SHARDED, ONE_STEP, SEPARATE)),
        *((case, "mindspeed-rl") for case in (DEEPSEEK, DENSE)),
    ],
)
def test_what_is_exported_is_read_back(case, to):
    _, plan = rl_plan_set(case, to)
    found = read_back(case, to)
    spec = found.spec()
    strategy = spec.strategy
    assert strategy is not None
    assert strategy.rl is not None
    assert (spec.cluster.profile, spec.cluster.num_npus) == ("cloudmatrix-384", case["num_npus"])
    assert {axis: getattr(strategy, axis) for axis in SAID} == {axis: getattr(plan.strategy, axis) for axis in SAID}
    before = plan.strategy.rl
    assert before is not None
    same = ("placement", "generation_npus", "staleness", "partial_rollout", "pack_tokens")
    assert {name: getattr(strategy.rl, name) for name in same} == {name: getattr(before, name) for name in same}
    assert set(strategy.rl.offload) == set(before.offload)
    for name in ("tp", "ep", "memory_fraction", "max_num_seqs", "engine"):
        assert getattr(strategy.rl.generation, name) == getattr(before.generation, name), name
    assert spec.training.rl is not None
    said = spec.training.rl.model_dump(mode="json", exclude_unset=True)
    assert {key: said[key] for key in case["rl"]} == case["rl"]
    assert spec.search.target == to
    assert spec.model.num_hidden_layers == plan_layers(case)
    assert found.kept == ()
    assert found.plan_id == plan.plan_id
    if case in (DEEPSEEK, ASYNC):
        assert strategy.recompute.granularity != "none"
        placed = [sum(row) if isinstance(row, tuple) else row for row in strategy.layers_per_stage or ()]
        assert placed == list(case["strategy"]["layers_per_stage"])


def plan_layers(case: Mapping[str, Any]) -> int:
    plan_set, _ = rl_plan_set(case)
    return int(plan_set.search.spec["model"]["num_hidden_layers"])


def test_a_public_form_of_script_is_read():
    found = import_document(LAUNCH, "run.sh")
    spec = found.spec("cloudmatrix-384")
    assert (spec.model.name, spec.cluster.num_npus) == ("Qwen3-8B", 8)
    assert spec.training.rl is not None
    assert spec.training.rl.prompts_per_step == 64
    assert spec.training.rl.prompt_length.max == 2048
    assert spec.training.rl.response_length.max == 512  # verl's own
    assert spec.strategy is not None
    assert spec.strategy.rl is not None
    assert spec.strategy.rl.generation.engine == "vllm-ascend"
    assert spec.strategy.recompute.granularity == "full"
    assert any("all are predicted as that long" in doubt for doubt in spec.doubts)


def test_a_list_of_overrides_is_a_launch():
    text = "\n".join(word for word in LAUNCH.replace("\\", " ").split() if "=" in word and "--" not in word)
    text = text.replace("$((1024", "2048").replace("${NNODES:-2}", "2").replace("$HOME/models/${MODEL}", "qwen3-8b")
    assert import_document(text, "overrides.txt").ranks == 16


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ("actor_rollout_ref.model.lora_rank=32", UnsupportedError, "LoRA"),
        ("actor@actor_rollout_ref.actor=own_actor", UnsupportedError, "not modelled yet: own"),
        ("actor_rollout_ref.rollout.name=hf", UnsupportedError, "not modelled yet: hf"),
        ("actor_rollout_ref.rollout.n=many", SpecError, "line 9, column 1: actor_rollout_ref.rollout.n: 'many'"),
        ("actor_rollout_ref.rollout.n=$N", SpecError, "has no value in the script"),
        ("actor_rollout_ref.rollout.enforce_eager=perhaps", SpecError, "neither true nor false"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=1e99", SpecError, "too big"),
        ("actor_rollout_ref.rollout.data_parallel_size=" + "9" * 400, SpecError, "not a whole number from 1 to"),
        ("actor_rollout_ref.model.path=/nobody/knows", SpecError, "no preset for"),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=-2", SpecError, "not a whole number from 1 to"),
    ],
)
def test_hostile_overrides_are_refused_with_their_place(more, error, words):
    with pytest.raises(error) as caught:
        import_document(LAUNCH + "\\\n" + more + "\n", "run.sh").spec("cloudmatrix-384")
    assert words in str(caught.value)


def test_what_is_not_modelled_is_told():
    more = "actor_rollout_ref.actor.ppo_epochs=2 +new.thing=4 actor_rollout_ref.rollout.temperature=0.6"
    found = import_document(LAUNCH + more, "run.sh")
    assert any("ppo_epochs" in note.source for note in found.diagnostics.unmodelled)
    assert [flag.name for flag in found.kept] == ["new.thing"]
    assert any("temperature" in note.source for note in found.diagnostics.ignored)


YAML_TEXT = """
megatron_training: {model: qwen25_7b, stage: ray_grpo, global_batch_size: 32, seq_length: 2048, bf16: true}
actor_config: {model: qwen25_7b, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, micro_batch_size: 4}
rl_config: {n_samples_per_prompt: 8, mini_batch_size: 32, max_prompt_length: 2048, actor_resource: {num_npus: 16}}
generate_config:
  infer_tensor_parallel_size: 1
  offload_train_optimizer: true
  sampling_config: {max_tokens: 2048}
"""


def test_a_configuration_of_mindspeed_rl_names_its_model():
    found = import_document(YAML_TEXT, "grpo_qwen25_7b_A3.yaml")
    spec = found.spec("cloudmatrix-384")
    assert (spec.model.name, spec.cluster.num_npus, spec.search.target) == ("Qwen2.5-7B", 8, "mindspeed-rl")
    assert spec.strategy is not None
    assert spec.strategy.rl is not None
    assert spec.strategy.rl.generation.mode == "eager"
    assert spec.strategy.rl.offload == ("optimizer",)
    assert spec.training.rl is not None
    assert spec.training.rl.token_count == "max"  # its default


def test_the_file_of_the_model_is_read_beside_it(tmp_path):
    (tmp_path / "model").mkdir()
    shape = "num_layers: 4, hidden_size: 512, ffn_hidden_size: 1024, num_attention_heads: 8, padded_vocab_size: 1000"
    (tmp_path / "model" / "own.yaml").write_text(f"own: {{{shape}, swiglu: true}}\n", encoding="utf-8")
    path = tmp_path / "grpo_own.yaml"
    path.write_text(YAML_TEXT.replace("qwen25_7b", "own"), encoding="utf-8")
    assert import_file(path).spec("cloudmatrix-384").model.hidden_size == 512
    path.write_text(YAML_TEXT.replace("qwen25_7b", "../own"), encoding="utf-8")
    with pytest.raises(SpecError, match="no preset for"):
        import_file(path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ray_grpo", "ray_online_dpo", "DPO"),
        ("global_batch_size: 32, ", "", "global_batch_size"),
        (
            "tensor_model_parallel_size: 2, pipe",
            "tensor_model_parallel_size: 99999999, pipe",
            "tensor-model-parallel-size",
        ),
        ("num_npus: 16", "num_npus: -1", "whole number"),
        ("generate_config:", "generate_config: []\nother:", "is not a mapping"),
    ],
)
def test_hostile_configurations_are_refused(old, new, words):
    assert old in YAML_TEXT
    with pytest.raises(SpecError, match=words):
        import_document(YAML_TEXT.replace(old, new), "a.yaml").spec("cloudmatrix-384")


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Qwen/Qwen2.5-Math-7B", "qwen2.5-7b"),
        ("./Qwen3-235B-A22B-Instruct-2507/", "qwen3-235b-a22b"),
        ("deepseekv3_671b", "deepseek-v3"),
        ("DeepSeek-R1", "deepseek-v3"),
        ("DeepSeek-V3-0324", "deepseek-v3"),
        ("Qwen3-VL-8B-Instruct", None),
        ("Qwen3-8B-VL", None),
        ("DeepSeek-V3.2-Exp", None),
        ("Qwen3.5-35B-A3B", "qwen3.5-35b-a3b"),
        ("Qwen3-4B", None),
        ("", None),
    ],
)
def test_a_name_means_a_preset_of_its_shape_or_none(name, preset):
    assert preset_named(name) == preset
