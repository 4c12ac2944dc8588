"""A plan as a Slurm batch script: one task a node, which runs the plan's launch script.

The launch script is written beside the batch script, in the directory that the job was submitted from, which all nodes
see. Options are those of sbatch and srun, tried on Slurm 22.05; MASTER_ADDR is the first host of the allocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.formats.common.flag_effects import profile_of
from autodeploy.formats.megatron.launch_script import SHELL, asked_for, export_megatron, export_mindspeed_llm
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact, provenance_line
from autodeploy.specs.spec import spec_of

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet

SET_BY_SLURM = ("MASTER_ADDR", "NODE_RANK")
MARK = "AUTODEPLOY_LAUNCH"


OUTSIDE_A_JOB = """\
# DRY_RUN=1 outside a job prints what its first node would run.
if [[ -n "${DRY_RUN:-}" ]] && { [[ -z "${SLURM_JOB_ID:-}" ]] || ! command -v scontrol > /dev/null; }; then
    SLURM_JOB_ID=0 SLURM_JOB_NODELIST=node0 SLURM_SUBMIT_DIR="$(mktemp -d)"
    scontrol() { echo node0; }
    srun() { SLURM_NODEID=0 "${@:2}"; }
fi
"""


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The batch script, with the launch script inside.

    Raises UnsupportedError where the plan is for part of a node beside whole ones, or its framework can't launch it.
    """
    spec = spec_of(plan_set.search)
    profile = profile_of(spec)
    ranks = plan.num_npus_used * (profile.devices_per_npu if profile else 1)
    per_node = min(ranks, profile.ranks_per_node if profile else 8)
    if ranks % per_node:
        raise UnsupportedError(Message("common.partial_nodes", ranks=ranks, size=per_node), path="/cluster/num_npus")
    is_ascend = profile is None or profile.vendor == "huawei"
    script = (export_mindspeed_llm if is_ascend else export_megatron)(plan_set, plan)
    asked = [name for name in asked_for(script.text) if name not in SET_BY_SLURM]
    name = f"autodeploy-{plan.plan_id.replace('_', '-')}"
    text = "\n".join(
        [
            "#!/usr/bin/env bash",
            f"#SBATCH --job-name={name}",
            f"#SBATCH --nodes={ranks // per_node}",
            "#SBATCH --ntasks-per-node=1",
            *([] if is_ascend else [f"#SBATCH --gpus-per-node={per_node}"]),
            "#SBATCH --exclusive",
            "#SBATCH --output=%x_%j.log",
            f"# {provenance_line(plan_set, plan)}",
            "# Add --partition and --account of your site. Submit it in the checkout of the framework, which all nodes",
            f"# see, with these exported: {', '.join(asked)}.",
            *(f"# Note: {note}" for note in script.notes),
            "set -euo pipefail",
            "",
            OUTSIDE_A_JOB,
            'MASTER_ADDR="$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)"',
            'MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}"',
            "export MASTER_ADDR MASTER_PORT",
            'LAUNCH="${SLURM_SUBMIT_DIR}/pretrain_${SLURM_JOB_ID}.sh"',
            'export LOG_FILE="${LOG_FILE:-${SLURM_SUBMIT_DIR}/train_${SLURM_JOB_ID}.log}"',
            f"cat > \"${{LAUNCH}}\" <<'{MARK}'",
            script.text.rstrip("\n"),
            MARK,
            "",
            "# NODE_RANK is the number of the node within the job.",
            'srun --kill-on-bad-exit=1 bash -c \'export NODE_RANK="${SLURM_NODEID}"; exec bash "$0"\' "${LAUNCH}"',
            "",
        ]
    )
    return Artefact(text, SHELL, f"slurm_{plan.plan_id}.sh", tuple(script.notes))
