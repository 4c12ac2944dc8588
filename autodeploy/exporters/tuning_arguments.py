"""Fine-tuning in MindSpeed-LLM's flags: its stage and data, packed documents, adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import UnsupportedError

if TYPE_CHECKING:
    from autodeploy.exporters.arguments import LaunchArguments
    from autodeploy.specs.spec import Spec

TRAINER = "posttrain_gpt.py"
_BLOCK = "TUNE_ARGS"


def refuse_tuning(arguments: LaunchArguments, spec: Spec) -> None:
    """Refuses fine-tuning for a framework whose launch of it is not written.

    Raises
    ------
    UnsupportedError
        where the spec fine-tunes.
    """
    if spec.training.kind == "sft":
        message = f"fine-tuning can't be exported to {arguments.target} yet"
        raise UnsupportedError(message, path="/training/kind", hint="mindspeed-llm")


def add_tuning(arguments: LaunchArguments, spec: Spec) -> None:
    """TUNE_ARGS of supervised fine-tuning; nothing of pre-training. Source: MindSpeed-LLM features_manager/finetune.

    Raises
    ------
    UnsupportedError
        when the framework's parser has no stage of fine-tuning.
    """
    training = spec.training
    if training.kind != "sft":
        return
    if not arguments.knows("--stage", "sft"):
        refuse_tuning(arguments, spec)
    add = arguments.add
    add(_BLOCK, "--finetune")
    add(_BLOCK, "--stage", "sft")
    add(_BLOCK, "--is-instruction-dataset")
    add(_BLOCK, "--prompt-type", "default")
    arguments.note("--prompt-type: that of your chat template")
    if training.sequence_length_histogram is not None:
        add(_BLOCK, "--reset-attention-mask")
        add(_BLOCK, "--neat-pack")
    if training.lora is not None:
        add(_BLOCK, "--lora-r", training.lora.rank)
        add(_BLOCK, "--lora-alpha", training.lora.told_alpha)
        add(_BLOCK, "--lora-target-modules", *training.lora.target_modules)
        add(_BLOCK, "--lora-fusion")
