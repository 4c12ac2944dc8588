"""A plan as arguments for Megatron-LM's `pretrain_gpt.py`: a bash file to be sourced by one's own launch script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.exporters.arguments import shell_array
from autodeploy.exporters.artefact import Artefact, provenance_line
from autodeploy.exporters.launch_arguments import launch_of

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

NEEDED = ("TRAIN_ITERS", "LR", "MIN_LR", "WARMUP_ITERS")


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """Argument arrays and MEGATRON_ARGS, which joins them; data, checkpoints and logging stay the caller's."""
    launch = launch_of(plan_set, plan, "megatron")
    arguments = launch.arguments
    blocks = {name: lines for name, lines in arguments.blocks.items() if lines}
    needed = [*NEEDED, *([] if launch.spec.model.learned_position_embeddings else ["ROTARY_BASE"])]
    head = [f"# {provenance_line(plan_set, plan)}", f"# For {launch.ranks} ranks. Source it and pass MEGATRON_ARGS."]
    head += [f"# Note: {note}" for note in arguments.notes]
    variables = [f"{name}={value}" for name, value in launch.variables.items()]
    if launch.spec.model.is_moe:
        variables.append('ROUTER_BALANCING="${ROUTER_BALANCING:-aux_loss}"')
    checks = [f': "${{{name}:?set {name}}}"' for name in needed]
    joined = "MEGATRON_ARGS=(\n" + "".join(f'    "${{{name}[@]}}"\n' for name in blocks) + ")\n"
    text = "\n".join(
        ["\n".join(head), "\n".join([*checks, *variables]), *(shell_array(*block) for block in blocks.items()), joined]
    )
    return Artefact(text, "text/x-shellscript", f"megatron_{plan.plan_id}.sh", tuple(arguments.notes))
