"""Fine-tuning in flags: stage, data, packed documents, adapters, pairs and their loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message
from autodeploy.specs.dpo import DpoSpec

if TYPE_CHECKING:
    from autodeploy.exporters.arguments import LaunchArguments
    from autodeploy.specs.spec import Spec

TRAINER = "posttrain_gpt.py"
_BLOCK = "TUNE_ARGS"


def add_tuning(arguments: LaunchArguments, spec: Spec) -> None:
    """TUNE_ARGS of fine-tuning under supervision or by preferences; nothing of pre-training.

    Source: MindSpeed-LLM features_manager/finetune and features_manager/dpo; Megatron-LM @d98e8a64 pretrain_gpt.py and
    training/datasets/sft_dataset.py, which packs always and asserts that there is no mask.
    """
    training, add = spec.training, arguments.add
    if training.kind not in {"sft", "dpo"}:
        return
    add(_BLOCK, "--finetune")
    if not arguments.knows("--stage", training.kind):
        add(_BLOCK, "--sft")
        add(_BLOCK, "--sft-tokenizer-prompt-format", "default")
        add(_BLOCK, "--no-create-attention-mask-in-dataloader")
        return
    add(_BLOCK, "--stage", training.kind)
    add(_BLOCK, "--is-instruction-dataset")
    if training.kind == "dpo":
        loss = training.dpo or DpoSpec()
        add(_BLOCK, "--is-pairwise-dataset")
        add(_BLOCK, "--dpo-beta", loss.beta)
        add(_BLOCK, "--dpo-loss-type", loss.loss)
        arguments.note(Message("exporters.reference_model_is_that_of_load_unless_ref"))
    add(_BLOCK, "--prompt-type", "default")
    arguments.note(Message("exporters.prompt_type_that_of_your_chat_template"))
    if training.sequence_length_histogram is not None:
        add(_BLOCK, "--reset-attention-mask")
        add(_BLOCK, "--neat-pack")
    if training.lora is not None:
        add(_BLOCK, "--lora-r", training.lora.rank)
        add(_BLOCK, "--lora-alpha", training.lora.told_alpha)
        add(_BLOCK, "--lora-target-modules", *training.lora.target_modules)
        add(_BLOCK, "--lora-fusion")
