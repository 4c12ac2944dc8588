"""A plan as a MindSpeed-LLM launch script (Megatron core with `--use-mcore-models`, one process a die).

`pretrain_gpt.py` of MindSpeed-LLM imports the Megatron adaptor itself; the script is started in its directory. What the
plan can't know is a variable that the script asks for and stops without.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autodeploy.exporters.arguments import shell_array
from autodeploy.exporters.artefact import Artefact, provenance_line
from autodeploy.exporters.flag_table import environment_variables
from autodeploy.exporters.launch_arguments import Launch, ShellVariable, launch_of
from hardware_profiles import ProfileError, load_profile

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec

MLA_SPEC = "mindspeed_llm.tasks.models.spec.deepseek_spec"
QK_NORM_SPEC = "mindspeed_llm.tasks.models.spec.qwen3_spec"
REQUIRED = (
    ("DATA_PATH", "prefix of the preprocessed data set"),
    ("TOKENIZER_PATH", "directory of the Hugging Face tokenizer"),
    ("CKPT_SAVE_DIR", "directory for checkpoints"),
    ("MASTER_ADDR", "address of the first node"),
    ("NODE_RANK", "number of this node, from 0"),
    ("LR", "peak learning rate"),
    ("MIN_LR", "final learning rate"),
    ("WARMUP_ITERS", "iterations of learning-rate warm-up"),
)


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The launch script, to be started on every node."""
    launch = launch_of(plan_set, plan, "mindspeed-llm")
    _add_framework(launch)
    arguments = launch.arguments
    blocks = [name for name, lines in arguments.blocks.items() if lines]
    parts = [
        _head(plan_set, launch),
        _environment(launch),
        _required(launch),
        _variables(launch),
        _cluster(launch),
        *(shell_array(name, arguments.blocks[name]) for name in blocks),
        _command(blocks),
    ]
    return Artefact("\n".join(parts), "text/x-shellscript", f"pretrain_{plan.plan_id}.sh", tuple(arguments.notes))


def _add_framework(launch: Launch) -> None:
    """What MindSpeed-LLM's scripts add to Megatron's flags, whatever the plan."""
    arguments, model = launch.arguments, launch.spec.model
    block = "GPT_ARGS"
    padded = math.ceil(model.vocab_size / launch.plan.strategy.tp) * launch.plan.strategy.tp
    arguments.add(block, "--padded-vocab-size", padded)
    arguments.add(block, "--tokenizer-type", "PretrainedFromHF")
    arguments.add(block, "--tokenizer-name-or-path", ShellVariable("TOKENIZER_PATH"))
    if model.is_mla or model.qk_norm:
        arguments.add(block, "--transformer-impl", "local")
        arguments.add(block, "--spec", MLA_SPEC if model.is_mla else QK_NORM_SPEC, "layer_spec")
    if not model.learned_position_embeddings:
        arguments.add("OPERATOR_ARGS", "--use-rotary-position-embeddings")
        if "fused_operators" in launch.plan.strategy.features:
            arguments.add("OPERATOR_ARGS", "--use-fused-rotary-pos-emb")
    arguments.add("OPERATOR_ARGS", "--no-masked-softmax-fusion")
    arguments.add("OPERATOR_ARGS", "--attention-softmax-in-fp32")
    arguments.add("TRAIN_ARGS", "--manual-gc")
    arguments.add("TRAIN_ARGS", "--manual-gc-interval", 50)
    arguments.add("TRAIN_ARGS", "--no-shared-storage")
    arguments.add("TRAIN_ARGS", "--distributed-backend", "nccl")
    arguments.add("TRAIN_ARGS", "--distributed-timeout-minutes", 120)
    arguments.add("DATA_ARGS", "--data-path", ShellVariable("DATA_PATH"))
    arguments.add("DATA_ARGS", "--split", "100,0,0")
    arguments.add("OUTPUT_ARGS", "--save", ShellVariable("CKPT_SAVE_DIR"))
    arguments.add("OUTPUT_ARGS", "--save-interval", ShellVariable("SAVE_INTERVAL"))
    arguments.add("OUTPUT_ARGS", "--log-interval", 1)
    arguments.add("OUTPUT_ARGS", "--eval-interval", ShellVariable("SAVE_INTERVAL"))
    arguments.add("OUTPUT_ARGS", "--eval-iters", 0)


def _head(plan_set: PlanSet, launch: Launch) -> str:
    spec, plan = launch.spec, launch.plan
    notes = "".join(f"# Note: {note}\n" for note in launch.arguments.notes)
    name = " ".join(spec.model.name.split())
    return (
        "#!/usr/bin/env bash\n"
        f"# {provenance_line(plan_set, plan)}\n"
        f"# {name} on {plan.num_npus_used} cards ({launch.ranks} ranks), predicted step {plan.step_time_s:.4g} s, "
        f"peak memory {plan.peak_memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB\n"
        "# Start it in the MindSpeed-LLM directory on every node.\n"
        f"{notes}set -euo pipefail\n"
    )


def _environment(launch: Launch) -> str:
    """Host and communication settings the prediction assumes (24 cores a device, two-level task queue)."""
    values = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "CPU_AFFINITY_CONF": "1",
        "TASK_QUEUE_ENABLE": "2",
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "STREAMS_PER_DEVICE": "32",
        "HCCL_CONNECT_TIMEOUT": "3600",
        "HCCL_EXEC_TIMEOUT": "3600",
    }
    if launch.plan.strategy.fsdp:
        del values["CUDA_DEVICE_MAX_CONNECTIONS"]
    if launch.spec.cluster.profile == "ascend-800t-a2":
        values["HCCL_OP_BASE_FFTS_MODE"] = "TRUE"
        if launch.plan.strategy.ep > 1:
            values["HCCL_ALGO"] = "alltoall=level0:NA;level1:pipeline"
    unknown = values.keys() - environment_variables().keys()
    if unknown:
        raise KeyError(f"{sorted(unknown)} are not in the flag table")
    return "".join(f'export {name}="{value}"\n' for name, value in values.items())


def _required(launch: Launch) -> str:
    """Variables without a sensible default: the script stops with a message where one is missing."""
    required = list(REQUIRED)
    if not launch.spec.model.learned_position_embeddings:
        required.append(("ROTARY_BASE", "rope_theta of the model configuration"))
    if launch.spec.training.tokens is None:
        required.append(("TRAIN_ITERS", "iterations to train"))
    lines = [f': "${{{name}:?set {name}: {meaning}}}"\n' for name, meaning in required]
    return "# Set these before the start.\n" + "".join(lines)


def _variables(launch: Launch) -> str:
    lines = [f"{name}={value}\n" for name, value in launch.variables.items()]
    tokens = launch.spec.training.tokens
    if tokens is not None:
        iterations = math.ceil(tokens / (launch.variables["GBS"] * launch.spec.training.seq_length))
        lines.append(f'TRAIN_ITERS="${{TRAIN_ITERS:-{iterations}}}"  # {tokens:.4g} tokens\n')
    if launch.spec.model.is_moe:
        lines.append('ROUTER_BALANCING="${ROUTER_BALANCING:-aux_loss}"\n')
    lines.append('SAVE_INTERVAL="${SAVE_INTERVAL:-1000}"\n')
    return "# The plan.\n" + "".join(lines)


def _cluster(launch: Launch) -> str:
    """Nodes and processes, and a stop where they are not the plan's."""
    per_node = _ranks_per_node(launch.spec, launch.ranks)
    if per_node is None:
        given = ': "${NPUS_PER_NODE:?set NPUS_PER_NODE: processes a node}"\n'
    else:
        given = f'NPUS_PER_NODE="${{NPUS_PER_NODE:-{per_node}}}"\n'
    return (
        f'WORLD_SIZE={launch.ranks}\n{given}NNODES="${{NNODES:-$((WORLD_SIZE / NPUS_PER_NODE))}}"\n'
        'MASTER_PORT="${MASTER_PORT:-6000}"\n'
        "if ((NNODES * NPUS_PER_NODE != WORLD_SIZE)); then\n"
        '    echo "the plan is for ${WORLD_SIZE} ranks, not ${NNODES} nodes of ${NPUS_PER_NODE}" >&2\n'
        "    exit 2\n"
        "fi\n"
        "DISTRIBUTED_ARGS=(\n"
        '    --nproc_per_node "${NPUS_PER_NODE}"\n'
        '    --nnodes "${NNODES}"\n'
        '    --node_rank "${NODE_RANK}"\n'
        '    --master_addr "${MASTER_ADDR}"\n'
        '    --master_port "${MASTER_PORT}"\n'
        ")\n"
    )


def _ranks_per_node(spec: Spec, ranks: int) -> int | None:
    """From the hardware profile; None where it can't be found any more."""
    try:
        per_node = load_profile(spec.cluster.profile).ranks_per_node
    except ProfileError:
        return None
    return min(per_node, ranks)


def _command(blocks: list[str]) -> str:
    lines = [f'    "${{{name}[@]}}" \\\n' for name in blocks]
    return (
        'read -r -a EXTRA <<< "${EXTRA_ARGS:-}"\n'
        'torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \\\n'
        + "".join(lines)
        + '    ${CKPT_LOAD_DIR:+--load "${CKPT_LOAD_DIR}"} \\\n'
        + '    ${EXTRA[@]+"${EXTRA[@]}"}\n'
    )
