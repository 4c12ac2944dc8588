"""A plan as a MindSpeed-LLM launch script (Megatron core with `--use-mcore-models`, one process a die).

`pretrain_gpt.py` of MindSpeed-LLM imports the Megatron adaptor itself; the script is started in its directory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autodeploy.formats.megatron.arguments import ShellVariable
from autodeploy.formats.megatron.attention import QWEN3_NEXT_SPEC, SHORTCUT_SPEC
from autodeploy.formats.megatron.launch import Launch, launch_of
from autodeploy.formats.megatron.launch_script import add_run_arguments, flags_text, script_text
from autodeploy.specs.artefact import Artefact
from autodeploy.specs.launched import full_interval

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.planset import Plan, PlanSet

QK_NORM_SPEC = "mindspeed_llm.tasks.models.spec.qwen3_spec"
SHELL = "text/x-shellscript"


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The launch script, to be started on every node."""
    launch = _launch(plan_set, plan)
    tokenizer = (
        ("--tokenizer-type", "PretrainedFromHF"),
        ("--tokenizer-name-or-path", ShellVariable("TOKENIZER_PATH")),
    )
    add_run_arguments(launch, tokenizer)
    launch.arguments.add("TRAIN_ARGS", "--no-shared-storage")
    text = script_text(plan_set, launch, directory="MindSpeed-LLM", adapts=False)
    return Artefact(text, SHELL, f"pretrain_{plan.plan_id}.sh", tuple(launch.arguments.notes))


def export_flags(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The argument blocks alone."""
    launch = _launch(plan_set, plan)
    notes = tuple(launch.arguments.notes)
    return Artefact(flags_text(plan_set, launch), SHELL, f"flags_{plan.plan_id}.sh", notes)


def layer_spec(model: ModelSpec) -> tuple[str, ...]:
    """Module and name of the layers' specification: the model's own, else that of latent attention or qk norms."""
    if model.told.layer_spec is not None:
        return tuple(model.told.layer_spec.split())
    if model.shortcut_moe:
        return (SHORTCUT_SPEC, "layer_spec")
    if full_interval(model) is not None:
        return (QWEN3_NEXT_SPEC, "layer_spec")
    module = model.attention.layer_spec or (QK_NORM_SPEC if model.qk_norm else "")
    return (module, "layer_spec") if module else ()


def _launch(plan_set: PlanSet, plan: Plan) -> Launch:
    """The plan's flags with what MindSpeed-LLM's scripts add to Megatron's, whatever the plan."""
    launch = launch_of(plan_set, plan, "mindspeed-llm")
    add_own_arguments(launch)
    return launch


def add_own_arguments(launch: Launch) -> None:
    """What its scripts add to Megatron's flags: vocabulary, layers' specification, rotary positions."""
    arguments, model = launch.arguments, launch.spec.model
    block = "GPT_ARGS"
    padded = math.ceil(model.vocab_size / launch.plan.strategy.tp) * launch.plan.strategy.tp
    arguments.add(block, "--padded-vocab-size", padded)
    if spec := layer_spec(model):
        arguments.add(block, "--spec", *spec)
    if model.compressed_attention is not None:
        arguments.add(block, "--transformer-impl", "local")
        if model.num_nextn_predict_layers:
            arguments.add(block, "--mtp-spec", model.attention.layer_spec, "mtp_spec")
        return
    if not model.learned_position_embeddings:
        arguments.add("OPERATOR_ARGS", "--use-rotary-position-embeddings")
        if "fused_operators" in launch.plan.strategy.features:
            arguments.add("OPERATOR_ARGS", "--use-fused-rotary-pos-emb")
