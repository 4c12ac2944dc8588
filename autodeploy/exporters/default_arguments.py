"""Defaults that a plan rests on, written out: another release, or a fork, may have others.

Megatron-LM core_v0.12.1 computes with Transformer Engine, saves `torch_dist` checkpoints and adds the gradients of bf16
up in fp32. The scripts of MindSpeed-LLM and MindSpeed compute with the local layers; those of MindSpeed-LLM save
`torch` checkpoints. Megatron-LM's data set makes a mask of sequence x sequence for every sample, which causal attention
never reads; MindSpeed and MindSpeed-LLM switch it off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message
from autodeploy.specs.run import RunSpec
from autodeploy.stack.checkpoints import checkpoint_format, checkpoint_formats, refuse_beside_copies

if TYPE_CHECKING:
    from autodeploy.exporters.arguments import LaunchArguments
    from autodeploy.specs.spec import Spec

OPERATORS, OUTPUT, OPTIMIZE = "OPERATOR_ARGS", "OUTPUT_ARGS", "OPTIMIZE_ARGS"
# With these the gradients are kept in another number format.
OWN_GRADIENTS = ("--o2-gradient", "--quant-grads", "--grad-reduce-in-bf16")
NO_MASK = "--no-create-attention-mask-in-dataloader"


def add_numerics(arguments: LaunchArguments, spec: Spec) -> None:
    """Who computes a layer and its mask, and in which format gradients add up."""
    local = arguments.release.has("mindspeed") and spec.training.precision != "fp8"
    arguments.add("GPT_ARGS", "--transformer-impl", "local" if local else "transformer_engine")
    if arguments.release.has("mindspeed"):
        arguments.add(OPERATORS, "--no-masked-softmax-fusion")
        arguments.add(OPERATORS, "--attention-softmax-in-fp32")
    if spec.training.precision in {"bf16", "fp8"} and not any(map(arguments.has, OWN_GRADIENTS)):
        arguments.add(OPTIMIZE, "--accumulate-allreduce-grads-in-fp32")
    if arguments.knows(NO_MASK) and not arguments.release.has("mindspeed-llm"):
        arguments.add("DATA_ARGS", NO_MASK)


def add_checkpoints(arguments: LaunchArguments, spec: Spec) -> None:
    """The format of checkpoints, and whether they are written beside training."""
    run = spec.run or RunSpec()
    sharded = arguments.has("--use-megatron-fsdp") or arguments.has("--use-custom-fsdp")
    named = {each.name for each in checkpoint_formats(arguments.release)}
    custom = arguments.has("--use-custom-fsdp") and "torch_dist" in named
    asked = "torch_dist" if custom else run.checkpoint_format
    beside = run.checkpoint == "asynchronous"
    saved = checkpoint_format(arguments.release, asked, asynchronous=beside, sharded=sharded)
    assert saved is not None  # of every release that a script is written for
    if arguments.has("--enable-high-availability") and (run.checkpoint_format is not None or beside):
        refuse_beside_copies(saved, is_format_asked=run.checkpoint_format is not None)
    if saved.sharded:
        arguments.add(OUTPUT, "--ckpt-format", saved.name)  # Megatron-LM takes no other
        if beside:
            key = "stack.saves_no_format_checkpoints_beside_training"
            arguments.note(Message(key, release=arguments.release.title, format=saved.name))
        return
    if arguments.knows("--ckpt-format"):
        arguments.add(OUTPUT, "--ckpt-format", saved.name)
    elif saved.name == "torch_dist" and (beside or asked):
        arguments.add(OUTPUT, "--use-dist-ckpt")
    if beside:
        arguments.add(OUTPUT, "--async-save")
        if not arguments.release.has("mindspeed"):
            arguments.add(OUTPUT, "--use-persistent-ckpt-worker")  # without it the newer one saves in between
