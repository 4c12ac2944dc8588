"""A plan as a Megatron-LM launch script. On Ascend its trainer needs MindSpeed's adaptor, which the script brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.formats.megatron.arguments import ShellVariable
from autodeploy.formats.megatron.launch import launch_of
from autodeploy.formats.megatron.launch_script import add_run_arguments, flags_text, script_text
from autodeploy.specs.artefact import Artefact

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

SHELL = "text/x-shellscript"


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The launch script, to be started on every node in the Megatron-LM directory."""
    launch = launch_of(plan_set, plan, "megatron")
    path = ShellVariable("TOKENIZER_PATH")
    named = "SFTTokenizer" if launch.arguments.has("--sft") else "HuggingFaceTokenizer"
    if launch.arguments.knows("--tokenizer-type", named):
        tokenizer = (("--tokenizer-type", named), ("--tokenizer-model", path))
    else:
        tokenizer = (("--tokenizer-type", "PretrainedFromHF"), ("--tokenizer-name-or-path", path))
    add_run_arguments(launch, tokenizer)
    adapts = launch.arguments.release.has("mindspeed")
    text = script_text(plan_set, launch, directory="Megatron-LM", adapts=adapts)
    return Artefact(text, SHELL, f"megatron_{plan.plan_id}.sh", tuple(launch.arguments.notes))


def export_flags(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The argument blocks alone."""
    launch = launch_of(plan_set, plan, "megatron")
    notes = tuple(launch.arguments.notes)
    return Artefact(flags_text(plan_set, launch), SHELL, f"megatron_flags_{plan.plan_id}.sh", notes)
