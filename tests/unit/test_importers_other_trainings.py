"""What is no pre-training of all parameters is recognised and refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import in_language

FLAGS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 1000 "
    "--global-batch-size 8 --micro-batch-size 1"
)


@pytest.mark.parametrize(
    ("program", "flags", "named"),
    [
        ("pretrain_gpt.py", "--lora-r 16 --lora-target-modules linear_qkv", "LoRA (--lora-r)"),
        ("posttrain_gpt.py", "--stage sft --qlora", "LoRA (--qlora)"),
        ("posttrain_gpt.py", "--lora-r 16", "LoRA (--lora-r)"),
        ("posttrain_gpt.py", "--stage sft --is-pairwise-dataset", "DPO (--is-pairwise-dataset)"),
        ("posttrain_gpt.py", "--stage ray_grpo", "RL (--stage ray_grpo)"),
        ("posttrain_gpt.py", "", "fine-tuning (posttrain_gpt.py)"),
        ("pretrain_gpt.py", "--finetune --is-instruction-dataset", "SFT (--is-instruction-dataset)"),
        ("train_rl.py", "", "RL (train_rl.py)"),
        ("pretrain_gpt.py", "--perform-rl-step", "RL (--perform-rl-step)"),
        ("pretrain_gpt.py", "--use-torch-fsdp2", "FSDP2 (--use-torch-fsdp2)"),
    ],
)
def test_launches_that_train_otherwise(program: str, flags: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(f"not modelled yet: {named}")) as caught:
        import_document(f"torchrun {program} {FLAGS} {flags}", "a.sh")
    (error,) = caught.value.errors
    assert error.path == "/training/kind"
    assert error.hint == "give the launch of a full-parameter pre-training"
    assert "尚未建模" in in_language(error.message, "zh")


@pytest.mark.parametrize("program", ["inference.py", "evaluation.py", "tools/run_text_generation_server.py"])
def test_launches_that_train_nothing(program: str) -> None:
    with pytest.raises(UnsupportedError, match="trains nothing"):
        import_document(f"torchrun {program} {FLAGS}", "a.sh")


def test_continued_pre_training_is_read() -> None:
    assert (
        import_document(f"torchrun pretrain_gpt.py {FLAGS} --finetune", "a.sh").document["model"]["hidden_size"] == 512
    )


@pytest.mark.parametrize(
    ("document", "path", "named"),
    [
        ("model: {model_id: qwen}\ntraining: {stage: sft}\n", "/training/stage", "SFT"),
        ("actor_rollout_ref: {model: {path: x}}\n", "/actor_rollout_ref", "RL"),
        ("rl_config: {n: 8}\nactor_config: {lr: 1}\n", "/rl_config", "RL"),
        ("model_name_or_path: x\nfinetuning_type: lora\n", "/finetuning_type", "LLaMA-Factory"),
    ],
)
def test_configurations_of_other_trainings(document: str, path: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(named)) as caught:
        import_document(document, "a.yaml")
    assert caught.value.errors[0].path == path


MODEL = "hidden_size: 64, num_layers: 2, num_heads: 4, vocab_size: 100, seq_length: 64, compute_dtype: bfloat16"


def mindformers(more: str, mode: str = "train") -> dict[str, Any]:
    text = f"run_mode: {mode}\nparallel_config: {{data_parallel: 1}}\nmodel:\n  model_config: {{{MODEL}{more}}}\n"
    return dict(import_document(text, "a.yaml").document)


def test_adapters_of_mindformers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"LoRA \(pet_config\)") as caught:
        mindformers(", pet_config: {pet_type: lora, lora_rank: 8}")
    assert caught.value.errors[0].path == "/model/model_config/pet_config"


def test_fine_tuning_of_all_parameters_in_mindformers_is_told() -> None:
    assert "unmodelled" not in mindformers("")
    (doubt,) = mindformers("", "finetune")["unmodelled"]
    assert "predicted as train" in doubt


def test_query_groups_of_glm_are_read() -> None:
    assert mindformers(", multi_query_group_num: 2")["model"]["num_key_value_heads"] == 2
    plain = mindformers(", multi_query_group_num: 2, multi_query_attention: false")["model"]
    assert "num_key_value_heads" not in plain
